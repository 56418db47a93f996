"""Templates of NCCL as it prints them."""

from __future__ import annotations

import re

FILLED = {
    "d": "7",
    "i": "7",
    "u": "7",
    "x": "7f",
    "X": "7F",
    "s": "word",
    "p": "0x7f",
    "c": "c",
    "f": "1.5",
    "m": "word",
}


def printed(template: str) -> str:
    text = re.sub(r"%[-+ #0]*\d*(?:\.\d+)?(?:hh|h|ll|l|z)?([a-zA-Z])", lambda match: FILLED[match[1]], template)
    return text.replace("\\n", "").replace('\\"', '"').strip()
