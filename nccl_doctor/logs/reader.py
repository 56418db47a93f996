"""From candidate lines to events: what a line says, on which rank and host, about which address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from nccl_doctor.logs.collectives import address_of, rank_of
from nccl_doctor.logs.facts import RULES, Facts
from nccl_doctor.logs.log import KEPT, LAST, Event, Reading
from nccl_doctor.logs.prefix import QUOTED, Prefix, decode, peel, quote, records, without_bars
from nccl_doctor.logs.rule import Grade, LogRule
from nccl_doctor.logs.scan import QUOTA, Line, Scanner, Table, table
from nccl_doctor.logs.signs import rules
from nccl_doctor.nccl.messages import meaning

TAIL = 32 << 10
"""Bytes that are kept of the end of a source."""

_CATALOGUED = {
    "nccl-unknown-error": Grade.GENERIC,
    "peer-died": Grade.SYMPTOM,
    "collective-timeout": Grade.SYMPTOM,
}
"""What a warning weighs that NCCL's catalogue knows and no rule does; others are LIKELY."""
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
        if rule.name == "nccl-unknown-error":  # each may be another one
            self._asked += 1
            return self._asked > QUOTA
        full = self.reading.counts[rule.name, rule.grade] >= self._most
        self.reading.counts[rule.name, rule.grade] += full
        return full

    def _event(self, rule: LogRule, match: re.Match[str], place: RecordPlace) -> Iterator[Event]:
        part = match.string
        prefix = peel(part)
        name, grade, message = rule.name, rule.grade, part[prefix.start :].strip() or part
        doubtful = name == "nccl-unknown-error" or (prefix.level == "WARN" and grade <= Grade.LIKELY)
        known = meaning(message) if doubtful else None
        if known is not None and (known.name == "benign" or name == "nccl-unknown-error"):
            name, grade = known.name, _CATALOGUED.get(known.name, Grade.LIKELY)
        if name == "benign":
            return
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
