"""Whether full-size packets pass between hosts whose ports can be reached: one connection a pair, 32 KiB."""

from __future__ import annotations

import time

from nccl_doctor.collect import answers
from nccl_doctor.collect.answers import Dialled, MalformedError, PathMtuResult
from nccl_doctor.collect.asking import ask_all
from nccl_doctor.collect.mesh_plan import Target
from nccl_doctor.collect.session import ProbeSession
from nccl_doctor.snapshot import Stall, Unknown, unknown

PARTNERS = 8
"""Hosts that each one tries, the next in the list; every host is tried by as many."""

DEADLINE_S = 1.5
"""The kernel's first retransmission comes after 0.2 s; ten of them fit in."""

ANSWER_S = 3.0


def run(
    sessions: list[ProbeSession], targets: dict[str, list[Target]], dials: list[Dialled | Exception]
) -> tuple[Stall, ...] | Unknown:
    """The pairs between which large packets vanish.

    Args:
        sessions: the hosts.
        targets: by host, where it dialled.
        dials: each session's answer to its dials; only what answered there is tried.
    """
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
        deadline = time.monotonic() + DEADLINE_S + ANSWER_S
        told = session.ask(answers.PATH_MTU, "path_mtu", deadline, targets=wanted, deadline_s=DEADLINE_S)
        if len(told) != len(wanted):
            raise session.gone(MalformedError("large packets to others than it was asked for"))
        return tuple(_stall(session, *row) for row in zip(mine, told, strict=True) if row[1].outcome == "stalled")

    found = ask_all(ask, sessions)
    stalls = tuple(stall for result in found if not isinstance(result, Exception) for stall in result)
    broken = [f"{name}: {result}" for name, result in zip(names, found, strict=True) if isinstance(result, Exception)]
    return unknown(f"large packets could not be tried: {broken[0]}") if broken and not stalls else stalls


def _stall(session: ProbeSession, target: Target, told: PathMtuResult) -> Stall:
    return Stall(
        src=session.node.name,
        dst=target.dst,
        address=target.address,
        sent=told.sent,
        unacked=told.unacked,
        segment=told.segment,
    )
