"""Text for a shell that people paste into: sh, bash and zsh take it alike.

A :class:`Line` is made in this module alone, out of a template that stands in our source and of values for its holes.
In :func:`line` every word is quoted, whoever supplied it; in :func:`script` a hole takes numbers and other lines only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Hole = int | str | IPv4Address | IPv6Address | IPv4Network | IPv6Network
"""What a hole of :func:`line` takes; text has to be printable, and no option where it begins a word."""

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
    """The text as one word, in single quotes where it needs any; of ``NAME=value`` the value alone is quoted.

    A word that begins with "=" needs them, for zsh looks up a command behind it, which :func:`shlex.quote` lets pass.
    """
    name, sign, value = text.partition("=")
    if sign and _NAME.fullmatch(name):
        return f"{name}={_quoted(value) if value else ''}"
    return _quoted(text)


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else "'" + text.replace("'", "'\"'\"'") + "'"


def line(template: str, **holes: Hole | Sequence[Hole] | Line | None) -> Line | None:
    """A line of one command or a few, each hole one word or a part of one.

    Args:
        template: words as a shell splits them, ``{name}`` for a hole, ``{*name}`` for as many words as are given;
            ``|``, ``||``, ``>>`` and ``2>/dev/null`` as words of their own are the shell's.
        holes: the values by name; a line fills a hole that is a word of its own, as it is.

    Returns:
        The line; None where a text can't be pasted as it is: it holds a character that does not print (a line break,
        an escape sequence), or would be taken for an option.
    """
    words: list[str] = []
    for part in shlex.split(template):
        own = holes.get(part[1:-1], "") if _HOLE.fullmatch(part) else ""
        if own is None:
            return None
        if part in _OPERATORS or isinstance(own, Line):
            words += [part] if part in _OPERATORS else filter(None, [str(own)])
            continue
        filled = list(_filled(part, holes))
        is_hole = part.startswith("{") and not part.startswith("{{")
        if any(not text.isprintable() or (is_hole and text.startswith("-")) for text in filled):
            return None
        words += map(word, filled)
    return Line(" ".join(words))


def _filled(part: str, holes: Mapping[str, Hole | Sequence[Hole] | Line | None]) -> Iterator[str]:
    spread = _SPREAD.fullmatch(part)
    if spread is None:
        yield part.format(**holes)
        return
    values = holes[spread[1]]
    assert isinstance(values, (list, tuple)), "a spread takes a sequence"
    yield from map(str, values)


def script(template: str, **parts: int | Line | Sequence[Line]) -> Line:
    """Shell text with holes for numbers and lines; several lines for one hole stand side by side."""
    texts = {
        name: " ".join(map(str, part)) if isinstance(part, Sequence) else str(part) for name, part in parts.items()
    }
    return Line(template.format(**texts))


def argument(text: str) -> Line:
    """The user's own text as one word."""
    return Line(word(text))


def nested(command: Line | str) -> Line:
    """A command as one word of another, quoted as a whole."""
    return Line(_quoted(str(command)))


def host_names(pattern: str) -> Line:
    """A list of hosts as :func:`~nccl_doctor.text.hostlist.fold` writes it, for a place where nothing is quoted.

    Raises:
        ValueError: it holds what no list of hosts does.
    """
    if not _HOSTS.fullmatch(pattern):
        raise ValueError(f"{pattern!r} is no list of host names")
    return Line(pattern)


def program(path: str) -> Line:
    """An interpreter's path; ``~/`` stays outside the quotes, so that the shell puts the home directory there."""
    return Line("~/" + _quoted(path[2:]) if path.startswith("~/") and len(path) > 2 else _quoted(path))


def assignments(variables: Mapping[str, str]) -> list[Line]:
    """``NAME=value`` for the front of a command."""
    return [Line(f"{name}={_quoted(value) if value else ''}") for name, value in variables.items()]


def words(texts: Sequence[str], replaced: Mapping[str, Line]) -> list[Line]:
    """The user's texts as words; ``{name}`` in them gives way to what ``replaced`` has for it."""
    return [Line(_replace(text, replaced)) for text in texts]


def _replace(text: str, replaced: Mapping[str, Line]) -> str:
    pieces = re.split(r"(\{\w+\})", text)
    if not any(piece[1:-1] in replaced for piece in pieces[1::2]):
        return word(text)
    return "".join(_value(replaced[p[1:-1]].text) if p[1:-1] in replaced else word(p) for p in pieces if p)


def _value(expression: str) -> str:
    return expression if _PLAIN.fullmatch(expression) else f'"{expression}"'
