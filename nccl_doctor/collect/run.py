"""From a cluster to a snapshot: connect, facts, mesh, all-reduce; whatever happens, everything is closed at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import chain
from typing import Protocol

from nccl_doctor import __version__
from nccl_doctor.collect import elsewhere, ways
from nccl_doctor.collect import facts as facts_phase
from nccl_doctor.collect import mesh as mesh_phase
from nccl_doctor.collect import smoke as smoke_phase
from nccl_doctor.collect.answers import ProbeError
from nccl_doctor.collect.controller_names import look_up
from nccl_doctor.collect.fanout import fan_out
from nccl_doctor.collect.reach import CONNECT_S, Reach
from nccl_doctor.collect.session import ProbeSession
from nccl_doctor.collect.smoke import trials
from nccl_doctor.derived import FailedDials
from nccl_doctor.measured import Load
from nccl_doctor.model import Cluster
from nccl_doctor.snapshot import (
    PENDING,
    Answer,
    AnyAccessFailure,
    FirewallFacts,
    Host,
    HostFacts,
    Isolation,
    Mesh,
    Names,
    Phased,
    ProbeFacts,
    ProbeFailed,
    Smoke,
    Snapshot,
    skipped,
    unknown,
)
from nccl_doctor.snapshot.values import IpAddress
from nccl_doctor.transport.base import Transport

NAMES_S = 3.0
"""What this machine's resolver may take for all names; what it has not told by then confirms nothing."""


class Progress(Protocol):
    """Who is told how far the run is."""

    def phase(self, name: str, hosts: list[str], limit_s: float | None = None) -> None:
        """A phase begins, and these hosts are awaited, for so many seconds at most."""

    def done(self, host: str) -> None:
        """A host has finished the phase."""

    def stage(self, host: str, stage: str, size: int | None = None) -> None:
        """A rank of a host has reached a stage of the all-reduce, and measured a message of so many bytes."""

    def seen(self, snapshot: Callable[[], Snapshot], dials: FailedDials | None) -> None:
        """A phase has ended, after which so much has been seen, and so much is known of dials that failed."""


@dataclass(frozen=True)
class Options:
    """Bounds of a run, in seconds. ``total_s`` ends everything: a phase that no longer fits in is not begun.

    ``connect_s`` is :class:`~nccl_doctor.collect.reach.Reach`'s.
    """

    connect_s: float | None = None
    facts_limits: facts_phase.FactLimits = field(default_factory=facts_phase.FactLimits)
    total_s: float = 300.0
    smoke: bool = True
    mesh_limits: mesh_phase.MeshLimits = field(default_factory=mesh_phase.MeshLimits)
    smoke_limits: smoke_phase.SmokeLimits = field(default_factory=smoke_phase.SmokeLimits)


@contextmanager
def looked(cluster: Cluster, transport: Transport, options: Options, progress: Progress) -> Iterator[Run]:
    """Looks at every host; one that fails is recorded and the others are looked at all the same.

    The connections stand until the end of the block, so that a failed all-reduce can be repeated over parts of them.
    """
    run = Run(cluster, transport, options, progress)
    try:
        run.look()
        progress.seen(run.snapshot, run.dials)
        run.mesh()
        run.names()
        progress.seen(run.snapshot, run.dials)
        run.smoke()
        yield run
    finally:
        run.close()


class Run:
    """One run over all hosts, phase by phase.

    Attributes:
        dials: why dials of the mesh failed, for whoever judges the snapshot; None without a mesh.
    """

    def __init__(self, cluster: Cluster, transport: Transport, options: Options, progress: Progress) -> None:
        self._cluster, self._transport, self._options, self._progress = cluster, transport, options, progress
        self.dials: FailedDials | None = None
        self._began = time.monotonic()
        self._taken_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._opened: dict[str, ProbeSession] = {}
        self._awaited: set[str] = set()
        self._answered: set[str] = set()
        self._sessions: list[ProbeSession] = []
        self._failures: dict[str, AnyAccessFailure] = {}
        self._facts: dict[str, HostFacts] = {}
        self._mesh: Phased[Mesh] = skipped(PENDING)
        self._smoke: Phased[Smoke] = skipped(PENDING)
        self._resolved: dict[str, tuple[IpAddress, ...]] = {}
        self._names: dict[str, Answer] = {}
        self._timings: dict[str, float] = {}
        self._spent: dict[str, dict[str, tuple[float, float]]] = {}
        self._load: Load | None = None

    def look(self) -> None:
        """Reaches the hosts, and asks each what it knows of itself as soon as it is there."""
        began, total = time.monotonic(), self._began + self._options.total_s
        asking = facts_phase.Asking(self._cluster, self._options.facts_limits, total)
        reach = Reach(
            self._transport,
            self._options.connect_s,
            total,
            self._connected,
            look=asking,
            on_looked=self._looked,
            opened=self._opened,
            failures=self._failures,
        )
        names = [node.name for node in self._cluster.nodes]
        self._awaited = set(names)
        self._progress.phase("connecting", names, self._within(self._options.connect_s or CONNECT_S))
        self._load = reach.all(self._cluster.nodes)
        self._facts, self._names = asking.all(), asking.common
        for name in reach.unanswered.keys() - self._facts.keys():
            self._failures[name] = facts_phase.failure(reach.unanswered[name])
        self._sessions = [self._opened[name] for name in names if name in self._facts]
        self._timings |= {"connect": reach.connected_s, "probe": time.monotonic() - began - reach.connected_s}

    def _connected(self, name: str) -> None:
        self._progress.done(name)
        self._busy(name, "connect", 0.0)
        if self._awaited == {name}:
            self._progress.phase("asking", [name for name in self._opened if name not in self._answered])
        self._awaited.discard(name)

    def _looked(self, name: str) -> None:
        self._answered.add(name)
        self._busy(name, "probe", self._spent.get(name, {}).get("connect", (0.0, 0.0))[1])
        if not self._awaited:
            self._progress.done(name)

    def mesh(self) -> None:
        """Has every host dial the others."""
        limits = self._options.mesh_limits
        if limits.size == "none":
            self._mesh = skipped("not asked for (--mesh none)")
            return
        if len(self._sessions) < 2:
            alone = len(self._cluster.nodes) == 1
            few = "fewer than two hosts were reached"
            self._mesh = skipped("one host has nobody to dial") if alone else unknown(few)
            return
        if self._left() < limits.dial_s:
            # Cut short, a dial that only takes long would look like a firewall's work.
            self._mesh = unknown(self._no_time_for("the port test", limits.dial_s))
            return
        began = time.monotonic()
        self._start("dialling")

        def done(session: ProbeSession) -> None:
            self._progress.done(session.node.name)
            self._busy(session.node.name, "mesh", began - self._began)

        mesh = mesh_phase.run(self._sessions, self._facts, self._cluster, limits, done)
        self._read_counters(mesh)
        self._facts.update(ways.run(self._sessions, self._facts, mesh.failed))
        self._mesh = self._without_lost(mesh)
        self.dials = FailedDials(self.snapshot())
        met = elsewhere.run(self._sessions, self._facts, self._mesh, self.dials.unexplained, limits.dial_s)
        self._mesh = self._mesh.model_copy(update={"elsewhere": met})
        self._timings["mesh"] = time.monotonic() - began

    def _without_lost(self, mesh: Mesh) -> Mesh:
        """The mesh among the hosts that still answer; of the others nothing is judged that they said."""
        for session in self._sessions:
            if session.lost is not None:
                detail = f"the probe ended while the ports were tested: {session.lost}"
                self._failures[session.node.name] = ProbeFailed(detail=detail, facts=ProbeFacts(stage="mesh"))
                del self._facts[session.node.name]
        self._sessions = [session for session in self._sessions if session.lost is None]
        return mesh.among({session.node.name for session in self._sessions})

    def names(self) -> None:
        """Looks up the names of the hosts file here, where what is to be done may hang on them."""
        seen = [facts.resolution.own for facts in self._facts.values() if isinstance(facts.resolution, Names)]
        lost = any(not told.addresses for told in chain(self._names.values(), *(own.values() for own in seen)))
        if lost or (isinstance(self._mesh, Mesh) and self._mesh.failed):
            names = (self._cluster.master_addr, *(node.address for node in self._cluster.nodes))
            self._resolved = look_up(names, self._within(NAMES_S))

    def _read_counters(self, mesh: Mesh) -> None:
        """Where dials failed, reads the firewalls of both ends again: the counters tell which rule they met."""
        ends = {name for dial in mesh.failed for name in (dial.src, dial.dst)}
        concerned = [
            session
            for session in self._sessions
            if session.node.name in ends and isinstance(self._facts[session.node.name].firewall, FirewallFacts)
        ]
        self._facts.update(facts_phase.firewalls_again(concerned, self._facts, self._options.facts_limits))

    def smoke(self) -> None:
        """Runs the all-reduce, where it can succeed."""
        limits = self._options.smoke_limits
        if not self._options.smoke:
            self._smoke = skipped("not asked for (--no-smoke)")
            return
        reason = smoke_phase.why_not(self._cluster, self._facts, self._mesh)
        if reason is not None:
            self._smoke = reason
            return
        if self._left() < limits.deadline_s:
            self._smoke = unknown(self._no_time_for("the all-reduce", limits.deadline_s))
            return
        began = time.monotonic()
        self._start("all-reduce", limits.deadline_s)
        try:
            self._smoke = smoke_phase.run(
                self._sessions,
                self._facts,
                self._cluster,
                limits,
                self._began + self._options.total_s,
                self._progress,
            )
        except ProbeError as error:
            self._smoke = unknown(f"could not be started: {error}")
        self._timings["smoke"] = time.monotonic() - began
        if isinstance(self._smoke, Smoke):
            since = began - self._began
            for rank in self._smoke.ranks:
                until = since + max(rank.times.values(), default=0.0)
                _, latest = self._spent.setdefault(rank.host, {}).get("smoke", (0.0, 0.0))
                self._spent[rank.host]["smoke"] = (round(since, 3), round(max(until, latest), 3))

    def bisect(self) -> None:
        """Repeats a failed all-reduce over groups of hosts, to find who breaks it; nothing where that can't help."""
        smoke = self._smoke
        if not isinstance(smoke, Smoke) or smoke.outcome not in ("failed", "timeout") or len(self._sessions) < 3:
            return
        began = time.monotonic()
        self._start("isolating")
        until = self._began + self._options.total_s
        found: Phased[Isolation]
        try:
            found = trials.run(self._sessions, self._facts, self._cluster, self._options.smoke_limits, until)
        except ProbeError as error:
            found = unknown(f"could not be repeated: {error}")
        self._smoke = smoke.model_copy(update={"isolation": found})
        self._timings["isolate"] = time.monotonic() - began

    def close(self) -> None:
        """Ends every probe and connection."""
        fan_out(lambda session: session.close(), list(self._opened.values()))
        self._transport.close()

    def snapshot(self) -> Snapshot:
        """All that was seen up to now."""
        self._timings["total"] = time.monotonic() - self._began
        hosts = tuple(
            Host(node=node, facts=self._facts.get(node.name), failure=self._failures.get(node.name))
            for node in self._cluster.nodes
        )
        return Snapshot(
            version=__version__,
            taken_at=self._taken_at,
            cluster=self._cluster,
            hosts=hosts,
            mesh=self._mesh,
            smoke=self._smoke,
            resolved=self._resolved,
            names=self._names,
            load=self._load,
            spent=self._spent,
            timings={name: round(seconds, 3) for name, seconds in self._timings.items()},
        )

    def _start(self, phase: str, limit_s: float | None = None) -> None:
        self._progress.phase(phase, [session.node.name for session in self._sessions], limit_s)

    def _busy(self, name: str, phase: str, since: float) -> None:
        """Notes that a host was busy with a phase until now."""
        self._spent.setdefault(name, {})[phase] = (round(since, 3), round(time.monotonic() - self._began, 3))

    def _no_time_for(self, what: str, seconds: float) -> str:
        return f"--timeout {self._options.total_s:.0f} leaves no time for {what}, which may take {seconds:.0f} s"

    def _left(self) -> float:
        return max(self._began + self._options.total_s - time.monotonic(), 0.1)

    def _within(self, seconds: float) -> float:
        return min(seconds, self._left())
