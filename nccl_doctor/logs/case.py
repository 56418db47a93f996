"""A cause made ready to be told: whom it concerns, which lines prove it, what it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from nccl_doctor.logs.facts import Interface, Process, rank_progress
from nccl_doctor.logs.log import Address, Cause, Event, Log
from nccl_doctor.model.finding import Command, LogLine, on
from nccl_doctor.text.hostlist import fold, ranks_of
from nccl_doctor.text.shell import line

MOST_LINES = 5
"""Lines that are quoted of one cause."""

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_ADAPTER = re.compile(
    r"\b((?:mlx[45](?:_bond)?|bnxt_re|irdma|hns|efa|rdmap\w*|qedr|rocep\w*|ibp\w*)_?\d+\w*)(?:[:/ ,.)]|$)"
)
_DEVICE = re.compile(_ADAPTER.pattern.rpartition("(?:[:/")[0] + r"(?::(\d{1,3}))?")
"""Names of RDMA devices, as the kernel's drivers give them."""

_LOCAL = re.compile(r"localhost(?:\.localdomain)?|ip6-localhost|127\..*|0\.0\.0\.0")


_SAFE = "bcdfghjklmnpqrstvwxz2456789"
"""What Kubernetes makes the random ends of pods' names of (k8s.io/apimachinery/pkg/util/rand)."""
_POD = re.compile(rf".+-[{_SAFE}]{{8,10}}-[{_SAFE}]{{5}}|.+-\d+-[{_SAFE}]{{5}}|[0-9a-f]{{12}}|.+\.svc(?:\..+)?")
"""A pod of a Deployment, of an indexed Job; a container's own ID; a service's name."""
_OPERATED = re.compile(r"(.+)-(?:master|worker|launcher|chief|ps)(?:-\d+)?")
_HEADS = ("-master-0", "-launcher", "-chief-0")
"""Kubeflow's training operators name a job's pods so, and no job is without its head."""


def reachable(names: Iterable[str]) -> list[str]:
    """The names that a login can be meant for: no pod has a sshd."""
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
        """The most telling event."""
        return self.cause.events[0]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts whose lines show the fault."""
        names = [event.prefix.host for event in self.cause.events if event.prefix.host]
        return tuple(dict.fromkeys(names or self.log.facts.failed_hosts))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that show the fault, sorted."""
        return tuple(sorted({rank for rank in map(self.rank_of, self.cause.events) if rank is not None}))

    @property
    def silent_ranks(self) -> tuple[int, ...]:
        """Ranks of which no line tells, though others do."""
        return rank_progress(self.log.facts).missing

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
        """Lines that show the fault, those that were not kept included."""
        return max(self.log.counts[self.cause.name], len(self.cause.events))

    def rank_of(self, event: Event) -> int | None:
        """The rank of an event: its own, or that which NCCL gave its process."""
        if event.rank is not None:
            return event.rank
        process = self.log.facts.process(event.prefix)
        return process.rank if process else None

    def interface(self) -> Interface | None:
        """The interface that NCCL chose where the fault is."""
        facts = self.log.facts
        own = facts.process(self.first.prefix)
        nearby: list[Process] = [own] if own else []
        nearby += facts.of_host(self.first.prefix.host) or list(facts.processes.values())
        return next((process.interfaces[0] for process in nearby if process.interfaces), None)

    def entities(self, interface: Callable[[Case], str | None] | None = None) -> dict[str, Any]:
        """The contract's entities, as far as the log names them; ``interface`` where the diagnosis has its own."""
        facts, address, own = self.log.facts, self.address, self.interface()
        ranks = [*(self.rank_of(event) for event in self.cause.events), facts.summary_rank]
        ranks += self._rank_that_follows()
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

    def _rank_that_follows(self) -> list[int | None]:
        """The rank that tells the consequences, where one alone does: it is the one whose log this is."""
        found = {self.rank_of(event) for _, events in self.cause.follows for event in events} - {None}
        return [*found] if len(found) == 1 else []

    def adapter(self) -> str | None:
        """The RDMA device that the lines name."""
        found = (_ADAPTER.search(event.text) for event in self.cause.events)
        return next((match[1] for match in found if match), None)

    def interface_of(self, ip: str | None) -> str | None:
        """The name that NCCL prints beside an address."""
        found = (one for process in self.log.facts.processes.values() for one in process.interfaces)
        return next((one.name for one in found if one.address.partition("%")[0] == ip), None)

    def evidence(self) -> tuple[LogLine, ...]:
        """The first line, the first of each other wording and rank, and the last."""
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
        """The host that NCCL says has this address."""
        if ip is None:
            return None
        for process in self.log.facts.processes.values():
            if any(interface.address.partition("%")[0] == ip for interface in process.interfaces):
                return process.host
        return None

    def check(self, extra: Iterable[str] = (), *, command: str = "check") -> tuple[Command, ...]:
        """``nccl-doctor check -w …``: the hosts concerned, the other end, and all that NCCL names."""
        address = self.address
        actors = [event.prefix.ip for event in self.cause.events if event.prefix.ip and not event.prefix.host]
        names = [*(self.hosts or actors), self.host_of(address.ip) or address.ip or address.host or "", *extra]
        named = [name for name in dict.fromkeys((*names, *self.log.facts.hosts)) if _HOST.fullmatch(name)]
        fit = [name for name in reachable(named) if not _LOCAL.fullmatch(name)]
        return on(None, line("nccl-doctor {command} -w {hosts}", command=command, hosts=fold(fit))) if fit else ()
