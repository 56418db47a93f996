"""Selects the function that renders a command's document in the requested format.

Rendering functions return strings and neither write files nor read the clock. A new format, or the output of a new
command, needs a module in this package and a line in this module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nccl_doctor.model.base import Document


class RenderOptions(NamedTuple):
    """Options for showing a document."""

    color: bool = False  # escape sequences may repeat in colour what the text says
    width: int = 80  # of the terminal, in cells; below 50 as 50
    verbose: bool = False  # with each host, check, dial and message size
    quiet: bool = False  # only findings, and what could not be judged
    # time of the facts, in seconds since 1970-01-01 UTC; None omits it
    observed_at: float | None = None
    made_at: float | None = None  # time of the report, likewise
    asked_by: str = ""  # the caller, "ann on login1"
    # by code, the pages that ``explain`` prints, for forms with room for them
    pages: Mapping[str, str] = MappingProxyType({})
    fail_on: str = "error"  # severity from which on a form for CI counts a failure; "never" counts none


_JSON = {"json": "render:render_json"}
_REPORT = {
    "human": "human:render",
    **_JSON,
    "junit": "junit:render",
    "prometheus": "prometheus:render",
    "html": "html.report:render",
    "github": "github:render",
}
_HANG = {"human": "human:render_hang", **_JSON, "html": "html.report:render_hang"}
_LINES = "screens:render_launch"

FORMS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("check", "smoke", "logs"), _REPORT),
    "fix-port": {"human": "fix_port:render", **_JSON},
    "fix": {"human": "fix:render", **_JSON},
    "ifname": {"human": "screens:render_ifname", **_JSON},
    "hosts": {"human": "screens:render_hosts", **_JSON},
    "launch": {"shell": _LINES, **_JSON, "ssh": _LINES, "slurm": "screens:render_script"},
    "hang": _HANG,
    "hang --watch": {**_HANG, "prometheus": "prometheus:render_watch"},
    "diff": {"human": "screens:render_diff", **_JSON, "html": "html.report:render_diff"},
    "codes": {"human": "screens:render_codes", **_JSON},
    "explain": {"human": "screens:render_page", **_JSON},
    # these commands print no document
    "mcp": {"human": "screens:render_page"},
    "schema": {"human": "screens:render_page"},
}
"""Output formats of each command, the default first, with the module and function that render each format."""


def render(command: str, form: str, document: Document, options: RenderOptions = RenderOptions()) -> str:  # noqa: B008 - a NamedTuple can't change
    """Return the document in a format, or "" if ``--quiet`` leaves nothing to show."""
    return renderer(command, form)(document, options)


def renderer(command: str, form: str) -> Callable[[Any, RenderOptions], str]:
    """Return the function that renders a format, after importing the function's module."""
    module, function = FORMS[command][form].split(":")
    make: Callable[[Any, RenderOptions], str] = getattr(import_module(f"nccl_doctor.report.{module}"), function)
    return make


def render_json(document: Document, _options: RenderOptions) -> str:
    """Return the document as JSON.

    All fields are included, except that ``entities`` and ``page`` are left out if they are null. The JSON is ASCII, so
    that host names and logs can neither garble a terminal nor cause encoding errors. Infinities and NaN, which JSON
    lacks, become null.
    """
    tree = _without_empty(json.loads(document.model_dump_json(by_alias=True)))
    return json.dumps(tree, indent=2, allow_nan=False) + "\n"


def _without_empty(tree: object) -> object:
    if isinstance(tree, dict):
        kept = (item for item in tree.items() if item not in (("entities", None), ("page", None)))
        return {name: _without_empty(value) for name, value in kept}
    return [_without_empty(entry) for entry in tree] if isinstance(tree, list) else tree
