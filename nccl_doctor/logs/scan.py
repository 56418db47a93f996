"""Finds the lines that any rule may match, in blocks, by one pass of Hyperscan over strings that matches must hold.

Hyperscan finds hundreds of plain strings in one pass at the speed of memory, while ``A.*B`` makes it walk an automaton
through every line that holds A. So the first pass looks for strings of which every match holds at least one, and RE2
then judges the few lines that hold one: it names what stands in them, in time that grows with the text alone.

Measured on 500 MB of a 512-rank log on one core of an AMD EPYC, where ``grep -cE`` of five words takes 0.24 to 0.27 s:

- Hyperscan: 0.15 s for 93 and for 303 strings, 0.30 s for 1,759; the rules' regular expressions themselves 0.6 to 1.0 s
- RE2: 0.85 s for the five words of ``grep``, 0.94 s for all strings; below 64 MiB of states it falls back to its slow
  automaton, which takes a thousand times as long
- ahocorasick-rs: 0.22 s up to 64 strings, from there on 0.72 s (DFA) or 1.07 s (contiguous NFA)
- a Python loop over lines with one ``in``: 0.81 s, for one string
- counting the line ends, for line numbers: 0.17 to 0.22 s in blocks of up to 1 MB, more in larger ones
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import hyperscan

from nccl_doctor.logs.prefix import plain

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
        """The common promise of the alternatives up to the end of their group."""
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
        """The promise of an atom with its quantifier."""
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
    """The promise of an atom that may stand there several times or not at all."""
    if quantifier == "?" and atom.whole:
        return Anchor(atom.strings | {""}, whole=True)
    if quantifier in {"?", "*", "{"}:
        return _NOTHING
    return Anchor(atom.strings, whole=atom.whole and not quantifier)


MAX_LINE = 1 << 20
"""A longer line is read in pieces of this size, so that a file without line ends needs no more memory than others."""

WINDOW = 2048
"""Of a longer line so many bytes around what was found are judged at a time: the rest is data, or made to cost time."""

WINDOWS = 64
"""So many of these are judged of one source; its end is judged whatever came before."""

QUOTA = 2048
"""Lines of one source that an anchor may send to be judged. What is said that often has been said: a log of a million
equal errors costs no more than one of two thousand. The end of a source is judged whatever came before."""

_WASTED = 100_000
"""So many hits of anchors that have used up their lines make it worth while to look for the others alone."""


@dataclass(frozen=True)
class Line:
    """A candidate: its number from 1, its bytes without the line end, and the rules whose anchors it holds."""

    number: int
    data: bytes
    rules: tuple[int, ...]


class Table:
    """Patterns made ready for the first pass."""

    def __init__(self, patterns: Sequence[str]) -> None:
        by_string: dict[tuple[str, bool], set[int]] = {}
        for index, pattern in enumerate(patterns):
            found = anchor(pattern)
            if not found.worth:
                raise ValueError(f"the pattern {pattern!r} has no anchor: every line would have to be read for it")
            for string in found.strings:
                by_string.setdefault((string, "(?i:" in pattern), set()).add(index)
        self.rules = [tuple(sorted(rules)) for rules in by_string.values()]
        self._strings = list(by_string)
        self._database = self._compiled(frozenset())

    def _compiled(self, spent: frozenset[int]) -> hyperscan.Database:
        ids = [identity for identity in range(len(self._strings)) if identity not in spent]
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        database.compile(
            expressions=[re.escape(self._strings[identity][0]).encode() for identity in ids],
            ids=ids,
            elements=len(ids),
            flags=[hyperscan.HS_FLAG_CASELESS if self._strings[identity][1] else 0 for identity in ids],
        )
        return database

    def without(self, spent: frozenset[int]) -> Table:
        """The same that looks for fewer strings; their numbers stay."""
        fewer = Table.__new__(Table)
        fewer.__dict__.update(self.__dict__, _database=self._compiled(spent))
        return fewer

    def hits(self, data: memoryview) -> list[tuple[int, int]]:
        """(end, anchor) of each anchor in ``data``, by place."""
        found: list[tuple[int, int]] = []

        def note(identity: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found.append((end, identity))

        self._database.scan(data, match_event_handler=note)  # type: ignore[type-var]  # any buffer will do
        found.sort()
        return found


@cache
def table(patterns: tuple[str, ...]) -> Table:
    """The compiled table of these patterns, made once a process."""
    return Table(patterns)


class Scanner:
    """Cuts one source into lines and yields those that are candidates.

    Attributes:
        bytes: how much was read.
    """

    def __init__(self, rules: Table) -> None:
        self._table = rules
        self._rest = b""
        self._line = 1
        self._spent = [0] * len(rules.rules)
        self._wasted = 0
        self._windows = 0
        self.bytes = 0

    @property
    def spent(self) -> frozenset[int]:
        """The anchors whose further lines were passed over."""
        return frozenset(identity for identity, lines in enumerate(self._spent) if lines >= QUOTA)

    @property
    def passed_over(self) -> bool:
        """Something that was found was not judged."""
        return self._windows > WINDOWS or bool(self.spent)

    @property
    def lines(self) -> int:
        """How many lines have ended up to now."""
        return self._line - 1

    def feed(self, data: bytes) -> Iterator[Line]:
        """The candidates of the lines that ``data`` completes."""
        self.bytes += len(data)
        first, last = data.find(b"\n") + 1, data.rfind(b"\n") + 1
        if not first:
            self._rest += data
            if len(self._rest) > MAX_LINE:
                yield from self.close()
            return
        if self._rest:
            yield from self._block(self._rest + data[:first], 0, len(self._rest) + first)
        else:
            first = 0
        self._rest = data[last:]
        yield from self._block(data, first, last)

    def close(self) -> Iterator[Line]:
        """The candidate that ends without a line end, if it is one."""
        block, self._rest = self._rest, b""
        yield from self._block(block, 0, len(block))

    def _is_spent(self, identity: int) -> bool:
        spent = self._spent[identity] >= QUOTA
        self._wasted += spent
        return spent

    def _block(self, data: bytes, first: int, last: int) -> Iterator[Line]:
        """The candidates in ``data`` from ``first`` to ``last``; not copied, which would cost as much as the scan."""
        if data.find(b"\x1b", first, last) >= 0:
            data = plain(data[first:last])
            first, last = 0, len(data)
        counted, start, end, rules, skip = first, first, -1, set[int](), -1
        for distance, identity in self._table.hits(memoryview(data)[first:last]):
            place = first + distance
            if place <= skip or self._is_spent(identity):
                continue
            if place > end:
                if rules:
                    yield Line(self._line, data[start:end], tuple(sorted(rules)))
                start = max(data.rfind(b"\n", first, place) + 1, first)
                self._line += data.count(b"\n", counted, start)
                end = data.find(b"\n", place, last)
                end = last if end < 0 else end
                counted, rules = start, set()
                if end - start > WINDOW:
                    self._windows += 1
                    if self._windows > WINDOWS:
                        skip = end
                        continue
                    start, end = max(start, place - WINDOW // 2), min(end, place + WINDOW // 2)
            self._spent[identity] += 1
            rules.update(self._table.rules[identity])
        if rules:
            yield Line(self._line, data[start:end], tuple(sorted(rules)))
        self._line += data.count(b"\n", counted, last)
        if self._wasted >= _WASTED and len(self.spent) < len(self._spent):
            self._table, self._wasted = self._table.without(self.spent), 0
