"""Text in little room, and places as pictures hold them."""

from __future__ import annotations


def short(text: str, most: int) -> str:
    """At most so many characters, the middle left out: both ends of a host's name tell hosts apart."""
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[-end:]}"
