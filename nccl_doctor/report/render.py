"""Every form of every command's document, in one table. Strings only: no file is written here, no clock is read.

A new form is a module of this room and a line here; so is a new command's screen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, cast


class RenderOptions(NamedTuple):
    """How a document is shown.

    Attributes:
        color: whether escape sequences may repeat in colour what the words say.
        width: of the terminal, in cells; below 50 as 50.
        verbose: with each host, check, dial and message size.
        quiet: only what was found and what could not be judged.
        observed_at: when the facts were taken, in seconds since 1970-01-01 UTC; None leaves the time out.
        made_at: when the report is made, likewise.
        asked_by: who called, "ann on login1".
        pages: by code, the pages that ``explain`` prints, for a form that has room for them.
    """

    color: bool = False
    width: int = 80
    verbose: bool = False
    quiet: bool = False
    observed_at: float | None = None
    made_at: float | None = None
    asked_by: str = ""
    pages: Mapping[str, str] = MappingProxyType({})


Renderer = Callable[[Any, RenderOptions], str]
"""A command's document to text that ends with a line break; empty where a quiet one has nothing to say."""

REPORT = {
    "human": "human:render",
    "json": "json:render",
    "junit": "junit:render",
    "prometheus": "prometheus:render",
    "html": "html.report:render",
}

FORMS: dict[str, dict[str, str]] = {
    "check": REPORT,
    "smoke": REPORT,
    "logs": REPORT,
    "fix-port": {"human": "fix_port:render", "json": "json:render"},
    "ifname": {"human": "screens:render_ifname", "json": "json:render"},
    "hosts": {"human": "screens:render_hosts", "json": "json:render"},
    "launch": {
        "shell": "screens:render_launch",
        "json": "json:render",
        "ssh": "screens:render_launch",
        "slurm": "screens:render_script",
    },
    "hang": {"human": "hang:render", "json": "json:render", "html": "html.report:render_hang"},
    "diff": {"human": "screens:render_diff", "json": "json:render", "html": "html.report:render_diff"},
    "codes": {"human": "screens:render_codes", "json": "json:render"},
    "explain": {"human": "screens:render_page", "json": "json:render"},
}
"""By command: the names of its forms, the default one first, each with the module and function that make it."""


def renderer(command: str, form: str) -> Renderer:
    """The function that makes this form, imported only now: most of what forms need is slow to import."""
    module, function = FORMS[command][form].split(":")
    return cast("Renderer", getattr(import_module(f"nccl_doctor.report.{module}"), function))


def render(command: str, form: str, document: Any, options: RenderOptions = RenderOptions()) -> str:  # noqa: ANN401, B008 - each renderer knows its own; a NamedTuple can't change
    """The document of a command in one of its forms."""
    return renderer(command, form)(document, options)
