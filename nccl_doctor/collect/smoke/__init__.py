"""The all-reduce: starts it on all hosts at once, over the connections that stand, and follows it to its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from nccl_doctor.collect import answers
from nccl_doctor.collect.answers import NoAnswerError, ProbeError, RankEvent, SmokeEnd
from nccl_doctor.collect.connect.reach import AllAtOnce, apart, fan_out
from nccl_doctor.collect.connect.session import ProbeSession
from nccl_doctor.collect.smoke.outcome import ANSWER_S, AllReduceRun, result
from nccl_doctor.collect.smoke.plan import SmokeLimits, environment, plan
from nccl_doctor.model.base import Phased, Skipped, skipped
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.network import PortTrial
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.text.hostlist import fold

SEND_S = 10.0
POLL_S = 0.25


class Watcher(Protocol):
    """Follows how far the all-reduce is."""

    def stage(self, host: str, stage: str, size: int | None = None) -> None:
        """The slowest rank of a host has come so far, and a message of so many bytes was measured."""

    def done(self, host: str) -> None:
        """A host has ended."""


def why_not(cluster: Cluster, facts: dict[str, HostFacts], mesh: Phased[Mesh]) -> Skipped | None:
    """The reason for which the all-reduce could not succeed and is spared; None where it is worth trying."""
    away = [node.name for node in cluster.nodes if node.name not in facts]
    if away:
        return skipped(f"needs every host; not reached: {fold(away)}")
    without = [node.name for node in cluster.nodes if facts[node.name].torch is None]
    if without:
        return skipped(f"needs torch, which is missing on {fold(without)}")
    trial = facts[cluster.nodes[0].name].master_port
    if isinstance(trial, PortTrial) and not trial.free:
        return skipped(f"could not succeed while port {trial.port} is not free")
    if isinstance(mesh, Mesh) and mesh.failed:
        return skipped(f"could not succeed while ports are closed on {fold(sorted({d.dst for d in mesh.failed}))}")
    return None


def begin_import(session: ProbeSession, deadline: float) -> None:
    """Has a host import torch while it is asked other things, unless it is busy; ProbeError where it is lost."""
    load = session.hello.load
    if load is not None and load.queue + 1 <= load.cpus:
        session.send("import_torch", deadline, env=environment(session.node))


def run(
    sessions: list[ProbeSession],
    facts: dict[str, HostFacts],
    cluster: Cluster,
    limits: SmokeLimits,
    until: float,
    watcher: Watcher,
) -> Smoke:
    """Starts every node's ranks at once and follows them to the end; ProbeError where that can't be begun.

    At ``until`` (:func:`time.monotonic`) the last host has answered, or is given up.
    """
    what = plan(cluster, facts, limits)
    all_reduce = AllReduceRun(what, until - ANSWER_S)
    numbers = {s.node.name: s.send("smoke", time.monotonic() + SEND_S, **what.request(s.node)) for s in sessions}

    def stop() -> None:
        fan_out(lambda session: session.send("stop", time.monotonic() + ANSWER_S), sessions)

    def follow(session: ProbeSession) -> None:
        name = session.node.name

        def on_event(event: RankEvent) -> None:
            all_reduce.event(name, event)
            watcher.stage(name, all_reduce.stage(name), event.size.bytes if event.size else None)

        all_reduce.end(name, _answer(session, numbers[name], all_reduce, on_event))

    threading.Thread(target=all_reduce.watch, args=(stop,), daemon=True).start()
    fan_out(follow, sessions, lambda session: watcher.done(session.node.name), AllAtOnce(len(sessions)))
    limits.keep_output({name: end.output for name, end in all_reduce.ends.items()})
    return result(what, all_reduce)


def _answer(
    session: ProbeSession, number: int, all_reduce: AllReduceRun, on_event: Callable[[RankEvent], None]
) -> SmokeEnd:
    """The last answer of a host's probe, or why there is none."""

    @apart
    def wait(session: ProbeSession) -> SmokeEnd:
        return session.wait(answers.SMOKE_END, number, time.monotonic() + POLL_S, on_event)

    while True:
        try:
            return wait(session)
        except NoAnswerError:
            if all_reduce.given_up:
                return SmokeEnd(broken="it gave no answer when it was told to stop")
        except ProbeError as error:
            return SmokeEnd(broken=str(error)[:500])
