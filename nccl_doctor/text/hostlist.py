"""Expands and folds lists of host names such as ``node[01-04,07],login``, as used by Slurm, pdsh, and clush."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, TypeVar

MAX_HOSTS = 65_536  # a longer list is a typo, such as ``node[1-99999999]``, and would fill the memory

_MAX_NAME = 320
"""Maximum length of ``user@host``, rounded up.

A user name has up to 64 characters, and a host name up to 253 (RFC 1035, 2.3.4).
"""

_MAX_DIGITS = 18
_PIECE = re.compile(r"\[[^\[\]]*\]|[^\[\],]+|[\[\],]")
_RANGE = re.compile(rf"([0-9]{{1,{_MAX_DIGITS}}})(?:-([0-9]{{1,{_MAX_DIGITS}}}))?")
_NUMBER = re.compile(r"[0-9]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Group the second elements of pairs by the first elements, in the original order."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def nouns(count: int, noun: str) -> str:
    """Return the singular or plural of a noun, depending on ``count``, such as ``rank`` or ``ranks``."""
    return noun if count == 1 else f"{noun}s"


def figure(value: float, digits: int = 2) -> str:
    """Format a number with ``digits`` significant digits (0.25), or as an integer if the integer is longer (150)."""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:.0f}"


def listed(words: Iterable[str], most: int = 8) -> str:
    """Return the words as a list for use in a sentence, such as "a, b and c" or "a, b and 5 more"."""
    some = list(words)
    last = f"{len(some) - most} more" if len(some) > most else "".join(some[-1:])
    return " and ".join(filter(None, (", ".join(some[:most] if len(some) > most else some[:-1]), last)))


def plural(count: int, noun: str) -> str:
    """Return a count followed by a noun, such as ``1 error`` or ``2 errors``."""
    return f"{count} {nouns(count, noun)}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def has_control(text: str) -> bool:
    """Return whether a string contains control characters, line breaks, lone surrogates, or bidirectional controls."""
    return _CONTROL.search(text) is not None


def quoted(text: str, limit: int = 60) -> str:
    """Return ``text`` in double quotes for use in a sentence, shortened and without unprintable characters."""
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return '"' + "".join(char if char.isprintable() else "?" for char in shown) + '"'


class _Range(NamedTuple):
    """The numbers from ``low`` to ``high``, padded with zeros to ``width``."""

    low: int
    high: int
    width: int

    def texts(self) -> Iterator[str]:
        return (f"{number:0{self.width}d}" for number in range(self.low, self.high + 1))


_Part = str | list[_Range]


def expand(pattern: str, *, limit: int = MAX_HOSTS) -> list[str]:
    """Return the names that ``pattern`` denotes, in the pattern's order; raise ValueError if the pattern is invalid.

    If a pattern contains several pairs of brackets, the numbers in the last pair vary fastest, as in pdsh. Zero padding
    is preserved, so ``[08-10]`` yields 08, 09, and 10. Duplicate names are preserved. The ``limit`` on the number of
    names is checked before any names are created.
    """
    items = list(_items(",".join(piece.strip() for piece in pattern.split(","))))
    count = sum(math.prod(_size(part) for part in item) for item in items)
    if count > limit:
        more = " more" if limit < MAX_HOSTS else ""
        raise ValueError(f"{quoted(pattern)} stands for {count} hosts; at most {limit}{more} are allowed")
    return ["".join(name) for item in items for name in itertools.product(*map(_texts, item))]


def _items(pattern: str) -> Iterator[list[_Part]]:
    parts: list[_Part] = []
    for piece in [*_PIECE.findall(pattern), ","]:
        if piece == ",":
            if not parts:
                raise ValueError(f"{quoted(pattern)} has an empty name; separate names by single commas")
            if sum(map(_longest, parts)) > _MAX_NAME:
                raise ValueError(f"{quoted(pattern)} holds a name that is longer than a host name may be")
            yield parts
            parts = []
        elif piece in ("[", "]"):
            raise ValueError(f'{quoted(pattern)} has an unmatched "{piece}"; write node[01-04,07]')
        else:
            parts.append([_range(text, pattern) for text in piece[1:-1].split(",")] if piece[0] == "[" else piece)


def _range(text: str, pattern: str) -> _Range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{quoted(pattern)}: {quoted(text)} is not a range; brackets hold numbers and ranges, as in node[01-04,07]"
        )
    low, high = match[1], match[2] or match[1]
    if int(high) < int(low):
        raise ValueError(f"{quoted(pattern)}: the range {quoted(text)} runs backwards; write the smaller number first")
    if len(high) < len(low) or (high[0] == "0" and len(high) > len(low)):
        raise ValueError(f"{quoted(pattern)}: the ends of {quoted(text)} are padded differently; pad both alike")
    return _Range(int(low), int(high), len(low) if low[0] == "0" else 1)


def _size(part: _Part) -> int:
    return 1 if isinstance(part, str) else sum(r.high - r.low + 1 for r in part)


def _longest(part: _Part) -> int:
    return len(part) if isinstance(part, str) else max(max(r.width, len(str(r.high))) for r in part)


def _texts(part: _Part) -> Iterable[str]:
    return (part,) if isinstance(part, str) else itertools.chain.from_iterable(r.texts() for r in part)


def fold_numbers(numbers: Iterable[object]) -> str:
    """Return numbers folded into ranges, such as ``0-2,7``."""
    return fold(map(str, numbers)).strip("[]")


def fold(names: Iterable[str]) -> str:
    """Fold names into a pattern such as ``node[1-3,7],big`` for :func:`expand`; duplicates are dropped."""
    return _folded(tuple(dict.fromkeys(names)))


@lru_cache(256)  # most verdicts of a run are about all hosts
def _folded(names: tuple[str, ...]) -> str:
    """Fold names; names that differ in only one number, with the same padding, share a pair of brackets."""
    spots = {name: _spots(name) for name in names}
    members = Counter(around for parts in spots.values() for around, _ in parts)
    chosen = {name: max(reversed(parts), key=lambda spot: members[spot[0]]) for name, parts in spots.items() if parts}
    padded = grouped(
        (around, len(number)) for around, number in chosen.values() if number[0] == "0" and len(number) > 1
    )
    groups: dict[tuple[str, str, int], list[str]] = {}
    for name in names:
        if name not in chosen:
            groups[name, "", -1] = []
            continue
        around, number = chosen[name]
        width = max((w for w in padded.get(around, ()) if w <= len(number)), default=0)
        groups.setdefault((*around, width), []).append(number)
    return ",".join(prefix + _bracket(numbers) + suffix for (prefix, suffix, _), numbers in groups.items())


def _spots(name: str) -> list[tuple[tuple[str, str], str]]:
    """Return each number in a name, with the text before and after the number."""
    if len(name) > _MAX_NAME or any(char in "[]," or char.isspace() for char in name):
        return []
    matches = (match for match in _NUMBER.finditer(name) if len(match[0]) <= _MAX_DIGITS)
    return [((name[: match.start()], name[match.end() :]), match[0]) for match in matches]


def _bracket(numbers: list[str]) -> str:
    """Return numbers in brackets, such as ``[1-3,7]``.

    A single number is returned without brackets, and the result for an empty list is "".
    """
    if len(numbers) < 2:
        return "".join(numbers)
    runs: list[list[str]] = []
    for number in sorted(numbers, key=int):
        if runs and int(number) == int(runs[-1][-1]) + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "[" + ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) + "]"


def ranks_of(ranks: Iterable[int], noun: str = "rank") -> str:
    """Return the ranks as text, such as ``rank 3`` or ``ranks 0-2,7``."""
    names = sorted(ranks)
    return f"{nouns(len(names), noun)} {fold_numbers(names)}"
