"""Text fit for a terminal, and for a shell that people paste into: sh, bash and zsh take it alike.

A :class:`Line` is made in this module alone, out of a template that stands in our source and of values for its holes.
In :func:`line` every word is quoted, whoever supplied it; in :func:`script` a hole takes numbers and other lines only.

Host names, log lines, process titles and rule comments are other people's text. An escape sequence in them could
repaint the screen, a carriage return overwrite a line, a bidirectional override swap what a command seems to say
(CVE-2021-42574).
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Hole: TypeAlias = "int | str | IPv4Address | IPv6Address | IPv4Network | IPv6Network"
"""Values for a hole of :func:`line`; text has to be printable, and no option where it begins a word."""

_PLAIN = re.compile(r"[\w.,:@%/+-]+", re.ASCII)
_NAME = re.compile(r"[\w.-]+", re.ASCII)
_OPERATORS = frozenset({"|", "||", ">>", "2>/dev/null"})
_HOLE = re.compile(r"\{\w+\}")
_SPREAD = re.compile(r"\{\*(\w+)\}")
_HOSTS = re.compile(r"[\w.:,\[\]-]+", re.ASCII)


@dataclass(frozen=True)
class Line:
    """Shell text that does what its template says and nothing else."""

    text: str

    def __str__(self) -> str:
        return self.text


def word(text: str) -> str:
    """Return the text as one word, quoted where it needs it; of ``NAME=value`` the value alone.

    A word that begins with "=" needs it, for zsh looks up a command behind it, which :func:`shlex.quote` lets pass.
    """
    name, sign, value = text.partition("=")
    if sign and _NAME.fullmatch(name):
        return f"{name}={_quoted(value) if value else ''}"
    return _quoted(text)


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else "'" + text.replace("'", "'\"'\"'") + "'"


def line(template: str, **holes: Hole | Sequence[Hole] | Line | None) -> Line | None:
    """Return a line of one command or a few, each hole one word or a part of one.

    The template has words as a shell splits them, ``{name}`` for a hole, ``{*name}`` for as many words as are given;
    operators as words of their own are the shell's. A line fills a hole that is a word of its own, as it is. None where
    a text can't be pasted: it holds what does not print (a line break, an escape), or would be taken for an option.
    """
    words: list[str] = []
    for part in shlex.split(template):
        own = holes.get(part[1:-1], "") if _HOLE.fullmatch(part) else ""
        if own is None:
            return None
        if part in _OPERATORS or isinstance(own, Line):
            words += [part] if part in _OPERATORS else filter(None, [str(own)])
            continue
        spread = _SPREAD.fullmatch(part)
        values = holes[spread[1]] if spread else (part.format(**holes),)
        assert isinstance(values, (list, tuple)), "a spread takes a sequence"
        filled = list(map(str, values))
        is_hole = part.startswith("{") and not part.startswith("{{")
        if any(not text.isprintable() or (is_hole and text.startswith("-")) for text in filled):
            return None
        words += map(word, filled)
    return Line(" ".join(words))


def script(template: str, **parts: int | Line | Sequence[Line]) -> Line:
    """Shell text with holes for numbers and lines; several lines for one hole stand side by side."""
    texts = {
        name: " ".join(map(str, part)) if isinstance(part, Sequence) else str(part) for name, part in parts.items()
    }
    return Line(template.format(**texts))


def argument(text: str) -> Line:
    """Return the user's own text as one word."""
    return Line(word(text))


def nested(command: Line | str) -> Line:
    """Return a command as one word of another, quoted as a whole."""
    return Line(_quoted(str(command)))


def host_names(pattern: str) -> Line:
    """Return a folded list of hosts, for a place where nothing is quoted; else ValueError."""
    if not _HOSTS.fullmatch(pattern):
        raise ValueError(f"{pattern!r} is not a list of host names")
    return Line(pattern)


def program(path: str) -> Line:
    """Return an interpreter's path; ``~/`` stays outside the quotes, for the shell to fill."""
    return Line("~/" + _quoted(path[2:]) if path.startswith("~/") and len(path) > 2 else _quoted(path))


def assignments(variables: Mapping[str, str]) -> list[Line]:
    """Return ``NAME=value`` for the front of a command."""
    return [Line(f"{name}={_quoted(value) if value else ''}") for name, value in variables.items()]


def words(texts: Sequence[str], replaced: Mapping[str, Line]) -> list[Line]:
    """Return the user's texts as words; ``{name}`` gives way to its line in ``replaced``."""
    made = []
    for text in texts:
        pieces = [piece for piece in re.split(r"(\{\w+\})", text) if piece]
        values = {
            f"{{{name}}}": it.text if _PLAIN.fullmatch(it.text) else f'"{it.text}"' for name, it in replaced.items()
        }
        whole = values.keys().isdisjoint(pieces)
        made.append(Line(word(text) if whole else "".join(values.get(piece) or word(piece) for piece in pieces)))
    return made


CONTROL_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")
"""ECMA-48, section 5.4: introducer, parameters, intermediates, final byte."""


def clean(text: str) -> str:
    """Return the text on one line, without control characters.

    Line breaks and tabs become a space each, lone surrogates U+FFFD. Other controls (Unicode category Cc) go, and so
    do format characters (Cf: bidirectional overrides, zero-width characters) and the sequences that colour logs.
    """
    return text if text.isprintable() else "".join(map(_shown, CONTROL_SEQUENCE.sub("", text)))


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    if character.isspace():
        return character if category == "Zs" else " "
    return "\N{REPLACEMENT CHARACTER}" if category == "Cs" else "" if category in ("Cc", "Cf") else character


def pasteable(command: str) -> bool:
    """Return True for a command of one line, in which a terminal hides and obeys nothing."""
    return bool(command.strip()) and clean(command) == command
