"""Turns a template into a single HTML file that loads nothing from the network and runs only its own script.

Templates read the documents directly. The modules ``figures``, ``matrix`` and ``rates`` compute the numbers that the
charts show.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from functools import lru_cache
from importlib.resources import files
from types import SimpleNamespace
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from nccl_doctor.model.base import Document
from nccl_doctor.model.finding import Diagnosis, LogLine
from nccl_doctor.report.human import LABELLED, by_consequence, by_place, plain, where
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.text.shell import clean

_LONGEST = 1200  # characters of one text; a longer one could bury the rest, and ``-o json`` has all of it
TemplateValues = SimpleNamespace  # values as a template reads them


class Table(NamedTuple):
    """A table whose cells contain text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def short(text: str, most: int) -> str:
    """Return the string, shortened to ``most`` characters.

    The middle of the string is replaced by an ellipsis, because similar host names usually differ at the start or end.
    """
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[-end:]}"


def document(template: str, **values: object) -> str:
    """Return a page from a template in templates/, with texts cleaned and escaped."""
    return _environment().get_template(template).render(values)


def head(report: Document, options: RenderOptions) -> TemplateValues:
    """Return the head of a page: the command, time, user and version."""
    observed, made = (
        "" if at is None else f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S UTC}"
        for at in (options.observed_at, options.made_at)
    )
    return TemplateValues(
        command=f"nccl-doctor {report.command}",
        version=f"nccl-doctor {report.version}",
        observed=observed or made,
        made=made if observed and made[:16] != observed[:16] else "",
        asked_by=options.asked_by,
    )


def pages(diagnoses: Iterable[Diagnosis], options: RenderOptions) -> dict[str, tuple[str, str]]:
    rows = tuple(diagnoses)
    names = {item.code: item.name for each in rows for item in each.explains} | {item.code: item.name for item in rows}
    shown = ((code, text) for code, text in sorted(options.pages.items()) if code in names)
    return {code: (names[code], text) for code, text in shown}


def gravest_first(diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Return the diagnoses by severity, the most severe first. Equally severe diagnoses keep their order."""
    return sorted(diagnoses, key=lambda diagnosis: -diagnosis.severity.rank)


@lru_cache(1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__ or ""),
        autoescape=True,
        undefined=StrictUndefined,
        # text is limited and cleaned; our own markup is left as it is
        finalize=lambda it: short(clean(it), _LONGEST) if isinstance(it, str) and not isinstance(it, Markup) else it,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    policy = "default-src 'none'; "
    for kind, name in (("style", "style.css"), ("script", "script.js")):
        text = files(__package__ or "").joinpath(name).read_text("utf-8")
        # inline scripts and styles are named by their digests (CSP level 3, 2.3.1)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        policy += f"{kind}-src 'sha256-{digest}'; "
        environment.globals[kind] = Markup(text)  # noqa: S704 - a file of ours
    environment.globals["policy"] = policy + "base-uri 'none'; form-action 'none'"

    def page(text: str) -> Markup:
        return Markup(MarkdownIt("commonmark", {"html": False}).render(text))  # noqa: S704 - it escapes all but its own

    # complete: a command to paste must not lose a character
    environment.filters.update({"page": page, "whole": escape, "where": where, "plain": plain})
    environment.filters.update({"labelled": _labelled, "consequences": by_consequence, "groups": by_place})
    return environment


def _labelled(evidence: Iterable[str | LogLine]) -> Iterator[tuple[str, str]]:
    """Yield a label and a text for each line of evidence.

    The label of a log line is the file name and line number. The label of any other line is the first word if at least
    two spaces follow the word, or "" otherwise.
    """
    for line in evidence:
        if isinstance(line, LogLine):
            yield f"{line.file}:{line.line}", line.text
        else:
            labelled = LABELLED.fullmatch(clean(line))
            yield (labelled[1], labelled[2]) if labelled else ("", line)
