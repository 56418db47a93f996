"""Where hosts can't reach each other: whether they could by another net that both are in.

The management net often isolates hosts from each other, and the data net is fine: then the setting is wrong, not the
network. Few pairs are tried, once, on one port of the kernel's choice.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable

from nccl_doctor.collect import answers
from nccl_doctor.collect.asking import ask_once
from nccl_doctor.collect.mesh_dials import open_listeners
from nccl_doctor.collect.mesh_plan import own_nonce
from nccl_doctor.collect.rails import on_link
from nccl_doctor.collect.session import ProbeSession
from nccl_doctor.nccl.reach import LOST
from nccl_doctor.snapshot import Dial, HostFacts, Interfaces, Mesh

PAIRS = 16
"""Hosts that one host tries."""

ADDRESSES = 4
"""Of one host that another one tries."""

ANSWER_S = 5.0
LISTENER = {"address": "", "port": 0, "step": 0, "tries": 1}

Met = dict[str, dict[str, tuple[str, ...]]]
"""By host and its address, who met its listener there."""


def run(
    sessions: list[ProbeSession], facts: dict[str, HostFacts], mesh: Mesh, failed: Iterable[Dial], dial_s: float
) -> Met:
    """Where the hosts of the dials that nothing on them explains can meet after all."""
    wanted = _wanted(facts, mesh, list(failed))
    if not wanted:
        return {}
    nonce = secrets.token_hex(16)
    ends = wanted.keys() | {dst for told in wanted.values() for dst, _ in told}
    concerned = [session for session in sessions if session.node.name in ends]

    def listen(session: ProbeSession) -> int | None:
        return open_listeners(session, own_nonce(nonce, session.node.name), [LISTENER]).ports[0]

    def dial(session: ProbeSession) -> list[tuple[str, str]]:
        told = [(dst, address) for dst, address in wanted.get(session.node.name, ()) if ports.get(dst)]
        targets = [[address, [ports[dst]], own_nonce(nonce, dst)] for dst, address in told]
        deadline = time.monotonic() + dial_s + ANSWER_S
        answer = session.ask(answers.DIALLED, "dial", deadline, targets=targets, timeout_s=dial_s)
        lost = {row.target for row in answer.failed}
        return [pair for place, pair in enumerate(told) if place not in lost]

    opened = ask_once(listen, concerned)
    named = zip((session.node.name for session in concerned), opened, strict=True)
    ports = {name: port for name, port in named if isinstance(port, int)}
    dialled = ask_once(dial, concerned)
    ask_once(lambda session: session.ask(answers.NOTHING, "unlisten", time.monotonic() + ANSWER_S), concerned)
    met: dict[str, dict[str, list[str]]] = {}
    for session, connected in zip(concerned, dialled, strict=True):
        for dst, address in () if isinstance(connected, Exception) else connected:
            met.setdefault(dst, {}).setdefault(address, []).append(session.node.name)
    return {dst: {address: tuple(sources) for address, sources in told.items()} for dst, told in met.items()}


def _wanted(facts: dict[str, HostFacts], mesh: Mesh, failed: list[Dial]) -> dict[str, list[tuple[str, str]]]:
    """By host, whom it dials where: those of whom it reached no port at all."""
    wanted: dict[str, list[tuple[str, str]]] = {}
    for src, dst in dict.fromkeys((dial.src, dial.dst) for dial in failed if dial.src != dial.dst):
        mine = [dial for dial in mesh.failures.get((src, dst), ()) if dial.outcome in LOST]
        seen = {dial.address for dial in mine}
        cut = any(all(_is_lost(mine, address, port) for port in mesh.ports.get(dst, ())) for address in seen)
        if not cut or src not in facts or dst not in facts or len(wanted.get(src, ())) >= PAIRS * ADDRESSES:
            continue
        theirs = facts[dst].interfaces
        others = [e.address for e in theirs.addresses] if isinstance(theirs, Interfaces) else []
        fitting = [address for address in others if address not in seen and on_link(facts[src], address)]
        if fitting:
            wanted.setdefault(src, []).extend((dst, address) for address in fitting[:ADDRESSES])
    return wanted


def _is_lost(dials: list[Dial], address: str, port: int) -> bool:
    return any((dial.address, dial.port) == (address, port) for dial in dials)
