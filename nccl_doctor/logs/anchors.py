"""Which plain strings must stand in a line for a pattern to match it.

Hyperscan finds hundreds of plain strings in one pass at the speed of memory, while ``A.*B`` makes it walk an automaton
through every line that holds A. So the first pass looks for strings of which every match holds at least one, and
:mod:`re` then judges the few lines that hold one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ATOM = re.compile(
    r"(?P<plain>[A-Za-z0-9 _/:',=<>#%&!@~;\"-]{2,}(?![*+?{]))"
    r"|(?P<around>\(\?(?:[=!]|<[=!]))"
    r"|(?P<group>\((?:\?:|\?i:|\?P<\w+>)?)"
    r"|(?P<nothing>\\b|\^|\$)"
    r"|(?P<run>\\[Swd]|\.|\[(?:[^\]]*-[^\]]*|[^\]]{4,})\])"
    r"|(?P<one>\\.|\[[^\]]+\]|[^\\\[\](){}|])"
)
_QUANTIFIER = re.compile(r"[*+?]\??|\{\d+(?:,\d*)?\}")
_MOST = 96
"""More strings than this are not worth a longer match."""


@dataclass(frozen=True)
class Anchor:
    """Strings of which every match of a pattern holds at least one; none where nothing can be promised.

    Attributes:
        whole: the strings are all that the pattern matches, so that they may be joined to what stands beside it.
    """

    strings: frozenset[str]
    whole: bool

    @property
    def worth(self) -> int:
        """The length of the shortest string: what stands in few lines by chance."""
        return min(map(len, self.strings), default=0)


_NOTHING = Anchor(frozenset(), whole=False)
_EMPTY = Anchor(frozenset({""}), whole=True)


def anchor(pattern: str) -> Anchor:
    """The best strings for ``pattern``; those of a ``(?i:`` group are in small letters.

    Raises:
        ValueError: the pattern holds something that no anchor can be taken from.
    """
    parser = _Parser(pattern)
    found = parser.branches()
    if parser.at < len(pattern):
        raise ValueError(f"{pattern!r} closes a group at {parser.at} that it did not open")
    return found


class _Parser:
    """Reads a pattern once, from its beginning to its end."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.at = 0

    def branches(self) -> Anchor:
        """What the alternatives up to the end of their group promise together."""
        found = [self._sequence()]
        while self._pattern.startswith("|", self.at):
            self.at += 1
            found.append(self._sequence())
        if not all(one.strings for one in found):
            return _NOTHING
        return Anchor(frozenset().union(*(one.strings for one in found)), all(one.whole for one in found))

    def _sequence(self) -> Anchor:
        """The best of what stands behind each other, up to the next alternative."""
        best, part, whole = _NOTHING, _EMPTY, True
        while self.at < len(self._pattern) and self._pattern[self.at] not in "|)":
            atom = self._atom()
            if atom.whole and len(part.strings) * len(atom.strings) <= _MOST:
                part = Anchor(frozenset(a + b for a in part.strings for b in atom.strings), whole=True)
                continue
            best, part, whole = max(best, part, atom, key=lambda one: one.worth), _EMPTY, False
        if whole:
            return part
        best = max(best, part, key=lambda one: one.worth)
        return Anchor(best.strings, whole=False) if best.worth else _NOTHING

    def _atom(self) -> Anchor:
        """What one atom promises, its quantifier seen."""
        match = _ATOM.match(self._pattern, self.at)
        if match is None:
            raise ValueError(f"no anchor can be taken from what {self._pattern!r} holds at {self.at}")
        self.at = match.end()
        kind, text = match.lastgroup, match.group()
        if kind == "plain":
            return Anchor(frozenset({text}), whole=True)
        inner = self._inner() if kind in {"group", "around"} else _NOTHING
        quantifier = _QUANTIFIER.match(self._pattern, self.at)
        self.at = quantifier.end() if quantifier else self.at
        if kind == "nothing":
            return _EMPTY
        if kind == "one":
            inner = Anchor(frozenset(text[1:-1] if text[0] == "[" else text[-1]), whole=True)
        elif kind == "group" and text == "(?i:":
            inner = Anchor(frozenset(string.lower() for string in inner.strings), inner.whole)
        elif kind != "group":
            return _NOTHING
        return _repeated(inner, quantifier.group()[0] if quantifier else "")

    def _inner(self) -> Anchor:
        found = self.branches()
        self.at += 1
        return found


def _repeated(atom: Anchor, quantifier: str) -> Anchor:
    """What an atom promises that may stand there several times or not at all."""
    if quantifier == "?" and atom.whole:
        return Anchor(atom.strings | {""}, whole=True)
    if quantifier in {"?", "*", "{"}:
        return _NOTHING
    return Anchor(atom.strings, whole=atom.whole and not quantifier)
