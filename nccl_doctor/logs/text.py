"""Lines of a log as text that can be read, quoted and shown."""

from __future__ import annotations

import codecs
import re

from nccl_doctor.text.secrets import part

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]|\x9b[0-?]*[ -/]*[@-~]")
"""Control sequences of ECMA-48 (colours, cursor), and the titles that terminals set."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\u200b-\u200f\ufeff]")

MOST_DIGITS = 9

QUOTED = 600
"""Characters of a line that are quoted at most."""


_ESCAPES_IN_BYTES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")


def plain(block: bytes) -> bytes:
    """The block without colours, which would stand between the letters of a word."""
    return _ESCAPES_IN_BYTES.sub(b"", block) if b"\x1b" in block else block


_UTF_16 = {"utf-16-le": rb"(?:[^\0]\0){16}", "utf-16-be": rb"(?:\0[^\0]){16}", "utf-16": rb"\xff\xfe|\xfe\xff"}


def wide(head: bytes) -> codecs.IncrementalDecoder | None:
    """A decoder for a log that begins as UTF-16, which PowerShell's ``>`` writes; None for any other."""
    name = next((name for name, pattern in _UTF_16.items() if re.match(pattern, head)), None)
    return codecs.getincrementaldecoder(name)("replace") if name else None


def number(text: str | None) -> int | None:
    """A rank, a size or a sequence number; None where the digits are so many that it is none."""
    return int(text) if text and len(text) <= MOST_DIGITS else None


def decode(line: bytes) -> str:
    """A line as text: damaged UTF-8 replaced, escape sequences and control characters gone."""
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    return text if text.isprintable() else tidy(text)


def tidy(text: str) -> str:
    """The text without escape sequences; tabs and other controls become a space."""
    return _CONTROLS.sub(" ", _ESCAPES.sub("", text)).replace("\t", " ")


def quote(text: str, start: int, end: int) -> str:
    """The line, or of a long one the part around what stands from ``start`` to ``end``."""
    text = text.rstrip()
    if len(text) <= QUOTED:
        return text
    first = max(0, min(start - QUOTED // 3, len(text) - QUOTED))
    last = max(min(first + QUOTED, len(text)), min(end, first + 2 * QUOTED))
    return ("… " if first else "") + part(text, first, last).strip() + (" …" if last < len(text) else "")
