"""Words for a shell that people paste into: sh, bash and zsh take them alike."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLAIN = re.compile(r"[\w.,:@%/+-]+(?:=[\w.,:@%/+-]*)?", re.ASCII)
"""Needs no quotes; a word that begins with "=" does, for zsh looks up a command behind it."""


def word(text: str) -> str:
    """The text as one word, in single quotes where it needs any."""
    return text if _PLAIN.fullmatch(text) else "'" + text.replace("'", "'\"'\"'") + "'"


def program(path: str) -> str:
    """An interpreter's path; ``~/`` stays outside the quotes, so that the shell puts the home directory there."""
    return "~/" + word(path[2:]) if path.startswith("~/") and len(path) > 2 else word(path)


def assignments(variables: Mapping[str, str]) -> list[str]:
    """``NAME=value`` for the front of a command."""
    return [f"{name}={word(value) if value else ''}" for name, value in variables.items()]


def words(texts: tuple[str, ...], replaced: Mapping[str, str]) -> list[str]:
    """Texts as words; ``{name}`` in them gives way to what ``replaced`` has for it, which is shell already."""
    return [_replace(text, replaced) for text in texts]


def _replace(text: str, replaced: Mapping[str, str]) -> str:
    pieces = re.split(r"(\{\w+\})", text)
    if not any(piece[1:-1] in replaced for piece in pieces[1::2]):
        return word(text)
    return "".join(_value(replaced[p[1:-1]]) if p[1:-1] in replaced else word(p) for p in pieces if p)


def _value(expression: str) -> str:
    return expression if _PLAIN.fullmatch(expression) else f'"{expression}"'
