"""Converts candidate lines to events, each with a diagnosis, rank, host, and address."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from nccl_doctor.logs.facts import RULES, Facts
from nccl_doctor.logs.log import KEPT, LAST, Event, LoggedAddress, Reading
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
from nccl_doctor.logs.scan import QUOTA, CandidateLine, PatternTable, Scanner, table
from nccl_doctor.logs.signs import Role, having, ras_states, rules, signs
from nccl_doctor.nccl.messages import meaning
from nccl_doctor.nccl.ras import Communicator, RankGroup, RasAnswer, parse_lines
from nccl_doctor.text.bounds import safe_regex

TAIL = 32 << 10
"""Number of bytes that are kept from the end of each source."""

_SOURCE = re.compile(r"(?:^|\W)raise (?:\w+\.)*\w+(?:\(|$)|(?:^|[\s(,=])f[\"'][^\"'{}]*\{[A-Za-z_]")
"""Pattern for a line of source code in a stack trace, which might contain the template of an error message."""


class Reader:
    """An incremental reader of one source, which stores its results in :attr:`reading`."""

    def __init__(self, name: str, facts: Facts, first_order: int = 0) -> None:
        self.reading = Reading(name, facts)
        self._scanner = Scanner(all_wordings())
        self.order = first_order
        self._most = KEPT
        self._asked = 0

    def feed(self, data: bytes) -> list[Event]:
        """Process a block of data and return the events in lines that the block completes."""
        self.reading.tail = (self.reading.tail + data if len(data) < TAIL else data)[-TAIL:]
        return self._take(self._scanner.feed(data))

    def close(self) -> list[Event]:
        """Process the incomplete last line and any lines skipped near the end, and return the events found."""
        events = self._take(self._scanner.close())
        return events + self._last_words() if self._scanner.passed_over else events

    def _last_words(self) -> list[Event]:
        """Return events at the end of the source that were skipped because a quota had been reached."""
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

    def _take(self, lines: Iterator[CandidateLine]) -> list[Event]:
        events = [event for line in lines for event in self._judge(line)]
        self.reading.bytes, self.reading.lines = self._scanner.bytes, self._scanner.lines
        self.reading.events += events
        return events

    def _judge(self, line: CandidateLine) -> Iterator[Event]:
        for piece in line.data.split(b"\r"):  # text that a progress bar overwrote is not part of the message
            shown, text = without_bars(decode(piece))
            for start, end in records(text):
                self.order += 1
                match = self._match(line, text[start:end])
                if match is not None and not self._is_enough(match[0]):
                    yield from self._event(*match, line.number, shown)

    def _match(self, line: CandidateLine, part: str) -> tuple[LogRule, re.Match[str]] | None:
        """Return the matching rule with the highest grade for a part of a line, and record the facts in this part."""
        wordings = rules()
        best: tuple[LogRule, re.Match[str]] | None = None
        prefix: Prefix | None = None
        is_benign = False
        for index in line.rules:
            if index >= len(wordings):
                fact = RULES[index - len(wordings)]
                stated = fact.compiled.search(part)
                if stated is not None:
                    prefix = prefix or peel(part)
                    self.reading.note(fact.kind, stated, line.number, prefix)
                    self.reading.facts.take(fact.kind, stated, prefix)
            elif (match := wordings[index].match(part)) and not _SOURCE.search(part):
                is_benign = is_benign or wordings[index].grade is Grade.BENIGN
                if best is None or wordings[index].grade > best[0].grade:
                    best = (wordings[index], match)
        return None if is_benign else best

    def _is_enough(self, rule: LogRule) -> bool:
        """Return whether the limit on lines for the rule has been reached; if so, no event is stored for the line."""
        if rule.name in having(Role.OF_CATALOGUE):  # each may be another one
            self._asked += 1
            return self._asked > QUOTA
        full = self.reading.counts[rule.name, rule.grade] >= self._most
        self.reading.counts[rule.name, rule.grade] += full
        return full

    def _event(self, rule: LogRule, match: re.Match[str], number: int, shown: str) -> Iterator[Event]:
        part = match.string
        prefix = peel(part)
        # a rank prints it for all others: the rank named in it is at fault, not the one that prints it
        if _REPORT in part:
            prefix = replace(prefix, host=match.groupdict().get("host"), rank=None, pid=None)
        if not prefix.rank_is_task:
            self.reading.facts.note_task(prefix, prefix.rank)
        name, grade, message = rule.name, rule.grade, part[prefix.start :].strip() or part
        general = name in having(Role.OF_CATALOGUE)
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
            line=number,
            text=shown.rstrip() if len(shown) <= QUOTED else quote(part, match.start(), match.end()),
            message=message,
            prefix=prefix,
            address=address_of(match, prefix.start),
            rank=rank_of(match, prefix),
            order=self.order,
            catalogued=known,
        )


_REPORT = "NCCL DIAG "
"""Prefix of lines that NCCL 2.31 and later print with NCCL_RUN_DIAGNOSTICS or NCCL_RUN_RAS_DIAGNOSTICS."""


def all_wordings() -> PatternTable:
    """Return a table of all patterns for log lines, in which the patterns for facts follow the patterns for faults."""
    return table((*(rule.expression for rule in rules()), *(rule.pattern for rule in RULES)))


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
"""Pattern for torch's own prefix, such as ``[rank3]:``, which might follow an unknown prefix."""
_RANKS = re.compile(r"\b[Rr]ank[ :=]{1,2}(?P<rank>\d{1,6})\b(?P<bare>)")
_RANKS_OTHERWISE = re.compile(r"(?:\(rank=|\brank\(s\) \{?)(?P<rank>\d+)|Error: \[(?P<bare>\d{1,6})\](?: is |: params)")


def address_of(match: re.Match[str], prefixed: int) -> LoggedAddress:
    """Return the address to which a line refers, from the pattern's named groups or else from the rest of the line.

    Args:
        match: match of the rule's pattern.
        prefixed: length of the line's prefixes, which might contain the address of the process that prints the line.
    """
    named = match.groupdict()
    parts = _address_in(match.string, match.start(), prefixed)
    port = named.get("port") or (parts["port"] if parts else None)
    address = named.get("ip") or named.get("host") or (parts["address"] if parts else None)
    iface = named.get("iface") or (parts.get("iface") if parts else None)
    if address in _UNSPECIFIED:
        address = None
    if address is not None:
        address = address.partition("%")[0].removeprefix("::ffff:")
    numeric = address is not None and _IP.fullmatch(address) is not None
    return LoggedAddress(
        host=None if numeric else address,
        ip=address if numeric else None,
        port=number(port) if 0 < (number(port) or 0) < 65536 else None,
        iface=iface,
    )


def _address_in(text: str, start: int, prefixed: int) -> dict[str, str] | None:
    """Return an address after ``start`` or else before ``start``; more reliable notations take precedence."""
    for piece in (text[start : start + 600], text[max(prefixed, start - 200) : start]):
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
    """Return the rank to which a line refers, from the pattern's named groups, a prefix, or the message."""
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
    """Return the events from NCCL RAS output in a log.

    Each event is placed at the line that names the event's rank or process.
    """
    lines = [event for event in events if event.wording == RAS_LINE]
    if not lines:
        return []
    pairs = ((event.message, _BEGINS.search(event.message)) for event in lines)
    bare = (message[begins.start() :] if begins else message for message, begins in pairs)
    return list(_ras_events(parse_lines(bare), lines))


def from_answer(answer: RasAnswer, event: Event) -> list[Event]:
    """Return at most ``KEPT`` events from a RAS response, each with the file and line of ``event``."""
    return list(islice(_ras_events(answer, [event]), KEPT))


def _ras_events(answer: RasAnswer, lines: Sequence[Event]) -> Iterator[Event]:
    ranks: dict[tuple[str | None, int | None], int] = {}  # the first line of each process
    for communicator in answer.communicators:
        for rank in (*communicator.missing, *(rank for group in communicator.groups for rank in group.ranks)):
            ranks.setdefault((rank.host, rank.pid), rank.rank)
    lost = [(process, RAS_DEAD, "is dead for RAS, which no longer reaches it") for process in answer.dead]
    lost += [(peer, RAS_SILENT, "does not answer RAS: it is stopped, stuck or cut off") for peer in answer.missing]
    for process, state, what in lost:
        text = f"process {process.pid} on {process.host} (GPU {','.join(map(str, process.gpus))}) {what}"
        words, rank_of_it = f"Process {process.pid} on node {process.host}", ranks.get((process.host, process.pid))
        yield _ras_event(lines, words, state, text, process.host, rank_of_it)
    known = {(process.host, process.pid) for process, _, _ in lost}
    for communicator in answer.communicators:
        for rank in communicator.missing:
            if (rank.host, rank.pid) not in known:
                place = f" on {rank.host} (process {rank.pid})" if rank.host else ""
                text = f"rank {rank.rank}{place} gave RAS no data"
                yield _ras_event(lines, f"Rank {rank.rank} ", RAS_SILENT, text, rank.host, rank.rank)
        for group, state, what in _telling_groups(communicator):
            for rank in group.ranks:
                text = f"on {rank.host} (process {rank.pid}) {what}" if rank.host else what
                yield _ras_event(lines, f"Rank {rank.rank} ", state, text, rank.host, rank.rank)
            if not group.ranks:
                yield _ras_event(lines, f"{group.size} ranks ", state, f"{group.size} ranks {what}", None, None)


def _telling_groups(communicator: Communicator) -> Iterator[tuple[RankGroup, str, str]]:
    """Yield the groups of ranks that RAS reports as failed, behind, or in a different state from most ranks.

    Each group is yielded with its RAS state and a description.
    """
    for group in communicator.groups:
        if group.topic == "error":
            state = str(group.value) if str(group.value) in ras_states() else RAS_ERROR
            yield group, state, f'reported "{group.value}"'
    statuses = sorted((entry for entry in communicator.groups if entry.topic == "status"), key=lambda entry: entry.size)
    for group in statuses[:-1]:
        state = RAS_STARTING if group.value == RAS_STARTING else RAS_LEFT
        has = "has" if group.ranks else "have"
        yield group, state, f"{has} status {group.value}, which the others have not"
    for collective, groups in communicator.launched().items():
        most = groups[-1]
        for group in groups[:-1]:
            text = f"launched {collective} {group.value} times, while {most.size} ranks have {most.value}"
            yield group, RAS_BEHIND, text


def _ras_event(lines: Sequence[Event], words: str, state: str, text: str, host: str | None, rank: int | None) -> Event:
    """Return an event at the line that contains ``words``, or at the first line if there is no such line."""
    line = next((line for line in lines if words in line.message), lines[0])
    name, grade = ras_states()[state]
    prefix = replace(line.prefix, host=host, rank=None)
    return replace(line, name=name, grade=grade, message=text, address=LoggedAddress(ip=host), rank=rank, prefix=prefix)
