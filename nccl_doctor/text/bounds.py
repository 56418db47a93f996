"""Limits the time and memory that untrusted text can consume.

RE2 matches regular expressions in linear time, whereas :mod:`re` takes twelve seconds for a pattern with three
wildcards and a malicious line of 4 kB. RE2 supports neither lookaround nor back-references. JSON text is checked before
parsing, since the parsed values take up to 150 times as many bytes as the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate
from typing import cast


def safe_regex(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with RE2 and return an object with the interface of a compiled :mod:`re` pattern.

    Predefined character classes match only ASCII characters. Raise ``re2.error`` if the pattern is invalid.
    """
    import re2  # importing it takes 10 ms, and most commands don't need it

    return cast("re.Pattern[str]", re2.compile(pattern))


_DIGITS = 20  # of the largest number of 64 bits


def whole_number(digits: str) -> int:
    """Return the value of a decimal number with an optional sign, or ±2**64 if the number has over 20 digits.

    ``int`` rejects numbers with thousands of digits, since the conversion takes quadratic time
    (sys.set_int_max_str_digits).
    """
    bare = digits.lstrip("+-").lstrip("0") or "0"
    number = int(bare) if len(bare) <= _DIGITS else 1 << 64
    return -number if digits.startswith("-") else number


_BLOCK = 1 << 18
_STRUCTURE = b"[]{},"
_OTHERS = bytes(set(range(256)) - set(_STRUCTURE))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class CrowdedError(ValueError):
    """Error raised for JSON text that has more values or deeper nesting than the caller allows."""


def refuse_crowded(data: bytes, *, values: int, containers: int, depth: int) -> None:
    """Raise CrowdedError for JSON that exceeds the limits, or ValueError for more than one document.

    Other errors are not detected, because the JSON text is not parsed. ``containers`` limits the number of lists and
    objects, which also count towards ``values``.
    """
    commas = opened = deep = 0
    whole = False
    for structure in _structures(data):
        brackets = structure.replace(b",", b"")
        levels = list(accumulate(map(_STEPS.__getitem__, brackets), initial=deep))
        if (whole and brackets) or 0 in levels[1:-1]:
            raise ValueError("more than one document")
        deep, whole = levels[-1], whole or (levels[-1] == 0 and brackets != b"")
        commas += len(structure) - len(brackets)
        opened += brackets.count(b"[") + brackets.count(b"{")
        if opened > containers:
            raise CrowdedError(f"more than {containers:,} lists and objects")
        if commas + opened > values:
            raise CrowdedError(f"more than {values:,} values")
        if max(levels) > depth:
            raise CrowdedError(f"lists and objects more than {depth} deep")


def _structures(data: bytes) -> Iterator[bytes]:
    """Yield the brackets, braces and commas outside the strings of a JSON text, block by block."""
    start, inside = 0, False
    while start < len(data):
        block = data[start : start + _BLOCK]
        if (len(block) - len(block.rstrip(b"\\"))) % 2:  # an escaped character stays with its backslash
            block = data[start : start + _BLOCK + 1]
        start += len(block)
        parts = block.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[inside::2]).translate(None, _OTHERS)
        inside ^= len(parts) % 2 == 0
