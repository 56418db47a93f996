"""What a command prints, compared with what the page says: all but measures, and what follows from their lengths."""

from __future__ import annotations

import re

UNITS = [
    (r"\S*…", "…"),  # where it is cut
    (r"\b0x[0-9a-f]+\b|\b(?=[0-9a-f]*\d)[0-9a-f]{12}\b", "HEX"),  # addresses, and the names that containers get
    (r"\d+(?:\.\d+)? (?:µs|ms|s)\b", "TIME"),
    (r"\d+(?:\.\d+)? [kMG]?B/s", "RATE"),
    (r"\d+(?:\.\d+)? (?:[kMGKT]i?)?B\b", "SIZE"),
    (r"\d+(?:\.\d+)?", "N"),
    (r"[▁▂▃▄▅▆▇█]+", "BARS"),
    (r"\bN(?:,N)+", "N"),  # how many ports were drawn
]
"""By what each is replaced. A unit goes with its number: the same time is 900 µs or 1 ms."""


COUNT = re.compile(r"\b\d+(?=\s+(?:checks?\s+passed|not\s+applicable|errors?|warnings?|hosts?|ranks?)\b)")
"""Counts that follow from the situation alone."""
_LETTERS = str.maketrans("0123456789", "ABCDEFGHIJ")


def bare(text: str) -> str:
    """The text without measures; lines that differ in nothing else, as a table's, are one, and blanks are alike.

    Numbers of other lengths break lines elsewhere.
    """
    text = COUNT.sub(lambda count: f"COUNT{count[0].translate(_LETTERS)}", text)
    for pattern, name in UNITS:
        text = re.sub(pattern, name, text)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return " ".join(line for line, before in zip(lines, [None, *lines], strict=False) if line != before)
