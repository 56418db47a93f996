"""The port mesh: every host listens, every host dials every other one, in both directions.

Each host listens on a sample of its own ephemeral range, from which NCCL's and gloo's listeners come, and the master
also on the master port, where nobody holds it. A port that another program holds is never dialled: NCCL before 2.27.3
dies of a stranger's connection. The controller sends each host two requests, however many pairs there are.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from nccl_doctor.collect import answers
from nccl_doctor.collect.answers import Dialled, Listening, MalformedError, PathMtuResult
from nccl_doctor.collect.connect.reach import Window, ask_all
from nccl_doctor.collect.connect.session import ProbeSession
from nccl_doctor.collect.mesh.dials import Dialling, doubts, failed_pairs, listening, together
from nccl_doctor.collect.mesh.plan import (
    MeshSize,
    Target,
    address_of,
    listeners,
    own_nonce,
    partners,
    sampled,
    suspects,
)
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.report import FailedDial
from nccl_doctor.snapshot import HostFacts, Mesh, PortTrial, Stall, Unknown, unknown

PARTNERS = 8
"""Hosts that each one tries, the next in the list; every host is tried by as many."""

DEADLINE_S = 1.5
"""The kernel's first retransmission comes after 0.2 s; ten of them fit in."""

MTU_ANSWER_S = 3.0


def find_stalls(
    sessions: list[ProbeSession], targets: dict[str, list[Target]], dials: list[Dialled | Exception]
) -> tuple[Stall, ...] | Unknown:
    """The pairs between which large packets vanish, of those whose dials were answered."""
    names = [session.node.name for session in sessions]
    chosen: dict[str, list[Target]] = {}
    for place, (name, answer) in enumerate(zip(names, dials, strict=True)):
        if not isinstance(answer, Exception):
            near = {names[(place + step) % len(names)] for step in range(1, PARTNERS + 1)} - {name}
            unreached = {row.target for row in answer.failed}
            reached = {t.dst: t for index, t in reversed([*enumerate(targets[name])]) if index not in unreached}
            chosen[name] = [target for dst, target in reached.items() if dst in near]

    def ask(session: ProbeSession) -> tuple[Stall, ...]:
        mine = chosen.get(session.node.name, [])
        wanted = [[target.address, target.ports[-1]] for target in mine]
        if not wanted:
            return ()
        deadline = time.monotonic() + DEADLINE_S + MTU_ANSWER_S
        told = session.ask(answers.PATH_MTU, "path_mtu", deadline, targets=wanted, deadline_s=DEADLINE_S)
        if len(told) != len(wanted):
            raise session.gone(MalformedError("large packets to others than it was asked for"))
        return tuple(_stall(session, *row) for row in zip(mine, told, strict=True) if row[1].outcome == "stalled")

    found = ask_all(ask, sessions, window=Window())
    stalls = tuple(stall for result in found if not isinstance(result, Exception) for stall in result)
    broken = [f"{name}: {result}" for name, result in zip(names, found, strict=True) if isinstance(result, Exception)]
    return unknown(f"large packets could not be tried: {broken[0]}") if broken and not stalls else stalls


def _stall(session: ProbeSession, target: Target, result: PathMtuResult) -> Stall:
    return Stall(
        src=session.node.name,
        dst=target.dst,
        address=target.address,
        sent=result.sent,
        unacked=result.unacked,
        segment=result.segment,
    )


_MOST_ERRORS = 8
"""Errors of one host's listeners that are told; it opens fewer."""


@dataclass(frozen=True)
class MeshLimits:
    """How much is dialled: seconds for one connection, and which pairs."""

    dial_s: float = 3.0
    size: MeshSize = "auto"


def run_mesh(
    sessions: list[ProbeSession],
    facts: dict[str, HostFacts],
    cluster: Cluster,
    limits: MeshLimits,
    on_done: Callable[[ProbeSession], None],
) -> Mesh:
    """Opens the listeners, dials them all, closes them."""
    nonce = secrets.token_hex(16)
    names = [session.node.name for session in sessions]
    with listening(sessions, nonce, partial(_sockets, facts, cluster, nonce), Window()) as opened:
        ports, silent = _listening(opened)
        sample = sampled([node.name for node in cluster.nodes], limits.size)
        addresses = {session.node.name: address_of(session.node, facts[session.node.name]) for session in sessions}
        dialling = Dialling(sessions, facts, cluster, limits.dial_s, nonce, ports, addresses)
        targets, dialled = dialling.run(partners(dict.fromkeys(names), sample), on_done, sample, oneself=True)
        if sample is not None and (found := suspects(failed_pairs(targets, names, dialled))):
            first, sample = sample, sample.model_copy(update={"by_all": found})
            plan = {name: [dst for dst in found if dst != name and not first.holds(name, dst)] for name in names}
            targets, dialled = together(names, (targets, dialled), dialling.run(plan, lambda _session: None))
        stalls = find_stalls(sessions, targets, dialled)
    silent.update(doubts(dialling.doubtful))
    failed: list[FailedDial] = []
    tested = 0
    for name, answer in zip(names, dialled, strict=True):
        if isinstance(answer, Exception):
            silent[name] = f"did not report its dials: {answer}"
            continue
        tested += len({target.dst for target in targets[name]} - {name})
        for row in answer.failed:
            to = targets[name][row.target]
            failed.append(
                FailedDial(
                    src=name,
                    dst=to.dst,
                    address=to.address,
                    port=row.port,
                    outcome=row.outcome,
                    error=row.error,
                    seconds=row.seconds,
                )
            )
    return Mesh(
        hosts=len(names),
        pairs=len(names) * (len(names) - 1),
        tested=tested,
        ports=ports,
        failed=tuple(failed),
        not_listening=silent,
        stalls=stalls,
        answered=_answered(targets, dict(zip(names, dialled, strict=True))),
        rails={name: {to: dialling.used[name].of(to) for to in extra} for name, extra in dialling.beside.items()},
        sample=sample,
    )


def _answered(
    targets: dict[str, list[Target]], dialled: Mapping[str, Dialled | Exception]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """By host and address, who met its listener there."""
    met: dict[str, dict[str, tuple[str, ...]]] = {}
    for name, answer in dialled.items():
        if isinstance(answer, Exception):
            continue
        failed = Counter(row.target for row in answer.failed)
        for place, to in enumerate(targets[name]):
            if failed[place] < len(to.ports) and to.dst != name:  # nobody vouches for himself
                mine = met.setdefault(to.dst, {})
                mine[to.address] = (*mine.get(to.address, ()), name)
    return met


def _sockets(
    facts: Mapping[str, HostFacts], cluster: Cluster, nonce: str, session: ProbeSession
) -> list[dict[str, Any]]:
    own = facts[session.node.name]
    trial = own.master_port
    free = session.node.node_rank == 0 and isinstance(trial, PortTrial) and trial.free
    return listeners(own, cluster.master_port if free else None, own_nonce(nonce, session.node.name))


def _listening(opened: Mapping[str, Listening | Exception]) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """By host, the ports it listens on, and why it does not listen on some."""
    ports: dict[str, tuple[int, ...]] = {}
    silent: dict[str, str] = {}
    for name, answer in opened.items():
        if isinstance(answer, Exception):
            silent[name] = f"could not listen: {answer}"
            continue
        ports[name] = tuple(port for port in answer.ports if port is not None)
        if answer.errors:
            some = dict.fromkeys([*answer.errors.values()][:_MOST_ERRORS])
            silent[name] = f"could not listen on all ports: {', '.join(some)}"
    return ports, silent
