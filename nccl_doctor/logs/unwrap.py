"""Joins what a terminal or a mail has cut: lines of one width, each continued by the next.

A joined line is followed by as many empty ones as it has swallowed, so that line numbers stay true.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

_BEGINS = re.compile(
    rb"(?:\[|\(|\{|#|\||[IWEF]\d{4} |\d{4}[-/]\d\d|[A-Z][\w.]*(?:Error|Exception|Warning)\b|Traceback| +File \"|"
    rb"INFO|WARN|ERROR|DEBUG|NCCL|"
    rb"[\w.-]+:\d+:\d+ |[\w.-]+: [\w.-]+:\d+|(?:\d+|[\w.-]{2,}): |\s*$)"
)
"""How lines of a log begin: a line that begins so is no continuation."""

_NARROW, _WIDE = 40, 512
_ENOUGH = 2
"""So many cut lines of one width make a wrapped log; one may be the longest line by chance."""


def width(sample: bytes) -> int | None:
    """The width at which ``sample`` was cut, None for a log that was not."""
    lines = sample.split(b"\n")
    lengths = Counter(len(line.rstrip(b"\r")) for line in lines)
    widest = max(lengths, default=0)
    if not _NARROW <= widest <= _WIDE or lengths[widest] < _ENOUGH:
        return None
    pairs = list(pairwise(lines))
    cut = [not _BEGINS.match(after) for line, after in pairs if len(line.rstrip(b"\r")) == widest]
    return widest if cut and sum(cut) * 5 >= len(cut) * 4 else None


def join(block: bytes, cut_at: int, glue: bytes = b"") -> bytes:
    """The block with lines of ``cut_at`` characters joined to their continuations by ``glue``."""
    joined: list[bytes] = []
    swallowed = 0
    lines = block.split(b"\n")
    cut = False
    for line in lines:
        if cut and not _BEGINS.match(line):
            joined[-1] += glue + line.rstrip(b"\r")
            swallowed += 1
        else:
            joined += [b""] * swallowed
            swallowed = 0
            joined.append(line.rstrip(b"\r"))
        cut = len(line.rstrip(b"\r")) == cut_at
    return b"\n".join([*joined, *[b""] * swallowed])


def flow(block: bytes, glue: bytes) -> bytes:
    """The block with every line that begins like none of a log joined to the one before it."""
    joined: list[bytes] = []
    swallowed = 0
    for line in block.split(b"\n"):
        if joined and joined[-1] and not _BEGINS.match(line):
            joined[-1] += glue + line.strip()
            swallowed += 1
        else:
            joined += [b""] * swallowed
            swallowed = 0
            joined.append(line)
    return b"\n".join([*joined, *[b""] * swallowed])
