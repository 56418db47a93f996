"""Starts the all-reduce on all hosts simultaneously over the existing connections, and monitors it until it ends.

The reports from the ranks are converted to facts for the checks when the all-reduce has ended.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from nccl_doctor.collect.smoke.plan import SmokeLimits, SmokePlan, environment, plan
from nccl_doctor.crew import answers
from nccl_doctor.crew.parallel import AllAtOnce, apart, fan_out
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.model.base import Phased, Skipped, skipped
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.report import STAGES, ErrorKind, RankReport, SizeReport, Stage
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.snapshot.mesh import Mesh, Stall
from nccl_doctor.snapshot.network import PortTrial
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.text.hostlist import fold, grouped

if TYPE_CHECKING:
    from nccl_doctor.logs.facts import Facts


GRACE_S = 3.0  # after the first failure, time for the other ranks to report what they noticed
ACCUSE_S = 15.0  # after a wrong sum, time for the ranks to find out which of them it comes from
START_S = 20.0  # least time for an interpreter to start, from the last sign of its work
IMPORT_TIMES = 2.0  # ratio to the slowest import of torch so far that a rank may take
ANSWER_S = 8.0  # time for a host to read stacks, learn how ranks died, end the others and report that
MOST_EVENTS = 400
"""Maximum number of reports from one rank.

The maximum is more than four times the number of reports that a rank sends. A rank reports only its stages and states,
and rank 0 also reports each message size.
"""
SEND_S = 10.0
POLL_S = 0.25


class SmokeProgress(Protocol):
    """The part of a run's progress observer that the all-reduce uses."""

    def stage(self, host: str, stage: str, size: int | None = None) -> None:
        """Record the stage of a host's slowest rank, and the size of the last measured message."""

    def done(self, host: str) -> None: ...


def why_not(cluster: Cluster, facts: dict[str, HostFacts], mesh: Phased[Mesh]) -> Skipped | None:
    """Return why the all-reduce can't succeed, or None if it should be run."""
    away = [node.name for node in cluster.nodes if node.name not in facts]
    if away:
        return skipped(f"needs every host; not reached: {fold(away)}")
    without = [node.name for node in cluster.nodes if facts[node.name].torch is None]
    if without:
        return skipped(f"needs torch, which is missing on {fold(without)}")
    trial = facts[cluster.nodes[0].name].master_port
    if isinstance(trial, PortTrial) and not trial.free:
        return skipped(f"not run: port {trial.port} is busy")
    vanishing = [entry for entry in (mesh.stalls if isinstance(mesh, Mesh) else ()) if isinstance(entry, Stall)]
    if ends := {name for entry in vanishing if entry.by_size for name in (entry.src, entry.dst)}:
        return skipped(f"not run: large packets are lost between {fold(sorted(ends))}")
    if isinstance(mesh, Mesh) and mesh.failed:
        lost = {entry.dst for entry in mesh.lost_connections if entry.by_port}
        closed = {dial.dst for dial in mesh.failed} - lost
        where = fold(closed or lost)
        return skipped(
            f"not run: {f'ports on {where} are unreachable' if closed else f'connections to {where} are lost'}"
        )
    return None


def begin_import(session: ProbeSession, deadline: float, *, asked: bool) -> None:
    """Have a host import torch in the background. A busy host imports torch only after its facts have been queried.

    Raises ProbeError if the request can't be sent.
    """
    load = session.hello.load
    if asked is (load is None or load.queue + 1 > load.cpus):
        session.send(answers.IMPORT_TORCH, deadline, env=environment(session.node))


def run(
    sessions: list[ProbeSession],
    facts: dict[str, HostFacts],
    cluster: Cluster,
    limits: SmokeLimits,
    until: float,
    progress: SmokeProgress,
) -> Smoke:
    """Start the ranks on all hosts simultaneously and monitor them until ``until`` (monotonic clock) at the latest.

    Raises ProbeError if the ranks can't be started.
    """
    what = plan(cluster, facts, limits)
    port = store_port(sessions[0], what)
    all_reduce = AllReduceRun(what, until - ANSWER_S)
    numbers = {
        s.node.name: s.send(answers.SMOKE, time.monotonic() + SEND_S, **what.request(s.node, port)) for s in sessions
    }

    def stop() -> None:
        fan_out(lambda session: session.send(answers.STOP, time.monotonic() + ANSWER_S), sessions)

    def follow(session: ProbeSession) -> None:
        name = session.node.name

        def on_event(event: answers.RankEvent) -> None:
            all_reduce.event(name, event)
            progress.stage(name, all_reduce.stage(name), event.size.bytes if event.size else None)

        @apart
        def wait(session: ProbeSession) -> answers.SmokeEnd:
            return session.wait(answers.SMOKE, numbers[name], time.monotonic() + POLL_S, on_event)

        while True:
            try:
                return all_reduce.end(name, wait(session))
            except answers.NoAnswerError:
                if all_reduce.given_up:
                    return all_reduce.end(
                        name, answers.SmokeEnd(broken="the host gave no answer when the all-reduce was to be stopped")
                    )
            except answers.ProbeError as error:
                return all_reduce.end(name, answers.SmokeEnd(broken=str(error)[:500]))

    threading.Thread(target=all_reduce.watch, args=(stop,), daemon=True).start()
    fan_out(follow, sessions, lambda session: progress.done(session.node.name), AllAtOnce(len(sessions)))
    limits.keep_output({name: end.output for name, end in all_reduce.ends.items()})
    return result(what, all_reduce)


def store_port(master: ProbeSession, what: SmokePlan) -> int:
    """Return the port of the ranks' store on the master.

    If the master port has already been tested, a free port is used instead, because a job might be starting on the
    master port.
    """
    if not what.limits.own_port:
        return what.cluster.master_port
    return master.ask(answers.FREE_PORT, time.monotonic() + SEND_S)


@dataclass
class ReportedRank:
    """The state that a rank has reported, with the field names of :class:`~nccl_doctor.model.report.RankReport`."""

    host: str
    local_rank: int
    stage: Stage = "none"
    error: str | None = None
    error_kind: ErrorKind | None = None
    pid: int | None = None
    torch: str | None = None
    nccl: str | None = None
    state: str | None = None
    stack: tuple[str, ...] = ()
    exit_code: int | None = None
    own_s: float | None = None
    busy: float | None = None
    times: dict[str, float] = field(default_factory=dict)

    def take(self, event: answers.RankEvent) -> None:
        if event.stage is not None:
            self.stage = event.stage
            self.times[self.stage] = round(event.since, 3)
        for name in ("error", "error_kind", "pid", "torch", "nccl", "state", "exit_code", "own_s", "busy"):
            if name in event.model_fields_set and getattr(event, name) is not None:
                setattr(self, name, getattr(event, name))
        self.stack = event.stack or self.stack


class AllReduceRun:
    """State shared by the threads that read from the hosts and the thread that watches the deadline.

    The list ``ranks`` is ordered by node.
    """

    def __init__(self, plan: SmokePlan, until: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start timing the all-reduce, which ends at ``until`` at the latest."""
        self._clock = clock
        self.ranks: list[ReportedRank] = []
        self.sizes: list[SizeReport] = []
        self.wrong_groups: set[tuple[int, ...]] = set()
        self.ends: dict[str, answers.SmokeEnd] = {}
        self.timed_out = False
        self._offsets: dict[str, int] = {}
        for host, count in plan.counts.items():
            self._offsets[host] = len(self.ranks)
            self.ranks += [ReportedRank(host, local) for local in range(count)]
        self._counts, self._events = plan.counts, dict[str, int]()
        self._limits, self._until = plan.limits, until
        self._began = self._clock()
        self._stop_at = min(until, self._began + max(plan.limits.deadline_s, START_S))
        self._failed = False
        self._stopped_at: float | None = None
        self._changed = threading.Condition()

    def event(self, host: str, event: answers.RankEvent) -> None:
        """Record a report from a rank on this host.

        Raises MalformedError if the host has no such rank or sends too many reports.
        """
        with self._changed:
            self._events[host] = self._events.get(host, 0) + 1
            if event.local_rank >= self._counts[host] or self._events[host] > MOST_EVENTS * self._counts[host]:
                raise answers.MalformedError("reports of ranks that are not there")
            number = self._offsets[host] + event.local_rank
            if event.working is not None:
                self._wait_for_start()
                return
            if event.size is not None or event.wrong_group is not None:
                if event.size is not None and number != 0:
                    raise answers.MalformedError("timings that rank 0 reports")
                group = event.wrong_group or (number,)
                if number not in group or max(group) >= len(self.ranks):
                    raise answers.MalformedError("a wrong sum of ranks that are not its own")
                self.sizes += [] if event.size is None else [event.size]
                self.wrong_groups |= set() if event.wrong_group is None else {group}
                return
            self.ranks[number].take(event)
            if event.error is not None:
                self._fail(ACCUSE_S if event.error_kind == "wrong-sum" else GRACE_S)
            elif event.exit_code and self.ranks[number].stage != "done":
                self._fail(GRACE_S)
            if event.stage in ("started", "torch") and not self._failed:
                self._set_deadline()

    def stage(self, host: str) -> str:
        first = self._offsets[host]
        return min((rank.stage for rank in self.ranks[first : first + self._counts[host]]), key=STAGES.index)

    def end(self, host: str, answer: answers.SmokeEnd) -> None:
        with self._changed:
            self.ends[host] = answer
            if answer.exit != 0:
                self._fail(GRACE_S)
            self._changed.notify_all()

    def watch(self, stop: Callable[[], None]) -> None:
        """Call ``stop`` once, at the deadline or shortly after the first failure.

        Returns when the all-reduce has ended on all hosts, or when the run stops waiting for hosts that have not
        answered.
        """
        with self._changed:
            while len(self.ends) < len(self._offsets):
                left = self.left_s
                if self._stopped_at is None and left <= 0:
                    self._stopped_at = self._clock()
                    self.timed_out = not self._failed
                    # not in this thread: a host that does not read must not delay the deadline
                    threading.Thread(target=stop, daemon=True).start()
                self._changed.wait(left if self._stopped_at is None else ANSWER_S)
                if self.given_up:
                    return

    @property
    def left_s(self) -> float:
        """Seconds until the current deadline."""
        return self._stop_at - self._clock()

    @property
    def given_up(self) -> bool:
        """True once the run has stopped waiting for hosts that have not answered."""
        return self._stopped_at is not None and self._clock() > self._stopped_at + ANSWER_S

    def _wait_for_start(self) -> None:
        if not self._failed and all(rank.stage == "none" for rank in self.ranks):
            latest = min(self._clock() + START_S, self._began + self._limits.imports_s, self._until)
            self._stop_at = max(self._stop_at, latest)
            self._changed.notify_all()

    def _set_deadline(self) -> None:
        """Update the deadline after a rank has started or has imported torch."""
        now, limits = self._clock(), self._limits
        latest = self._began + max(limits.imports_s, limits.deadline_s)
        there = sum("torch" in rank.times for rank in self.ranks)
        if there == len(self.ranks):
            latest = now + limits.deadline_s
        elif there:
            # ranks that have not got that much time again, and no less than the deadline
            latest = min(latest, now + max(limits.deadline_s, IMPORT_TIMES * (now - self._began)))
        self._stop_at = min(latest, self._until)
        self._changed.notify_all()

    def _fail(self, grace_s: float) -> None:
        if not self._failed:
            self._failed = True
            self._stop_at = min(self._stop_at, self._clock() + grace_s)
            self._changed.notify_all()


KEPT_LINES = 400  # last lines of a host's ranks that are kept
KEPT_CHATTER = 200  # fewer of NCCL's INFO lines among them


def result(plan: SmokePlan, all_reduce: AllReduceRun) -> Smoke:
    ranks: list[RankReport] = []
    facts: dict[str, Facts] = {}
    for name, pairs in grouped((rank.host, (number, rank)) for number, rank in enumerate(all_reduce.ranks)).items():
        lines = all_reduce.ends[name].output if name in all_reduce.ends else ()
        try:
            mine, host_facts = answers.attempt(partial(_of_host, pairs, lines, nccl=plan.backend == "nccl"))
        except answers.OwnFaultError as error:
            all_reduce.ends[name] = answers.SmokeEnd(broken=str(error))
            mine, host_facts = [_rank(number, rank, None) for number, rank in pairs], None
        ranks += mine
        facts.update({} if host_facts is None else {name: host_facts})
    world = range(len(ranks))
    rings = next((entry.rings for entry in facts.values() if entry.rings), {})
    wrong = any(rank.error_kind == "wrong-sum" for rank in all_reduce.ranks)
    outcome: Literal["ok", "failed", "timeout", "wrong-result"] = "wrong-result" if wrong else "failed"
    ends = all_reduce.ends.values()
    if all(rank.stage == "done" for rank in all_reduce.ranks) and not any(end.broken for end in ends):
        outcome = "ok"
    elif not wrong and not any(map(_died, ranks)) and (all_reduce.timed_out or any(end.timed_out for end in ends)):
        outcome = "timeout"
    return Smoke(
        backend=plan.backend,
        reason=plan.reason,
        world_size=len(ranks),
        outcome=outcome,
        deadline_s=plan.limits.deadline_s,
        ranks=tuple(ranks),
        sizes=tuple(all_reduce.sizes),
        wrong_groups=tuple(sorted(all_reduce.wrong_groups)),
        output={name: tuple(kept(end.output)) for name, end in all_reduce.ends.items()},
        launchers=_launchers(plan, all_reduce, ranks),
        launcher_exits={name: end.exit for name, end in all_reduce.ends.items() if end.exit and end.broken is None},
        launcher_signals={
            name: end.signal for name, end in all_reduce.ends.items() if end.signal is not None and end.broken is None
        },
        rdma_grown={
            name: end.counters
            for name, end in all_reduce.ends.items()
            if end.counters is not None and any(r.host == name and r.network not in (None, "Socket") for r in ranks)
        },
        rings=tuple(ring for _, ring in sorted(rings.items()) if all(rank in world for rank in ring)),
        trees={rank: text for entry in facts.values() for rank, text in entry.trees.items() if rank in world},
    )


def _of_host(
    ranks: list[tuple[int, ReportedRank]], lines: tuple[str, ...], *, nccl: bool
) -> tuple[list[RankReport], Facts | None]:
    from nccl_doctor.logs.facts import facts_of

    facts = facts_of(lines) if nccl else None
    return [_rank(number, rank, facts) for number, rank in ranks], facts


def kept(lines: Iterable[str]) -> list[str]:
    """Return the last lines of a host's output in their original order.

    At most :data:`KEPT_CHATTER` INFO lines of NCCL and :data:`KEPT_LINES` other lines are returned.
    """
    messages: deque[tuple[int, str]] = deque(maxlen=KEPT_LINES)
    chatter: deque[tuple[int, str]] = deque(maxlen=KEPT_CHATTER)
    for number, line in enumerate(lines):
        (chatter if "NCCL INFO" in line else messages).append((number, line))
    return [line for _, line in sorted((*messages, *chatter))]


def _rank(number: int, rank: ReportedRank, facts: Facts | None) -> RankReport:
    code = rank.exit_code
    process = None
    if facts is not None and rank.pid is not None:
        process = next((p for p in facts.processes.values() if p.pid == str(rank.pid)), None)
    same = {key: value for key, value in vars(rank).items() if key not in ("exit_code", "own_s", "busy")}
    return RankReport(
        rank=number,
        **same,
        ok=rank.stage == "done",
        exit_code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        own_s=None if rank.own_s is None else max(rank.own_s, 0.0),
        busy=None if rank.busy is None else max(rank.busy, 0.0),
        interfaces=tuple(f"{entry.name}:{entry.address}" for entry in process.interfaces) if process else (),
        network=process.network if process else None,
        plugin=process.plugin if process else None,
        transports=dict(process.transports) if process else {},
    )


def _died(rank: RankReport) -> bool:
    """Return whether a rank died without reporting an error.

    SIGABRT is not counted, since the loss of a peer can cause it.
    """
    died = rank.state == "X" or rank.signal is not None or rank.exit_code is not None
    return died and not rank.ok and rank.error is None and rank.signal != signal.SIGABRT


def _launchers(plan: SmokePlan, all_reduce: AllReduceRun, ranks: Iterable[RankReport]) -> dict[str, str]:
    """Return, for each host, why the process that forks the ranks failed, unless failed ranks explain the failure."""
    explained = {rank.host for rank in ranks if rank.error or rank.exit_code is not None or rank.signal is not None}
    failures: dict[str, str] = {}
    for name in plan.counts:
        end = all_reduce.ends.get(name, answers.SmokeEnd(broken="the host gave no answer"))
        if end.broken is not None:
            failures[name] = end.broken
        elif end.signal is not None:
            failures[name] = f"the process that starts its ranks was killed by {signal_name(end.signal)}"
        elif end.exit not in (0, None) and name not in explained:
            failures[name] = f"the process that starts its ranks ended with status {end.exit}"
    return failures


def signal_name(number: int) -> str:
    """Return a name such as ``SIGKILL``, or ``signal 64`` for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
