"""Text from outside made fit for a terminal, and commands that must be shown as they are or not at all.

Host names, log lines, process titles and rule comments are other people's text. An escape sequence in them could
repaint the screen, a carriage return overwrite a line, a bidirectional override swap what a command seems to say
(CVE-2021-42574).
"""

from __future__ import annotations

import re
import unicodedata

_COLOUR_AND_CURSOR = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")
"""A control sequence of ECMA-48, section 5.4: introducer, parameters, intermediates, final byte."""


def clean(text: str) -> str:
    """The text on one line, without control characters.

    Line breaks and tabs become a space each, lone surrogates U+FFFD. Other controls (Unicode category Cc) go, and so
    do format characters (Cf: bidirectional overrides, zero-width characters) and the sequences that colour logs.
    """
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in _COLOUR_AND_CURSOR.sub("", text))


def _shown(character: str) -> str:
    if character.isspace():
        return character if unicodedata.category(character) == "Zs" else " "
    category = unicodedata.category(character)
    if category == "Cs":
        return "\N{REPLACEMENT CHARACTER}"
    return "" if category in ("Cc", "Cf") else character


def pasteable(command: str) -> bool:
    """True where a command can be shown as it is: on one line, with nothing in it that a terminal hides or obeys."""
    return bool(command.strip()) and clean(command) == command
