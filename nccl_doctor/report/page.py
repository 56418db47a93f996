"""The page of one diagnosis or topic, and the lists of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_doctor.model.documents import Codes, Page, Topic, TopicList
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.safe import clean
from nccl_doctor.report.text import apart, table, wrap

_WIDTH = 80
_ITEM = re.compile(r"\s*(?:[-*]|\d+[.)])\s+")


def render(page: Page | Topic | TopicList, _options: RenderOptions) -> str:
    """A page as ``explain`` prints it: its text, which is written for editors, flowed anew to 80 columns.

    Paragraphs and list items are flowed; blocks that are indented by four spaces stand as they are, since they hold
    commands or output.
    """
    if isinstance(page, TopicList):
        rows = [(each.name, each.title) for each in page.topics]
        more = "nccl-doctor explain TOPIC prints one; nccl-doctor codes lists the diagnoses."
        return "\n".join(table(("topic", "what it tells"), rows, _WIDTH)) + f"\n\n{more}\n"
    if isinstance(page, Topic):
        head = apart(page.name, page.title, _WIDTH - 2)
    else:
        head = apart(f"{page.code} {page.name}", f"{page.severity.value}, {page.category}", _WIDTH - 2)
    blocks = [list(_flow(block)) for block in re.split(r"\n(?:[ \t]*\n)+", page.text.strip("\n"))]
    return "\n\n".join("\n".join(lines) for lines in (head, *blocks)) + "\n"


def render_codes(document: Codes, _options: RenderOptions) -> str:
    """All diagnoses in a table."""
    rows = [(each.code, each.name, each.severity.value, each.category) for each in document.codes]
    return "\n".join(table(("code", "name", "severity", "category"), rows, _WIDTH)) + "\n"


def _flow(block: str) -> Iterator[str]:
    lines = block.split("\n")
    if all(line.startswith("    ") for line in lines):
        yield from (clean(line.rstrip()) for line in lines)
        return
    pieces: list[tuple[str, list[str]]] = []
    for line in lines:
        marker = _ITEM.match(line)
        if marker or not pieces:
            start = marker[0] if marker else ""
            pieces.append((start, [line[len(start) :]]))
        else:
            pieces[-1][1].append(line)
    for start, words in pieces:
        yield from wrap(" ".join(word.strip() for word in words), _WIDTH - 2, start)
