"""Collects the snapshot of a cluster: connects to the hosts, queries facts, tests ports, and runs the all-reduce.

All processes that were started on the hosts are terminated when the run ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import chain

from nccl_doctor import __version__
from nccl_doctor.collect.facts import host_facts
from nccl_doctor.collect.facts.host_facts import NO_FACTS, Asking, failure, firewalls_again, look_up
from nccl_doctor.collect.mesh import failed_dials, rate
from nccl_doctor.collect.mesh.mesh import run_mesh
from nccl_doctor.collect.options import Progress, RunClock, RunOptions
from nccl_doctor.collect.smoke import allreduce, isolation
from nccl_doctor.collect.turns import Refused, RunTurns, words
from nccl_doctor.crew.answers import ControllerPausedError, HolderAnswer, OwnFaultError, ProbeError
from nccl_doctor.crew.crew import Crew
from nccl_doctor.crew.parallel import CONNECT_S, failure_of, fan_out
from nccl_doctor.crew.session import PATIENT_S, ProbeSession
from nccl_doctor.errors import NotReachedError
from nccl_doctor.model.base import NOT_ASKED, PENDING, IpAddress, Phased, Unknown, skipped, unknown
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.questions import FaultyGroup, OtherNetworks, SlowRails
from nccl_doctor.model.report import IsolationReport, Load
from nccl_doctor.snapshot.hosts import Host, HostFacts, Snapshot, running_jobs
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.network import FirewallFacts, Names, PortTrial, ResolverAnswer
from nccl_doctor.snapshot.rate import NO_RATES, Rates
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.snapshot.surroundings import KubeFacts
from nccl_doctor.text.hostlist import fold, plural
from nccl_doctor.transport.base import Transport

NAMES_S = 3.0  # time for this machine's resolver for all names; a name without an answer by then confirms nothing
WORTH_S = 5.0  # a run begins again only if this much time is left
TURN_SHARE = 0.5  # of the time that is left, which a run waits for other runs that test the same hosts


@contextmanager
def open_run(
    cluster: Cluster, connect: Callable[[], Transport], options: RunOptions, progress: Progress
) -> Iterator[Run]:
    """Run all phases, repeat them if this machine was paused, and stay connected while the block runs.

    Raises NotReachedError if this machine is paused a second time, or if too little time is left to repeat the phases.
    """
    until = time.monotonic() + options.total_s
    run = Run(cluster, connect(), options, progress)
    try:
        try:
            run.all()
        except ControllerPausedError as error:
            run.close()
            left = until - time.monotonic()
            if left < WORTH_S:
                raise
            progress.phase(f"again: {error}", [node.name for node in cluster.nodes])
            run = Run(cluster, connect(), replace(options, total_s=left, silence_s=PATIENT_S), progress)
            run.all()
        yield run
    except ControllerPausedError as error:
        raise NotReachedError(f"{error}; run it again") from error
    finally:
        run.close()


class Run:
    """A run over all hosts, phase by phase; ``interrupted`` is True if the user ended the run early."""

    def __init__(self, cluster: Cluster, transport: Transport, options: RunOptions, progress: Progress) -> None:
        self._cluster, self._options, self._progress = cluster, options, progress
        self._crew = Crew(cluster.nodes, transport, options.connect_s)
        self._clock = RunClock(options.total_s)
        self._began_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._facts: dict[str, HostFacts] = {}
        self._names: dict[str, ResolverAnswer] = {}
        self._load: Load | None = None
        self._awaited, self._answered = {node.name for node in cluster.nodes}, set[str]()
        self._sessions: list[ProbeSession] = []
        self._mesh: Phased[Mesh] = skipped(PENDING)
        self._rates: Phased[Rates] = skipped(PENDING) if options.rate else NO_RATES
        self._smoke: Phased[Smoke] = skipped(PENDING)
        self._smoke_limits = options.smoke_limits
        self._resolved: dict[str, tuple[IpAddress, ...]] = {}
        self._aliases: tuple[str, ...] = ()
        self.interrupted = False
        self._refused: Unknown | None = None  # why the hosts are not tested: another run tests them

    def all(self) -> None:
        """Run every phase, or raise ControllerPausedError if this machine was paused.

        If the user interrupts the run after the facts were queried, the results so far can still be evaluated.
        """
        self.look()
        try:
            self._phases()
        except KeyboardInterrupt:
            self.interrupted = True
            pending, why = skipped(PENDING), unknown("interrupted before its end")
            self._mesh = why if self._mesh == pending else self._mesh
            self._rates = why if self._rates == pending else self._rates
            self._smoke = why if self._smoke == pending else self._smoke

    def _phases(self) -> None:
        self._go_on()
        self.take_turn()
        self.mesh()
        self.names()
        self._go_on()
        self.rate()
        self._go_on()
        self.smoke()
        self._crew.still_there()
        if any(isinstance(question, FaultyGroup) for question in self._options.questions(self.snapshot())):
            self._bisect()

    def look(self) -> None:
        """Connect to the hosts and query each host's facts as soon as the host is connected."""
        names = {self._cluster.master_addr, *(node.address for node in self._cluster.nodes)}
        around = partial(host_facts.look_outside, self._crew.transport, names)
        asking = Asking(self._cluster, self._options.facts_limits, self._clock.until, around)

        imports = self._options.smoke and self._options.import_ahead

        def look(session: ProbeSession, share: float) -> None:
            if imports:
                allreduce.begin_import(session, self._clock.until, asked=False)
            asking(session, share)
            if imports:
                allreduce.begin_import(session, self._clock.until, asked=True)

        reach = self._crew.reach(self._clock.until, self._connected)
        reach.look, reach.on_looked, reach.silence_s = look, self._looked, self._options.silence_s
        hosts = [node.name for node in self._cluster.nodes]
        self._progress.phase("connecting", hosts, self._clock.within(self._options.connect_s or CONNECT_S))
        with self._clock.timed("probe"):
            self._load = reach.all(self._cluster.nodes)
        self._clock.timings["connect"] = reach.connected_s
        self._clock.timings["probe"] -= reach.connected_s
        self._facts, self._names = asking.all(), asking.common
        silent = [name for name in hosts if name in reach.unanswered.keys() - self._facts.keys()]
        whys = fan_out(lambda name: failure(reach.unanswered[name], self._crew.opened[name], self._clock.until), silent)
        for name, why in zip(silent, whys, strict=True):
            lost = failure_of(OwnFaultError(why), "facts", NO_FACTS) if isinstance(why, Exception) else why
            self._crew.failures[name] = lost
        self._sessions = [session for session in self._crew.sessions if session.node.name in self._facts]
        failures = self._crew.failures
        failures |= failed_dials.ask_reachability_from_peers(self._sessions, failures, self._clock.until)
        self._facts = host_facts.resolve_meeting(self._sessions, self._facts, self._cluster)
        self._leave_lost("unreachable hosts were being identified")

    def _connected(self, name: str) -> None:
        self._progress.done(name)
        self._clock.busy(name, "connect", 0.0)
        asked = [name for name in self._crew.opened if name not in self._answered]
        if self._awaited == {name} and asked:
            self._progress.phase("querying", asked)
        self._awaited.discard(name)

    def _looked(self, name: str) -> None:
        self._answered.add(name)
        self._clock.busy(name, "probe", self._clock.spent.get(name, {}).get("connect", (0.0, 0.0))[1])
        if not self._awaited:
            self._progress.done(name)

    def take_turn(self) -> None:
        """Wait until no other run is testing the hosts, and try the master port again if it was busy."""
        options, names = self._options, [node.name for node in self._cluster.nodes]
        facts = self._facts.get(names[0])
        trial = None if facts is None else facts.master_port
        busy = isinstance(trial, PortTrial) and trial.error == "EADDRINUSE"
        measures = options.mesh_limits.size != "none" or options.rate or options.smoke
        sessions = (
            self._sessions
            if measures
            else [session for session in self._sessions if busy and session.node.name == names[0]]
        )
        if not sessions:
            return
        shown: set[str] = set()

        def waits(holder: HolderAnswer) -> None:
            if holder.run not in shown:
                shown.add(holder.run)
                self._progress.phase(f"waiting for {words(holder)}", [])

        until = time.monotonic() + TURN_SHARE * self._clock.left()
        with self._clock.timed("turn"):
            answer = RunTurns(sessions).take(until, {names[0]: self._cluster.master_port} if busy else {}, waits)
        if isinstance(answer, Refused):
            self._refused = unknown(f"not tested: {answer}")
        if busy and facts is not None and answer is not None:
            now = self._refused if isinstance(answer, Refused) else answer
            self._facts[names[0]] = facts.model_copy(update={"master_port": now})
        self._leave_lost("other runs were waited for")

    def mesh(self) -> None:
        limits = self._options.mesh_limits
        if limits.size == "none":
            self._mesh = skipped(f"{NOT_ASKED} (--mesh none)")
            return
        if len(self._sessions) < 2:
            alone = len(self._cluster.nodes) == 1
            few = "fewer than two hosts were reached"
            self._mesh = skipped("only one host: nothing to test") if alone else unknown(few)
            return
        if self._refused is not None:
            self._mesh = self._refused
            return
        # A slow dial that is cut short would look like the work of a firewall.
        if late := self._clock.lacks(limits.dial_s, "the port test"):
            self._mesh = unknown(late)
            return
        self._start("dialling")
        with self._clock.timed("mesh") as since:

            def done(session: ProbeSession) -> None:
                self._progress.done(session.node.name)
                self._clock.busy(session.node.name, "mesh", since)

            mesh = run_mesh(self._sessions, self._facts, self._cluster, limits, done)
            # the counters show which rule the failed dials matched
            pairs = {(dial.src, dial.dst) for dial in mesh.failed} | {
                (lost.src, lost.dst) for lost in mesh.lost_connections
            }
            ends = {name for pair in pairs for name in pair}
            if self._cluster.master_port not in mesh.ports.get(self._cluster.nodes[0].name, ()):  # it was not dialled
                ends |= {session.node.name for session in self._sessions}
            hosts = [session for session in self._sessions if session.node.name in ends]
            filtered = [item for item in hosts if isinstance(self._facts[item.node.name].firewall, FirewallFacts)]
            self._facts.update(firewalls_again(filtered, self._facts, self._options.facts_limits))
            self._facts.update(failed_dials.look_up_routes(self._sessions, self._facts, mesh.failed))
            self._mesh = self._without_lost(mesh)
            state = self._sessions, self._facts, self._mesh
            asked = (item for item in self._options.questions(self.snapshot()) if isinstance(item, OtherNetworks))
            dials = tuple(dial for question in asked for dial in question.dials)
            nets = failed_dials.find_other_nets(*state, dials, limits.dial_s)
            interceptions = failed_dials.find_interceptions(*state, pods=bool(self._cluster.options(KubeFacts).pods))
            self._mesh = self._without_lost(
                self._mesh.model_copy(update={"elsewhere": nets, "intercepted": interceptions})
            )

    def _without_lost(self, mesh: Mesh) -> Mesh:
        self._leave_lost("the ports were tested")
        return mesh.among({session.node.name for session in self._sessions})

    def _leave_lost(self, meanwhile: str) -> None:
        self._sessions = self._crew.leave_lost(self._sessions, "mesh", f"the probe ended while {meanwhile}")
        answering = {session.node.name for session in self._sessions}
        self._facts = {name: facts for name, facts in self._facts.items() if name in answering}

    def names(self) -> None:
        """Resolve the hosts file's names on this machine if a host could not resolve a name or a connection failed."""
        tables = [facts.resolution.own for facts in self._facts.values() if isinstance(facts.resolution, Names)]
        lost = any(not entry.addresses for entry in chain(self._names.values(), *(table.values() for table in tables)))
        if lost or (isinstance(self._mesh, Mesh) and self._mesh.failed):
            names = (self._cluster.master_addr, *(node.address for node in self._cluster.nodes))
            self._resolved, self._aliases = look_up(names, self._clock.within(NAMES_S))

    def rate(self) -> None:
        """If requested, measure how fast the hosts can send data to each other."""
        if not self._options.rate:
            return
        if len(self._sessions) < 2:
            alone = len(self._cluster.nodes) == 1
            few = "fewer than two hosts were reached"
            self._rates = skipped("only one host: nothing to measure") if alone else unknown(few)
            return
        if self._refused is not None:
            self._rates = self._refused
            return
        jobs = running_jobs(self._facts)
        if jobs and not self._options.rate_beside_jobs:
            hosts = fold(dict.fromkeys(chain(*jobs.values())))
            self._rates = unknown(f"not measured: a job is running on {hosts}, which it would slow (--yes measures)")
            return
        if late := self._clock.lacks(rate.ROUND_S, "the rates"):
            self._rates = unknown(late)
            return

        def begin(rounds: int, seconds: float) -> None:
            self._start(f"rates: {plural(rounds, 'round')} of TCP at full speed, which load the network", seconds)

        def suspects(rates: Rates) -> Iterator[tuple[str, str, int]]:
            self._rates = rates
            asked = (item for item in self._options.questions(self.snapshot()) if isinstance(item, SlowRails))
            return (rail for question in asked for rail in question.rails)

        with self._clock.timed("rate"):
            rates = rate.run_rates(self._sessions, self._facts, self._cluster, self._clock.left, begin, suspects)
        self._leave_lost("rates were measured")
        names = {session.node.name for session in self._sessions}
        self._rates = rates.among(names) if isinstance(rates, Rates) else rates

    def smoke(self) -> None:
        """Run the all-reduce if it can succeed."""
        judged = isinstance(self._mesh, Mesh) or len(self._cluster.nodes) == 1
        limits = self._smoke_limits = replace(self._options.smoke_limits, own_port=judged)
        if not self._options.smoke:
            self._smoke = skipped(f"{NOT_ASKED} (--no-smoke)")
            return
        reason = allreduce.why_not(self._cluster, self._facts, self._mesh) or self._refused
        if reason is not None:
            self._smoke = reason
            return
        if late := self._clock.lacks(limits.deadline_s, "the all-reduce"):
            self._smoke = unknown(late)
            return
        self._start("all-reduce", limits.deadline_s)
        with self._clock.timed("smoke") as since:
            try:
                self._smoke = allreduce.run(
                    self._sessions, self._facts, self._cluster, limits, self._clock.until, self._progress
                )
            except ProbeError as error:
                self._smoke = unknown(f"could not be started: {error}")
        for rank in self._smoke.ranks if isinstance(self._smoke, Smoke) else ():
            self._clock.busy(rank.host, "smoke", since, since + max(rank.times.values(), default=0.0))

    def _bisect(self) -> None:
        """Repeat a failed all-reduce in groups of hosts to find the faulty host or pair of hosts."""
        smoke = self._smoke
        if not isinstance(smoke, Smoke) or smoke.outcome not in ("failed", "timeout") or len(self._sessions) < 3:
            return
        self._start("isolating")
        split: Phased[IsolationReport]
        with self._clock.timed("isolate"):
            try:
                split = isolation.run(self._sessions, self._facts, self._cluster, self._smoke_limits, self._clock.until)
                self._crew.still_there()
            except ProbeError as error:
                split = unknown(f"could not be repeated: {error}")
        self._smoke = smoke.model_copy(update={"isolation": split})

    def _go_on(self) -> None:
        self._crew.still_there()
        self._progress.refresh(self.snapshot)

    def close(self) -> None:
        self._crew.close()

    def snapshot(self) -> Snapshot:
        hosts = tuple(
            Host(node=node, facts=self._facts.get(node.name), failure=self._crew.failures.get(node.name))
            for node in self._cluster.nodes
        )
        return Snapshot(
            version=__version__,
            taken_at=self._began_at,
            cluster=self._cluster,
            hosts=hosts,
            mesh=self._mesh,
            rates=self._rates,
            smoke=self._smoke,
            resolved=self._resolved,
            aliases=self._aliases,
            names=self._names,
            load=self._load,
            spent=self._clock.spent,
            timings={name: round(s, 3) for name, s in (self._clock.timings | {"total": self._clock.now()}).items()},
        )

    def _start(self, phase: str, limit_s: float | None = None) -> None:
        self._progress.phase(phase, [session.node.name for session in self._sessions], limit_s)
