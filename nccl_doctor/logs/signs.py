"""How logs show a diagnosis, and what to say of a case of it; found by walking the checks: a file a diagnosis.

A check whose fault logs show, too, has its :class:`LogSigns` as ``SIGNS`` in its module. Its advice is given of a
:class:`Case`: a cause with whom it concerns, which lines prove it, and what it names.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache
from typing import Any, Literal

from nccl_doctor.logs.facts import Interface, Process
from nccl_doctor.logs.log import Address, Cause, Event, Log, Reading, rank_of_file
from nccl_doctor.logs.rule import BENIGN, Grade, LogRule
from nccl_doctor.model.finding import Command, Fix, LogLine, Severity, on
from nccl_doctor.model.register import PACKAGE
from nccl_doctor.text.hostlist import fold, ranks_of
from nccl_doctor.text.shell import line

MOST_LINES = 5
"""Number of lines that are quoted for one cause."""

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_DEVICE = re.compile(
    r"\b((?:mlx[45](?:_bond|_ib)?|bnxt_re|[ei]rdma|hns|efa|rdmap\w*|qedr|rocep\w*|ibp\w*)_?\d+\w*)(?::(\d{1,3}))?"
)
"""Names of RDMA devices, as the kernel's drivers give them."""

_LOCAL = re.compile(r"localhost(?:\.localdomain)?|ip6-localhost|127\..*|0\.0\.0\.0")

_SAFE = "bcdfghjklmnpqrstvwxz2456789"
"""Characters of the random ends of pods' names (k8s.io/apimachinery/pkg/util/rand)."""
_POD = re.compile(rf".+-[{_SAFE}]{{8,10}}-[{_SAFE}]{{5}}|.+-\d+-[{_SAFE}]{{5}}|[0-9a-f]{{12}}|.+\.svc(?:\..+)?")
"""A pod of a Deployment, of an indexed Job; a container's own ID; a service's name."""
_OPERATED = re.compile(r"(.+)-(?:master|worker|launcher|chief|ps)(?:-\d+)?")
_HEADS = ("-master-0", "-launcher", "-chief-0")
"""Kubeflow's training operators name a job's pods so, and no job is without its head."""


def reachable(names: Iterable[str]) -> list[str]:
    """Return the names that a login can be meant for: no pod has a sshd."""
    every = list(names)
    operated = {name[: -len(head)] for name in every for head in _HEADS if name.endswith(head)}
    own = {name: _OPERATED.fullmatch(name) for name in every}
    return [name for name in every if not _POD.fullmatch(name) and not ((o := own[name]) and o[1] in operated)]


@dataclass(frozen=True)
class Case:
    """A cause with the log it stands in."""

    cause: Cause
    log: Log

    @property
    def first(self) -> Event:
        """The event that explains most."""
        return self.cause.events[0]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts whose lines show the fault."""
        names = [event.prefix.host for event in self.cause.events if event.prefix.host]
        return tuple(dict.fromkeys(names or self.log.facts.failed_hosts))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that show the fault, sorted."""
        named = {rank for event in self.cause.events for rank in reported_ranks(event)}
        return tuple(sorted(named | {rank for rank in map(self.rank_of, self.cause.events) if rank is not None}))

    @property
    def address(self) -> Address:
        """The first address that the events name."""
        return next((e.address for e in self.cause.events if e.address != Address()), Address())

    @property
    def port(self) -> int | None:
        """The first port that the events name."""
        return next((e.address.port for e in self.cause.events if e.address.port), None)

    @property
    def count(self) -> int:
        """The number of lines that show the fault, dropped ones included."""
        return max(self.log.counts[self.cause.name], len(self.cause.events))

    def rank_of(self, event: Event) -> int | None:
        """Return the rank of an event: its own, that which NCCL gave its process, or that of its file's name."""
        if event.rank is not None:
            return event.rank
        process = self.log.facts.process(event.prefix)
        return process.rank if process and process.rank is not None else rank_of_file(event.file)

    def interface(self) -> Interface | None:
        """Return the interface that NCCL chose where the fault is."""
        facts = self.log.facts
        own = facts.process(self.first.prefix)
        nearby: list[Process] = [own] if own else []
        nearby += facts.of_host(self.first.prefix.host) or list(facts.processes.values())
        return next((process.interfaces[0] for process in nearby if process.interfaces), None)

    def entities(self, interface: Callable[[Case], str | None] | None = None) -> dict[str, Any]:
        """Return the contract's entities, as far as the log names them.

        ``interface`` where the diagnosis has its own.
        """
        facts, address, own = self.log.facts, self.address, self.interface()
        ranks = [*(self.rank_of(event) for event in self.cause.events), facts.summary_rank]
        # the rank that tells the consequences, where one alone does: it is the one whose log this is
        after = {self.rank_of(event) for _, events in self.cause.follows for event in events} - {None}
        ranks += after if len(after) == 1 else ()
        found = {
            "host": next(iter(self.hosts), None) or address.host or facts.summary_host,
            "ip": address.ip or (own.address.partition("%")[0] if own else self.first.prefix.ip),
            "port": self.port,
            "iface": (interface and interface(self)) or address.iface or (own.name if own else None) or facts.ifname,
            "rank": next((rank for rank in ranks if rank is not None), next(iter(facts.stated_ranks), None)),
            "nccl_version": next(iter(facts.nccl_versions), None),
            "torch_version": next(iter(facts.torch_versions), None),
        }
        return {name: value for name, value in found.items() if value is not None}

    def adapter(self) -> str | None:
        """Return the RDMA device that the lines name."""
        return self.device.partition(" ")[0] or None

    def interface_of(self, ip: str | None) -> str | None:
        """Return the name that NCCL prints beside an address."""
        found = (one for process in self.log.facts.processes.values() for one in process.interfaces)
        return next((one.name for one in found if one.address.partition("%")[0] == ip), None)

    def evidence(self) -> tuple[LogLine, ...]:
        """Return the first line, the first of each other wording and rank, and the last."""
        chosen: dict[tuple[str, int], Event] = {}
        seen: set[tuple[str, object]] = set()
        for event in self.cause.events:
            keys = {("wording", event.wording), ("rank", self.rank_of(event))}
            if not keys <= seen and len(chosen) < MOST_LINES - 1:
                chosen.setdefault((event.file, event.line), event)
            seen |= keys
        last = self.cause.events[-1]
        chosen.setdefault((last.file, last.line), last)
        return tuple(LogLine(file=e.file, line=e.line, text=e.text) for e in chosen.values())

    def hinted(self, after: str) -> str:
        """Return the first of NCCL's own hints (2.31 and later) among the lines, behind these words of it; else ""."""
        found = (event.text.partition(f"HINT: {after}")[2] for event in self.cause.events)
        return next(filter(None, found), "")

    @property
    def device(self) -> str:
        """The RDMA device and its port that the lines name, "" where none does."""
        found = (_DEVICE.search(event.text) for event in self.cause.events)
        match = next((one for one in found if one), None)
        return "" if match is None else match[1] + (f" port {match[2]}" if match[2] else "")

    @property
    def who(self) -> str:
        """``rank 3 on gpu02``, ``ranks 8-15 on gpu[02-03]``, ``a rank`` where no line tells."""
        ranks, hosts = self.ranks, self.hosts
        named = ranks_of(ranks) if ranks else ""
        place = fold([host for host in hosts if _HOST.fullmatch(host)])
        if named and place:
            return f"{named} on {place}"
        return named or place or "a rank"

    @property
    def target(self) -> str:
        """The other end, ``10.0.0.1:53211 (gpu01)``; "another host" where no line names it."""
        address = self.address
        name = address.ip or address.host
        if name is None:
            return f"port {address.port}" if address.port else "another host"
        place = f"{name}:{address.port}" if address.port else name
        host = self.host_of(address.ip)
        return f"{place} ({host})" if host and host != name else place

    def host_of(self, ip: str | None) -> str | None:
        """Return the host that NCCL says has this address."""
        found = (
            (one.address, process.host) for process in self.log.facts.processes.values() for one in process.interfaces
        )
        return next((host for address, host in found if address.partition("%")[0] == ip), None)

    def check(self, extra: Iterable[str] = (), *, command: str = "check") -> tuple[Command, ...]:
        """Return ``nccl-doctor check -w …``: the hosts concerned, the other end, and all that NCCL names.

        None where the log names the other end alone, which has nobody to dial.
        """
        address = self.address
        actors = [event.prefix.ip for event in self.cause.events if event.prefix.ip and not event.prefix.host]
        own = [*(self.hosts or actors), *extra]
        names = [*own, self.host_of(address.ip) or address.ip or address.host or ""]
        named = [name for name in dict.fromkeys((*names, *self.log.facts.hosts)) if _HOST.fullmatch(name)]
        fit = [name for name in reachable(named) if not _LOCAL.fullmatch(name)]
        if not fit or (fit == names[len(own) :] and fit[0] not in own):
            return ()
        return on(None, line("nccl-doctor {command} -w {hosts}", command=command, hosts=fold(fit)))


@dataclass(frozen=True)
class Advice:
    """A sentence for a tired person, and what to do."""

    message: str
    fix: Fix


WITH_THE_HOSTS = "nccl-doctor check with the job's hosts file, or -w and their names"
"""Advice for a log that names no host."""
THEN = "Then see what the hosts say:"


def advise(message: str, summary: str, commands: tuple[Command, ...] = ()) -> Advice:
    """Advice with commands that are safe to paste, or with their names."""
    announced = summary.endswith(":")
    if announced and not commands:
        summary = f"{summary[:-1]} ({WITH_THE_HOSTS})."
    elif commands and not announced:
        summary = f"{summary} {THEN}"
    return Advice(message, Fix(summary=summary, risk="safe" if commands else "manual", commands=commands))


_RANKS = re.compile(r"rank\(s\) \{?(\d[\d, -]{0,400})")


def reported_ranks(event: Event) -> tuple[int, ...]:
    """Return all ranks that a line of NCCL's own diagnostics is about: ``rank(s) {0-3,9} differ from rank 4``."""
    found = _RANKS.search(event.text) if event.prefix.level == "DIAG" else None
    parts = re.findall(r"(\d{1,6})(?: ?- ?(\d{1,6}))?", found[1]) if found else ()
    spans = (range(int(first), int(last or first) + 1) for first, last in parts)
    return tuple(itertools.islice(itertools.chain.from_iterable(spans), MOST_RANKS))


MOST_RANKS = 4096


def make_advice(
    message: str, summary: str, command: Callable[[Case], tuple[Command, ...]] | None = Case.check
) -> Callable[[Case], Advice]:
    """Return the advice of which only ``{who}`` and ``{target}`` change from case to case."""
    return lambda case: advise(
        message.format(who=case.who, target=case.target), summary, command(case) if command is not None else ()
    )


def ifname_command(case: Case) -> tuple[Command, ...]:
    """Return ``nccl-doctor ifname`` over the hosts concerned; here where the log names none."""
    return case.check(command="ifname") or on(None, line("nccl-doctor ifname"))


def not_logged_in(why: str, summary: str) -> Callable[[Case], Advice]:
    """Return the advice where a launcher could not log in to a host over SSH."""

    def advice(case: Case) -> Advice:
        host = case.address.host or case.address.ip or next(iter(case.hosts), "a host")
        return advise(f"The launcher could not log in to {host} by SSH: {why}.", summary, case.check())

    return advice


def by_rank(case: Case) -> Advice:
    """Return advises with what RAS or the flight recorder says of each rank, the culprits first."""
    words = [f"{ranks_of([e.rank]) if e.rank is not None else 'a rank'} {e.message}" for e in case.cause.events[:3]]
    more = len(case.cause.events) - len(words)
    look = "Look at what the first of them did meanwhile (py-spy dump, its own log): the others wait for it."
    if case.cause.name == "collective-mismatch":
        look = "Compare these calls: every rank must make the same ones in the same order, with the same sizes."
    elif more + len(words) > 1 and len({event.message for event in case.cause.events}) == 1:
        look = (
            "No rank is behind: the data of that call does not arrive, or a kernel that was started before it on one "
            "of the GPUs never ends. nccl-doctor hang tells more of a job that still runs."
        )
    return advise("; ".join(words) + (f"; and {more} more" if more > 0 else "") + ".", look, case.check())


class Stage(IntEnum):
    """Passes over a log's events, in the order in which they run; which ones there are, the checks declare."""

    MEANING = 1
    """Addresses and numbers in a line are put to names of hosts and ranks."""
    RECOVERY = 2
    """Faults that the run survived, or that came after its end, are dropped."""
    ENDING = 3
    """Processes that others ended are told from those that failed; from here on the log is that of the last run."""
    GIVING_UP = 4
    """Retries that were given up count as faults; other hints are dropped."""
    PLACES = 5
    """Hosts of a run without an end are compared by place; not for a log that ended well, or whose lines were
    joined."""
    HANGS = 6
    """The place where such a run stopped, under the same conditions."""
    CONSEQUENCES = 7
    """Faults that follow from other faults are told apart."""
    RECORDS = 8
    """Actions of ranks in one place, from lines and from dumps of the flight recorder."""


@dataclass
class Scene:
    """The events of a log while passes look at them beside each other.

    Attributes:
        log: everything that was read, from :attr:`Stage.ENDING` on of the last run alone.
        sources: all that was read of each source.
        stuck: diagnoses of which nothing succeeded after a retry, or that a process gave up for.
        names: faults that say more than that a process gave up, when hints are weighed.
    """

    events: list[Event]
    log: Log
    sources: dict[str, Reading]
    stuck: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def renamed(self, name: str, grade: Grade, meant: Callable[[Event], object]) -> list[Event]:
        """Return the events, those that are meant under another name and weight."""
        return [replace(event, name=name, grade=grade) if meant(event) else event for event in self.events]


Pass = Callable[[Scene], list[Event]]
"""The work of one stage: it returns the events that are left, some with another name or grade."""


@dataclass(frozen=True)
class LogSigns:
    """How logs show one diagnosis, and what to say then: the ``SIGNS`` of its file.

    Attributes:
        rules: its wordings; of several of one grade that fit a line, the first speaks.
        advice: what to say and do.
        after: diagnoses that go before this one where a line fits wordings of both that weigh the same; between
            others the name decides.
        echo: ranks see it of any fault of another one, so it is a cause only where nothing else is.
        network: it tells of the way between hosts; beside other such faults its hints count.
        waits: a rank waited for others, which is no sign of the way between hosts.
        dials: a connection that failed, to a name or an address that was known.
        retried: processes that look for the master say it, and go on.
        gives_up: of generic weight, it says no more than that a process gave up.
        unfinished: the diagnosis of a log that ends before all ranks have met; ``silent`` of one that ends after it.
        hint: what a hint of it weighs once it counts.
        hint_beside: its hints count beside these faults alone, not beside any.
        weigh: what a hint of it weighs, in place of these two.
        passes: what it makes of a log's events, by stage; in one stage the names decide who comes first.
        catalogued: what a warning weighs that NCCL's catalogue knows and no rule does.
        of_catalogue: what NCCL's catalogue says of its lines goes before its own wordings.
        ras: what RAS says of ranks and processes, and how much each of these weighs.
        interface: the interface or the device that a case of it is about.
        severity: of a case in which nothing worse is shown; None leaves an error.
        warning_up_to: nothing worse than a warning up to this grade, where nothing follows from it.
    """

    rules: tuple[LogRule, ...]
    advice: Callable[[Case], Advice]
    after: tuple[str, ...] = ()
    echo: bool = False
    network: bool = False
    waits: bool = False
    dials: bool = False
    retried: bool = False
    gives_up: bool = False
    unfinished: bool = False
    silent: bool = False
    hint: Grade = Grade.GENERIC
    hint_beside: tuple[str, ...] = ()
    weigh: Callable[[Event, Scene], Grade] | None = None
    passes: Mapping[Stage, Pass] = field(default_factory=dict)
    catalogued: Grade = Grade.LIKELY
    of_catalogue: bool = False
    ras: Mapping[str, Grade] = field(default_factory=dict)
    interface: Callable[[Case], str | None] | None = None
    severity: Callable[[Case], Severity | None] | None = None
    warning_up_to: Grade = Grade.BENIGN


@cache
def signs() -> dict[str, LogSigns]:
    """Return the signs of every diagnosis by name, in the order in which they apply."""
    found: dict[str, LogSigns] = {}
    for module in pkgutil.walk_packages(importlib.import_module(PACKAGE).__path__, f"{PACKAGE}."):
        shown = getattr(importlib.import_module(module.name), "SIGNS", None)
        if shown is not None:
            found[module.name.rpartition(".")[2].replace("_", "-")] = shown
    ordered: dict[str, LogSigns] = {}

    def place(name: str, waiting: tuple[str, ...]) -> None:
        if name in waiting:
            raise ValueError(f"{' after '.join((*waiting, name))}")
        for earlier in found[name].after:
            place(earlier, (*waiting, name))
        ordered.setdefault(name, found[name])

    for name in sorted(found):
        place(name, ())
    return ordered


@cache
def rules() -> tuple[LogRule, ...]:
    """Return every wording: between rules of one grade that match one line, the first speaks."""
    return (*BENIGN, *(replace(rule, name=name) for name, shown in signs().items() for rule in shown.rules))


Trait = Literal["echo", "network", "waits", "dials", "retried", "gives_up", "unfinished", "silent", "of_catalogue"]


@cache
def having(trait: Trait) -> frozenset[str]:
    """Return names of the diagnoses that have a trait."""
    return frozenset(name for name, shown in signs().items() if getattr(shown, trait))


def echoes() -> frozenset[str]:
    """Return names of the diagnoses that are only what ranks see of another one's fault."""
    return having("echo")


@cache
def ras_states() -> dict[str, tuple[str, Grade]]:
    """Return the diagnosis and the weight of what RAS says of ranks and processes."""
    return {state: (name, grade) for name, shown in signs().items() for state, grade in shown.ras.items()}


def on_the_way() -> frozenset[str]:
    """Return names of what tells of the way between hosts, and of what ranks see of that."""
    return having("echo") | having("network")
