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
    cut = False
    pieces: list[tuple[bytes, bool]] = []
    for line in block.split(b"\n"):
        bare = line.rstrip(b"\r")
        pieces.append((bare, cut and not _BEGINS.match(line)))
        cut = len(bare) == cut_at
    return _glued(pieces, glue)


def flow(block: bytes, glue: bytes) -> bytes:
    """The block with every line that begins like none of a log joined to the one before it."""
    pieces: list[tuple[bytes, bool]] = []
    begun = b""
    for line in block.split(b"\n"):
        goes_on = begun != b"" and not _BEGINS.match(line)
        begun = begun if goes_on else line
        pieces.append((line.strip() if goes_on else line, goes_on))
    return _glued(pieces, glue)


def _glued(pieces: list[tuple[bytes, bool]], glue: bytes) -> bytes:
    """Lines of (piece, whether it goes on from the one before), with an empty line for each that was swallowed."""
    lines: list[bytes] = []
    begins = [at for at, (_, goes_on) in enumerate(pieces) if not goes_on]
    for at, end in pairwise([*begins, len(pieces)]):
        lines += [glue.join(piece for piece, _ in pieces[at:end]), *[b""] * (end - at - 1)]
    return b"\n".join(lines)
