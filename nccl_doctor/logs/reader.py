"""From candidate lines to events: what a line says, on which rank and host, about which address."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from nccl_doctor.logs.facts import RULES, Facts
from nccl_doctor.logs.log import KEPT, LAST, Address, Event, Reading
from nccl_doctor.logs.prefix import QUOTED, Prefix, decode, number, peel, quote, records, without_bars
from nccl_doctor.logs.rule import (
    RAS_BEHIND,
    RAS_DEAD,
    RAS_ERROR,
    RAS_LEFT,
    RAS_LINE,
    RAS_SILENT,
    RAS_STARTING,
    Grade,
    LogRule,
)
from nccl_doctor.logs.scan import QUOTA, Line, Scanner, Table, table
from nccl_doctor.logs.signs import having, ras_states, rules, signs
from nccl_doctor.nccl.messages import meaning
from nccl_doctor.nccl.ras import Communicator, RankGroup, RasAnswer, RasProcess, RasRank, parse_lines
from nccl_doctor.text.bounds import safe_regex

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
        self._scanner = Scanner(all_wordings())
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
        scanner, self._most = Scanner(all_wordings()), KEPT + LAST
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
            match = self._match(line, text[start:end])
            if match is not None and not self._is_enough(match[0]):
                yield from self._event(*match, RecordPlace(line.number, shown))

    def _match(self, line: Line, part: str) -> tuple[LogRule, re.Match[str]] | None:
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

    def _is_enough(self, rule: LogRule) -> bool:
        """Counts the line unread where enough is known of what its rule says."""
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


def all_wordings() -> Table:
    """Makes the table of the first pass: all wordings, then all facts."""
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
            r"host (?P<address>[\w.-]+)(?: port |:)(?P<port>\d{1,5})",
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


_BEGINS = safe_regex(r"Process \d|Rank \d|#\d|\d+ (?:ranks?|job process)|Missing communicator|Communicator ranks")


def from_text(events: Sequence[Event]) -> list[Event]:
    """Events of RAS' lines of a source; each stands on the line that names its rank or process."""
    lines = [event for event in events if event.wording == RAS_LINE]
    if not lines:
        return []
    return list(_ras_events(parse_lines(_bare(event.message) for event in lines), lines))


def _bare(message: str) -> str:
    """The line without the prefixes that no rule peels: RAS indents its lines."""
    begins = _BEGINS.search(message)
    return message[begins.start() :] if begins else message


def from_answer(answer: RasAnswer, event: Event) -> list[Event]:
    """Events of an answer, at most as many as are kept of a log; ``event`` stands for its file."""
    return list(islice(_ras_events(answer, [event]), KEPT))


def _ras_events(answer: RasAnswer, lines: Sequence[Event]) -> Iterator[Event]:
    ranks = _ras_ranks(answer)
    for process in answer.dead:
        yield _of_process(process, RAS_DEAD, ranks, "is dead for RAS, which no longer reaches it", lines)
    for process in answer.missing:
        yield _of_process(process, RAS_SILENT, ranks, "does not answer RAS: it is stopped, stuck or cut off", lines)
    known = {(process.host, process.pid) for process in (*answer.dead, *answer.missing)}
    for communicator in answer.communicators:
        for rank in communicator.missing:
            if (rank.host, rank.pid) not in known:
                yield _ras_of_rank(rank, RAS_SILENT, f"{_who(rank)} gave RAS no data", lines)
        yield from _of_errors(communicator, lines)
        yield from _of_statuses(communicator, lines)
        yield from _of_counts(communicator, lines)


def _ras_ranks(answer: RasAnswer) -> dict[tuple[str | None, int | None], int]:
    """The first rank of each process that the answer names one of."""
    found: dict[tuple[str | None, int | None], int] = {}
    for communicator in answer.communicators:
        for rank in (*communicator.missing, *(rank for group in communicator.groups for rank in group.ranks)):
            found.setdefault((rank.host, rank.pid), rank.rank)
    return found


def _of_process(
    process: RasProcess, state: str, ranks: dict[tuple[str | None, int | None], int], what: str, lines: Sequence[Event]
) -> Event:
    gpus = ",".join(map(str, process.gpus))
    text = f"process {process.pid} on {process.host} (GPU {gpus}) {what}"
    line = _ras_line(lines, f"Process {process.pid} on node {process.host}")
    return _ras_event(line, state, text, process.host, ranks.get((process.host, process.pid)))


def _of_errors(communicator: Communicator, lines: Sequence[Event]) -> Iterator[Event]:
    for group in communicator.groups:
        if group.topic == "error":
            state = str(group.value) if str(group.value) in ras_states() else RAS_ERROR
            yield from _of_group(group, state, f'reported "{group.value}"', lines)


def _of_statuses(communicator: Communicator, lines: Sequence[Event]) -> Iterator[Event]:
    """Ranks that left a communicator which others still use."""
    statuses = [group for group in communicator.groups if group.topic == "status"]
    for group in sorted(statuses, key=lambda status: status.size)[: max(len(statuses) - 1, 0)]:
        state = RAS_STARTING if group.value == RAS_STARTING else RAS_LEFT
        yield from _of_group(group, state, f"has status {group.value}, which the others have not", lines)


def _of_counts(communicator: Communicator, lines: Sequence[Event]) -> Iterator[Event]:
    """The ranks behind: that others are ahead is what shows it."""
    for collective, groups in communicator.launched().items():
        furthest = groups[-1]
        for group in groups[:-1]:
            text = f"launched {collective} {group.value} times, while {furthest.size} ranks have {furthest.value}"
            yield from _of_group(group, RAS_BEHIND, text, lines)


def _of_group(group: RankGroup, state: str, what: str, lines: Sequence[Event]) -> Iterator[Event]:
    for rank in group.ranks:
        yield _ras_of_rank(rank, state, f"on {rank.host} (process {rank.pid}) {what}" if rank.host else what, lines)
    if not group.ranks:
        text = f"of {group.size} ranks {what}"
        yield _ras_event(_ras_line(lines, f"{group.size} ranks "), state, text, None, None)


def _ras_of_rank(rank: RasRank, state: str, text: str, lines: Sequence[Event]) -> Event:
    return _ras_event(_ras_line(lines, f"Rank {rank.rank} "), state, text, rank.host, rank.rank)


def _who(rank: RasRank) -> str:
    return f"rank {rank.rank} on {rank.host} (process {rank.pid})" if rank.host else f"rank {rank.rank}"


def _ras_line(lines: Sequence[Event], words: str) -> Event:
    """The line that holds these words; a file of JSON has one alone."""
    return next((line for line in lines if words in line.message), lines[0])


def _ras_event(line: Event, state: str, text: str, host: str | None, rank: int | None) -> Event:
    name, grade = ras_states()[state]
    prefix = replace(line.prefix, host=host, rank=None)
    return replace(line, name=name, grade=grade, message=text, address=Address(ip=host), rank=rank, prefix=prefix)
