"""From a template to one file that asks the network for nothing and runs nothing but what was written here."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from nccl_doctor.report.html.text import short
from nccl_doctor.report.safe import clean

_LONGEST = 1200
"""Characters of one text; whoever sends more wants to bury the rest, and ``-o json`` has it all."""


def document(template: str, **values: Any) -> str:  # noqa: ANN401 - what the template reads
    """A whole page.

    Args:
        template: its name in the folder templates/.
        values: text among them is cleaned and escaped where it is put in.
    """
    return _environment().get_template(template).render(values)


def page_text(text: str) -> Markup:
    """A diagnosis's page, which is Markdown of our own, as HTML; tags in it stay text."""
    rendered: str = MarkdownIt("commonmark", {"html": False}).render(text)
    return Markup(rendered)  # noqa: S704 - markdown-it escapes what it does not make itself


@lru_cache(1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__ or ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _asset("style.css"), _asset("script.js")
    policy = (
        "default-src 'none'",
        f"style-src '{_digest(style)}'",
        f"script-src '{_digest(script)}'",
        "base-uri 'none'",
        "form-action 'none'",
    )
    environment.globals.update({"style": style, "script": script, "policy": "; ".join(policy)})
    environment.filters.update({"page": page_text, "whole": _whole})
    return environment


def _finalized(value: object) -> object:
    """Text in bounds, without control characters and marks that turn it around; markup of ours as it is."""
    return short(clean(value), _LONGEST) if isinstance(value, str) and not isinstance(value, Markup) else value


def _whole(command: str) -> Markup:
    """A command that can be pasted, however long: not a character of it may be missing."""
    return escape(command)


def _asset(name: str) -> Markup:
    return Markup(files(__package__ or "").joinpath(name).read_text("utf-8"))  # noqa: S704 - a file of ours


def _digest(text: str) -> str:
    """As a Content-Security-Policy names inline text that may act (CSP level 3, 2.3.1)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
