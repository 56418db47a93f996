"""From candidate lines to events: what a line says, on which rank and host, about which address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from nccl_doctor.logs.facts import RULES, Facts
from nccl_doctor.logs.log import KEPT, LAST, Address, Event, Reading
from nccl_doctor.logs.prefix import QUOTED, Prefix, decode, number, peel, quote, records, without_bars
from nccl_doctor.logs.rule import Grade, LogRule
from nccl_doctor.logs.scan import QUOTA, Line, Scanner, Table, table
from nccl_doctor.logs.signs import having, rules, signs
from nccl_doctor.nccl.messages import meaning

TAIL = 32 << 10
"""Bytes that are kept of the end of a source."""

_SOURCE = re.compile(r"(?:^|\W)raise (?:\w+\.)*\w+(?:\(|$)|(?:^|[\s(,=])f[\"'][^\"'{}]*\{[A-Za-z_]")
"""A line of a program's source in a stack: it holds the template of the message that follows."""


class RecordPlace(NamedTuple):
    """Where a record stands: its line, and all of that line."""

    number: int
    text: str


class Reader:
    """Reads one source block by block; :attr:`reading` grows with it."""

    def __init__(self, name: str, facts: Facts, first_order: int = 0) -> None:
        self.reading = Reading(name, facts)
        self._scanner = Scanner(_table())
        self.order = first_order
        self._most = KEPT
        self._asked = 0

    def feed(self, data: bytes) -> list[Event]:
        """Takes a block; returns the events that it completes."""
        self.reading.tail = (self.reading.tail + data if len(data) < TAIL else data)[-TAIL:]
        return self._take(self._scanner.feed(data))

    def close(self) -> list[Event]:
        """Takes the last line, where it has no end, and what was passed over among the last ones."""
        events = self._take(self._scanner.close())
        return events + self._last_words() if self._scanner.passed_over else events

    def _last_words(self) -> list[Event]:
        """The end of a source once more, where the wordings that stand there had been said too often before."""
        judged = {(event.line, event.wording) for event in self.reading.events}
        end = self.reading.tail[self.reading.tail.find(b"\n") + 1 :]
        before = self.reading.lines - end.count(b"\n")
        scanner, self._most = Scanner(_table()), KEPT + LAST
        self._asked = 0
        lines = [
            replace(line, number=line.number + before) for part in (scanner.feed(end), scanner.close()) for line in part
        ]
        events = [event for line in lines for event in self._judge(line) if (event.line, event.wording) not in judged]
        self.reading.events += events
        return events

    def _take(self, lines: Iterator[Line]) -> list[Event]:
        events = [event for line in lines for event in self._judge(line)]
        self.reading.bytes, self.reading.lines = self._scanner.bytes, self._scanner.lines
        self.reading.events += events
        return events

    def _judge(self, line: Line) -> Iterator[Event]:
        for piece in line.data.split(b"\r"):  # what a progress bar wrote over itself is no part of the message
            yield from self._judge_text(line, decode(piece))

    def _judge_text(self, line: Line, text: str) -> Iterator[Event]:
        shown, text = without_bars(text)
        for start, end in records(text):
            self.order += 1
            told = self._told(line, text[start:end])
            if told is not None and not self._said_before(told[0]):
                yield from self._event(*told, RecordPlace(line.number, shown))

    def _told(self, line: Line, part: str) -> tuple[LogRule, re.Match[str]] | None:
        """The weightiest rule that a record fits; facts are noted on the way."""
        wordings = rules()
        best: tuple[LogRule, re.Match[str]] | None = None
        prefix: Prefix | None = None
        for index in line.rules:
            if index >= len(wordings):
                fact = RULES[index - len(wordings)]
                stated = fact.compiled.search(part)
                if stated is not None:
                    prefix = prefix or peel(part)
                    self.reading.note(fact.kind, stated, line.number, prefix)
                    self.reading.facts.take(fact.kind, stated, prefix)
            elif (match := wordings[index].match(part)) and not _SOURCE.search(part):
                if wordings[index].grade is Grade.BENIGN:
                    return None
                if best is None or wordings[index].grade > best[0].grade:
                    best = (wordings[index], match)
        return best

    def _said_before(self, rule: LogRule) -> bool:
        """Whether so much is known of what a rule says that a further line is but counted, unread."""
        if rule.name in having("of_catalogue"):  # each may be another one
            self._asked += 1
            return self._asked > QUOTA
        full = self.reading.counts[rule.name, rule.grade] >= self._most
        self.reading.counts[rule.name, rule.grade] += full
        return full

    def _event(self, rule: LogRule, match: re.Match[str], place: RecordPlace) -> Iterator[Event]:
        part = match.string
        prefix = peel(part)
        name, grade, message = rule.name, rule.grade, part[prefix.start :].strip() or part
        general = name in having("of_catalogue")
        doubtful = general or (prefix.level == "WARN" and grade <= Grade.LIKELY)
        known = meaning(message) if doubtful else None
        if known is not None and known.name == "benign":
            return
        if known is not None and general:
            name = known.name
            grade = signs()[name].catalogued if name in signs() else Grade.LIKELY
        self.reading.counts[name, grade] += 1
        if self.reading.counts[name, grade] > self._most:
            return
        yield Event(
            name=name,
            grade=grade,
            wording=known.template if known else rule.pattern,
            file=self.reading.name,
            line=place.number,
            text=place.text.rstrip() if len(place.text) <= QUOTED else quote(part, match.start(), match.end()),
            message=message,
            prefix=prefix,
            address=address_of(match),
            rank=rank_of(match, prefix),
            order=self.order,
            catalogued=known,
        )


def _table() -> Table:
    """What the first pass looks for: all wordings, then all facts."""
    return table((*(rule.pattern for rule in rules()), *(rule.pattern for rule in RULES)))


_ADDRESSES: tuple[re.Pattern[str], ...] = tuple(
    map(
        re.compile,
        (
            r"remote=\[(?P<address>[^\]]+)\]:(?P<port>\d{1,5})",
            r"(?<![\w.])(?P<address>[\w.:-]+(?:%(?P<iface>[\w.-]+))?)<(?P<port>\d{1,5})>",
            r"\('?(?P<address>[\w.:-]+)'?, (?P<port>\d{1,5})\)",
            r"\bipv4:(?P<address>\d{1,3}(?:\.\d{1,3}){3}):(?P<port>\d{1,5})",
            r"\[(?P<address>[\w.:-]+(?:%(?P<iface>[\w.-]+))?)\]:(?P<port>\d{1,5})",
            r"(?<![\w.:/])(?P<address>\d{1,3}(?:\.\d{1,3}){3}):(?P<port>\d{1,5})(?!\d)",
            r"host (?P<address>[\w.-]+) port (?P<port>\d{1,5})",
            r"(?<![\w.:/])(?P<address>\d{1,3}(?:\.\d{1,3}){3})(?![\w.])",
        ),
    )
)
_IP = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}|[0-9a-fA-F]*:[0-9a-fA-F:.]+")
_UNSPECIFIED = {"0.0.0.0", "::", "?UNKNOWN?"}  # noqa: S104 - read in a log, not bound to
_OF_TORCH = re.compile(r"\[rank(?P<rank>\d{1,6})\]:")
"""What torch puts before its own lines, behind prefixes that nobody knows: a logger's, a document's."""
_RANKS = re.compile(r"\b[Rr]ank[ :=]{1,2}(?P<rank>\d{1,6})\b(?P<bare>)")
_RANKS_OTHERWISE = re.compile(r"(?:\(rank=|\brank\(s\) )(?P<rank>\d+)|Error: \[(?P<bare>\d{1,6})\](?: is |: params)")


def address_of(match: re.Match[str]) -> Address:
    """The address that the matched line is about: what the rule itself names, else the first that stands there."""
    named = match.groupdict()
    found = _address_in(match.string, match.start())
    port = named.get("port") or (found["port"] if found else None)
    address = named.get("ip") or named.get("host") or (found["address"] if found else None)
    iface = named.get("iface") or (found.get("iface") if found else None)
    if address in _UNSPECIFIED:
        address = None
    if address is not None:
        address = address.partition("%")[0].removeprefix("::ffff:")
    numeric = address is not None and _IP.fullmatch(address) is not None
    return Address(
        host=None if numeric else address,
        ip=address if numeric else None,
        port=number(port) if 0 < (number(port) or 0) < 65536 else None,
        iface=iface,
    )


def _address_in(text: str, start: int) -> dict[str, str] | None:
    """The first address from ``start`` on, by how plainly it is one; else the same before it."""
    for piece in (text[start : start + 600], text[max(0, start - 200) : start]):
        for pattern in _ADDRESSES:
            match = pattern.search(piece)
            if match is not None:
                groups = match.groupdict()
                return {
                    "port": groups.get("port") or "",
                    "address": groups["address"],
                    "iface": groups.get("iface") or "",
                }
    return None


def rank_of(match: re.Match[str], prefix: Prefix) -> int | None:
    """The rank that a line is about: named by the rule, by a prefix, or anywhere in the message."""
    named = match.groupdict().get("rank")
    if named is not None:
        return number(named)
    if prefix.rank is not None:
        return prefix.rank
    marked = _OF_TORCH.search(match.string)
    if marked is not None:
        return number(marked["rank"])
    stated = _RANKS.search(match.string, prefix.start) or _RANKS_OTHERWISE.search(match.string)
    return number(stated["rank"] or stated["bare"]) if stated else None
