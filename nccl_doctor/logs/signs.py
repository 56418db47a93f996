"""Collects the log patterns and the advice that the checks define for each diagnosis.

A check whose fault also appears in logs has a :class:`LogSigns` named ``SIGNS`` in its module. The advice is based on a
:class:`Case`, which combines a cause with the affected hosts and ranks and the log lines that show the cause.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from functools import cache
from typing import Any

from nccl_doctor.logs.facts import Interface, LoggedProcess
from nccl_doctor.logs.log import Cause, Event, Log, LoggedAddress, Reading, rank_of_file
from nccl_doctor.logs.rule import BENIGN, RAS_LINE, RECORDED, Grade, LogRule
from nccl_doctor.model.finding import Command, Fix, LogLine, Severity, on
from nccl_doctor.model.register import PACKAGE
from nccl_doctor.text.hostlist import fold, ranks_of
from nccl_doctor.text.shell import line

MOST_LINES = 5
"""Maximum number of log lines that are quoted as evidence for one cause."""

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_DEVICE = re.compile(
    r"\b((?:mlx[45](?:_bond|_ib)?|bnxt_re|[ei]rdma|hns|efa|rdmap\w*|qedr|rocep\w*|ibp\w*)_?\d+\w*)(?::(\d{1,3}))?"
)
"""Pattern for RDMA device names as assigned by the kernel drivers, with an optional port number."""

_LOCAL = re.compile(r"localhost(?:\.localdomain)?|ip6-localhost|127\..*|0\.0\.0\.0")

_OF_SUMMARY = ("killed", "script-failed")
"""Diagnoses that concern the process listed as the root cause in torchrun's failure summary."""

_SAFE = "bcdfghjklmnpqrstvwxz2456789"
"""Characters that Kubernetes uses in the random suffixes of pod names (k8s.io/apimachinery/pkg/util/rand)."""
_POD = re.compile(rf".+-[{_SAFE}]{{8,10}}-[{_SAFE}]{{5}}|.+-\d+-[{_SAFE}]{{5}}|[0-9a-f]{{12}}|.+\.svc(?:\..+)?")
"""Pattern for pod names of a Deployment or an indexed Job, container IDs, and service names."""
_OPERATED = re.compile(r"(.+)-(?:master|worker|launcher|chief|ps)(?:-\d+)?")
_HEADS = ("-master-0", "-launcher", "-chief-0")
"""Name suffixes of the head pod that Kubeflow's training operators create for every job."""


def reachable(names: Iterable[str]) -> list[str]:
    """Return the names that are not pod names; pods are omitted because they usually run no SSH server."""
    every = list(names)
    operated = {name[: -len(head)] for name in every for head in _HEADS if name.endswith(head)}
    matches = {name: _OPERATED.fullmatch(name) for name in every}
    return [name for name in every if not _POD.fullmatch(name) and not ((o := matches[name]) and o[1] in operated)]


@dataclass(frozen=True)
class Case:
    """A cause and the log in which the cause was found."""

    cause: Cause
    log: Log

    @property
    def first(self) -> Event:
        """The most informative event of the cause."""
        return self.cause.events[0]

    @property
    def hosts(self) -> tuple[str, ...]:
        placed = [(self.rank_of(event), event.prefix.host) for event in self.cause.events]
        # a rank and a host that no line names together are not one process
        ranked = any(rank is not None for rank, _ in placed)
        names = [host for rank, host in placed if host and (rank is not None or not ranked)]
        return tuple(dict.fromkeys(names or self._failed_hosts()))

    def _failed_hosts(self) -> list[str]:
        """Return the hosts that a launcher reports as failed.

        Only launcher messages in the same files as the events are considered. If the events name srun tasks, the
        messages must name at least one of these tasks.
        """
        files = {event.file for event in self.cause.events}
        tasks = {event.prefix.task for event in self.cause.events} - {None}
        named = [row for reading in self.log.readings if reading.name in files for row in reading.failed_hosts.items()]
        ranks = any(self.rank_of(event) is not None for event in self.cause.events)
        return [host for host, host_tasks in named if (host_tasks & tasks if tasks else not (host_tasks and ranks))]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that the events concern, in ascending order."""
        named = {rank for event in self.cause.events for rank in reported_ranks(event)}
        return tuple(sorted(named | {rank for rank in map(self.rank_of, self.cause.events) if rank is not None}))

    @property
    def address(self) -> LoggedAddress:
        """The first address in the events."""
        return next((e.address for e in self.cause.events if e.address != LoggedAddress()), LoggedAddress())

    @property
    def port(self) -> int | None:
        """The first port number in the events."""
        return next((e.address.port for e in self.cause.events if e.address.port), None)

    @property
    def count(self) -> int:
        """The number of log lines that show the fault, including lines whose events were not kept."""
        return max(self.log.counts[self.cause.name], len(self.cause.events))

    def rank_of(self, event: Event) -> int | None:
        """Return the rank of an event, as given by the log line, NCCL's output for the process, or the file name."""
        unlike = event.prefix.rank_is_task and self.log.facts.tasks_are_ranks is False
        if event.rank is not None and not (unlike and event.rank == event.prefix.task):
            return event.rank
        process = self.log.facts.process(event.prefix)
        return process.rank if process and process.rank is not None else rank_of_file(event.file)

    @property
    def _summary(self) -> tuple[int | None, str | None]:
        """The rank and host in torchrun's failure summary.

        The rank and the host are None if every failure summary is in a file that does not show the fault.
        """
        summaries = {reading.name for reading in self.log.readings if reading.summary}
        elsewhere = bool(summaries) and summaries.isdisjoint(event.file for event in self.cause.events)
        return (None, None) if elsewhere else (self.log.facts.summary_rank, self.log.facts.summary_host)

    def interface(self) -> Interface | None:
        """Return the network interface that NCCL chose on the affected host."""
        facts = self.log.facts
        own_process = facts.process(self.first.prefix)
        nearby: list[LoggedProcess] = [own_process] if own_process else []
        nearby += facts.of_host(self.first.prefix.host) or list(facts.processes.values())
        return next((process.interfaces[0] for process in nearby if process.interfaces), None)

    def entities(self, interface: Callable[[Case], str | None] | None = None) -> dict[str, Any]:
        """Return the report's entities, such as host and rank.

        The ``interface`` function can override the interface that is found in the log lines.
        """
        facts, address, nic = self.log.facts, self.address, self.interface()
        summary_rank, summary_host = self._summary
        ranks, hosts = [*(self.rank_of(event) for event in self.cause.events), summary_rank], self.hosts
        entities = {
            "host": next(iter(hosts), None) or address.host or summary_host,
            "ip": address.ip or (nic.address.partition("%")[0] if nic else self.first.prefix.ip),
            "port": self.port,
            "iface": (interface and interface(self)) or address.iface or (nic.name if nic else None) or facts.ifname,
            "rank": next((rank for rank in ranks if rank is not None), next(iter(facts.stated_ranks), None)),
            "nccl_version": next(iter(facts.nccl_versions), None),
            "torch_version": next(iter(facts.torch_versions), None),
        }
        return {name: value for name, value in entities.items() if value is not None}

    def adapter(self) -> str | None:
        """Return the name of the RDMA device in the log lines, without the port."""
        return self.device.partition(" ")[0] or None

    def interface_of(self, ip: str | None) -> str | None:
        interfaces = (interface for process in self.log.facts.processes.values() for interface in process.interfaces)
        return next((interface.name for interface in interfaces if interface.address.partition("%")[0] == ip), None)

    def evidence(self) -> tuple[LogLine, ...]:
        """Return up to MOST_LINES lines as evidence.

        The evidence consists of the first line for each pattern, the first line for each rank, and the last line.
        """
        chosen: dict[tuple[str, int], Event] = {}
        used_keys: set[tuple[str, object]] = set()
        for event in self.cause.events:
            keys = {("wording", event.wording), ("rank", self.rank_of(event))}
            if not keys <= used_keys and len(chosen) < MOST_LINES - 1:
                chosen.setdefault((event.file, event.line), event)
            used_keys |= keys
        last = self.cause.events[-1]
        chosen.setdefault((last.file, last.line), last)
        return tuple(LogLine(file=e.file, line=e.line, text=e.text) for e in chosen.values())

    def hinted(self, after: str) -> str:
        """Return the text after ``HINT: {after}`` in the cause's lines (NCCL 2.31 and later), or an empty string."""
        hints = (event.text.partition(f"HINT: {after}")[2] for event in self.cause.events)
        return next(filter(None, hints), "")

    @property
    def device(self) -> str:
        """The RDMA device and port in the log lines, or an empty string."""
        matches = (_DEVICE.search(event.text) for event in self.cause.events)
        match = next((item for item in matches if item), None)
        return "" if match is None else match[1] + (f" port {match[2]}" if match[2] else "")

    @property
    def who(self) -> str:
        """The affected ranks and hosts, such as ``ranks 8-15 on gpu[02-03]``, or ``a rank`` if unknown."""
        ranks, hosts, first = self.ranks, self.hosts, self._summary[0]
        if not ranks and first is not None and self.cause.name in _OF_SUMMARY:
            ranks = (first,)
        unlinked = self.log.facts.tasks_are_ranks is None
        tasks = unlinked and all(event.prefix.rank_is_task for event in self.cause.events)
        named = ranks_of(ranks, "task" if tasks else "rank") if ranks else ""
        place = fold([host for host in hosts if _HOST.fullmatch(host)])
        if named and place:
            return f"{named} on {place}"
        return named or place or "a rank"

    @property
    def target(self) -> str:
        """The remote end of the connection, such as ``10.0.0.1:53211 (gpu01)``, or ``another host`` if unknown."""
        address = self.address
        name = address.ip or address.host
        if name is None:
            return f"port {address.port}" if address.port else "another host"
        place = f"{name}:{address.port}" if address.port else name
        host = self.host_of(address.ip)
        return f"{place} ({host})" if host and host != name else place

    def host_of(self, ip: str | None) -> str | None:
        """Return the host to which NCCL's output assigns an IP address."""
        pairs = (
            (nic.address, process.host) for process in self.log.facts.processes.values() for nic in process.interfaces
        )
        return next((host for address, host in pairs if address.partition("%")[0] == ip), None)

    def check(self, extra: Iterable[str] = (), *, command: str = "check") -> tuple[Command, ...]:
        """Return an ``nccl-doctor`` command for the affected hosts, the remote host, and all hosts in NCCL's lines.

        The result is empty if the log names only the remote host, because a connection test needs two hosts.
        """
        address = self.address
        actors = [event.prefix.ip for event in self.cause.events if event.prefix.ip and not event.prefix.host]
        own_hosts = [*(self.hosts or actors), *extra]
        names = [*own_hosts, self.host_of(address.ip) or address.ip or address.host or ""]
        named = [name for name in dict.fromkeys((*names, *self.log.facts.hosts)) if _HOST.fullmatch(name)]
        fit = [name for name in reachable(named) if not _LOCAL.fullmatch(name)]
        if not fit or (fit == names[len(own_hosts) :] and fit[0] not in own_hosts):
            return ()
        return on(None, line("nccl-doctor {command} -w {hosts}", command=command, hosts=fold(fit)))


@dataclass(frozen=True)
class Advice:
    """A one-sentence description of a fault, and the fix."""

    message: str
    fix: Fix


WITH_THE_HOSTS = "with the job's hosts file, or -w and their names"
"""Arguments to suggest for a command of nccl-doctor if a log names no host."""
THEN = "Then see what the hosts say:"


def advise(message: str, summary: str, commands: tuple[Command, ...] = (), *, command: str = "check") -> Advice:
    """Return advice; a summary that ends with a colon and has no commands names ``command`` without host names."""
    announced = summary.endswith(":")
    if announced and not commands:
        summary = f"{summary[:-1]} (nccl-doctor {command} {WITH_THE_HOSTS})."
    elif commands and not announced:
        summary = f"{summary} {THEN}"
    return Advice(message, Fix(summary=summary, risk="safe" if commands else "manual", commands=commands))


_RANKS = re.compile(r"rank\(s\) \{?(\d[\d, -]{0,400})")


_LATE = re.compile(r"\b[Rr]anks? (\d[\d, ]{0,400}) (?:failed to|did not) (?:pass|reach) monitoredBarrier")


def reported_ranks(event: Event) -> tuple[int, ...]:
    """Return all ranks named in a line that one rank prints about other ranks.

    Examples of such lines are ``rank(s) {0-3,9} differ from rank 4`` (NCCL's diagnostics) and ``Ranks 2, 3 failed to
    pass monitoredBarrier`` (torch).
    """
    match = (_RANKS if event.prefix.level == "DIAG" else _LATE).search(event.text)
    parts = re.findall(r"(\d{1,6})(?: ?- ?(\d{1,6}))?", match[1]) if match else ()
    spans = (range(int(first), int(last or first) + 1) for first, last in parts)
    return tuple(itertools.islice(itertools.chain.from_iterable(spans), MOST_RANKS))


MOST_RANKS = 4096


def make_advice(
    message: str, summary: str, command: Callable[[Case], tuple[Command, ...]] | None = Case.check
) -> Callable[[Case], Advice]:
    """Return a function that creates advice from templates with the placeholders ``{who}`` and ``{target}``."""
    return lambda case: advise(
        message.format(who=case.who, target=case.target), summary, command(case) if command is not None else ()
    )


def ifname_command(case: Case) -> tuple[Command, ...]:
    """Return an ``nccl-doctor ifname`` command for the affected hosts, or for this machine if no host is known."""
    return case.check(command="ifname") or on(None, line("nccl-doctor ifname"))


def not_logged_in(why: str, summary: str) -> Callable[[Case], Advice]:
    """Return a function that creates advice for a launcher's failed SSH login to a host."""

    def advice(case: Case) -> Advice:
        host = case.address.host or case.address.ip or next(iter(case.hosts), "a host")
        return advise(f"The launcher could not log in to {host} by SSH: {why}.", summary, case.check((host,)))

    return advice


WAITS = "waits in "
"""Beginning of the message for a rank that did not complete a recorded call."""


def by_rank(case: Case) -> Advice:
    """Return advice with the state of up to three ranks, as reported by RAS or the flight recorder."""
    words = [_state(event) for event in case.cause.events[:3]]
    more = len(case.cause.events) - len(words)
    calls = [event.message for event in case.cause.events if event.wording == RECORDED]
    look = "Look at what the first of them did meanwhile (py-spy dump, its own log): the others wait for it."
    if case.cause.name == "collective-mismatch":
        look = "Compare these calls: every rank must make the same ones in the same order, with the same sizes."
    elif calls and all(call.startswith(WAITS) for call in calls):
        look = "Pass the dumps of all ranks to nccl-doctor logs: they show which rank is behind."
        if len(calls) > 1:
            look = (
                "No rank is behind: the data of that call does not arrive, or a kernel that was started before it on "
                "one of the GPUs never ends. nccl-doctor hang tells more of a job that still runs."
            )
    return advise("; ".join(words) + (f"; and {more} more" if more > 0 else "") + ".", look, case.check())


def _state(event: Event) -> str:
    """Return a rank and its state; RAS's text about ranks that it does not name contains their number."""
    if event.rank is None:
        return event.message if event.wording == RAS_LINE else f"a rank {event.message}"
    return f"{ranks_of([event.rank])} {event.message}"


class PassStage(IntEnum):
    """Stages in the analysis of a log's events, in execution order. Checks define the passes of each stage."""

    MEANING = 1
    """Diagnoses are refined based on addresses and on other log lines, and irrelevant events are removed."""
    RECOVERY = 2
    """Faults that the run survived or that occurred after its end are removed."""
    ENDING = 3
    """Processes that were terminated are separated from processes that failed, and earlier runs are discarded."""
    GIVING_UP = 4
    """Hints become faults if retries failed or no other fault explains the failure, and other hints are removed."""
    PLACES = 5
    """The subnets of the hosts' interfaces are compared, unless the run succeeded or wrapped lines were joined."""
    HANGS = 6
    """The point at which the run stopped is determined, unless the run succeeded or wrapped lines were joined."""
    CONSEQUENCES = 7
    """Faults that follow from other faults are separated from their causes."""
    RECORDS = 8
    """Collective calls of different ranks are compared, using log lines and flight-recorder dumps."""


@dataclass
class Scene:
    """The events of a log, and the context that passes use to evaluate the events.

    Attributes:
        log: the whole log or, from :attr:`PassStage.ENDING` on, only the last run.
        sources: maps the name of each source to its reading.
        stuck: names of diagnoses for which retries never succeeded or a process gave up.
        names: names of the faults found before hints are graded, except faults that only show that a process gave up.
    """

    events: list[Event]
    log: Log
    sources: dict[str, Reading]
    stuck: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def renamed(self, name: str, grade: Grade, meant: Callable[[Event], object]) -> list[Event]:
        return [replace(event, name=name, grade=grade) if meant(event) else event for event in self.events]


Pass = Callable[[Scene], list[Event]]
"""A function that returns the events to keep, possibly with changed names or grades."""


class Role(Enum):
    """The role of a diagnosis among the faults in a log."""

    ECHO = "ranks see it after any fault of another rank, so it is a cause only if nothing else is"
    NETWORK = "it is about the connection between hosts; its hints count if there are other such faults"
    WAITS = "a rank waited for others, which says nothing about the connection between hosts"
    DIALS = "a connection to a known name or address failed"
    RETRIED = "processes print it while they look for the master, and go on"
    GIVES_UP = "with a generic grade it says only that a process gave up"
    UNFINISHED = "it is the diagnosis of a log that ends before all ranks have connected"
    SILENT = "it is the diagnosis of a log that ends after all ranks have connected"
    OF_CATALOGUE = "NCCL's catalogue of messages takes precedence over its own patterns"


@dataclass(frozen=True)
class LogSigns:
    """The log patterns and advice for a diagnosis, defined as ``SIGNS`` in the module of its check.

    Attributes:
        rules: patterns for log lines; if several patterns of the same grade match a line, the first pattern counts.
        advice: function that creates the message and the fix.
        after: diagnoses that take precedence over this diagnosis if a line matches both with the same grade. If neither
            diagnosis takes precedence, the first one in alphabetical order is used.
        roles: roles of the diagnosis among the faults in a log.
        hint: grade that a hint of the diagnosis receives if the hint counts as a fault.
        hint_beside: hints count as faults if the log contains at least one of these faults (if empty, any fault), and
            all its faults are among these or echo another rank's fault (:attr:`Role.NETWORK` allows all faults between
            hosts instead). Hints also count as faults if the diagnosis is in :attr:`Scene.stuck`.
        weigh: function that returns the grade of a hint, used instead of ``hint`` and ``hint_beside``.
        passes: maps a stage to the function that processes a log's events; within a stage, passes run in alphabetical
            order of the diagnoses.
        catalogued: grade of a warning that is in NCCL's message catalogue but matches no other rule.
        ras: states of ranks and processes in NCCL RAS output that indicate the diagnosis, with their grades.
        interface: function that returns the interface or device of a case.
        severity: function that returns the severity of a case without consequences and with a grade up to LIKELY; None
            means ERROR.
        warning_up_to: highest grade at which a case without consequences is only a warning.
    """

    rules: tuple[LogRule, ...]
    advice: Callable[[Case], Advice]
    after: tuple[str, ...] = ()
    roles: frozenset[Role] = frozenset()
    hint: Grade = Grade.GENERIC
    hint_beside: tuple[str, ...] = ()
    weigh: Callable[[Event, Scene], Grade] | None = None
    passes: Mapping[PassStage, Pass] = field(default_factory=dict)
    catalogued: Grade = Grade.LIKELY
    ras: Mapping[str, Grade] = field(default_factory=dict)
    interface: Callable[[Case], str | None] | None = None
    severity: Callable[[Case], Severity | None] | None = None
    warning_up_to: Grade = Grade.BENIGN


@cache
def signs() -> dict[str, LogSigns]:
    """Return a mapping from the name of each diagnosis to its log signs, in order of precedence."""
    by_name: dict[str, LogSigns] = {}
    for module in pkgutil.walk_packages(importlib.import_module(PACKAGE).__path__, f"{PACKAGE}."):
        shown = getattr(importlib.import_module(module.name), "SIGNS", None)
        if shown is not None:
            by_name[module.name.rpartition(".")[2].replace("_", "-")] = shown
    ordered: dict[str, LogSigns] = {}

    def place(name: str, waiting: tuple[str, ...]) -> None:
        if name in waiting:
            raise ValueError(f"{' after '.join((*waiting, name))}")
        for earlier in by_name[name].after:
            place(earlier, (*waiting, name))
        ordered.setdefault(name, by_name[name])

    for name in sorted(by_name):
        place(name, ())
    return ordered


@cache
def rules() -> tuple[LogRule, ...]:
    """Return all rules; if several rules of the same grade match a line, the first rule counts."""
    return (*BENIGN, *(replace(rule, name=name) for name, shown in signs().items() for rule in shown.rules))


@cache
def having(role: Role) -> frozenset[str]:
    return frozenset(name for name, shown in signs().items() if role in shown.roles)


def echoes() -> frozenset[str]:
    """Return the names of diagnoses that are normally effects of another rank's fault."""
    return having(Role.ECHO)


@cache
def ras_states() -> dict[str, tuple[str, Grade]]:
    return {state: (name, grade) for name, shown in signs().items() for state, grade in shown.ras.items()}


def on_the_way() -> frozenset[str]:
    """Return the names of diagnoses about connections between hosts or about effects of another rank's fault."""
    return having(Role.ECHO) | having(Role.NETWORK)
