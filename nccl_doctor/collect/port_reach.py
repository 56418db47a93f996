"""Which of some free ports the other hosts can reach: the target listens on them, the others dial.

A port that is free is of no use where a firewall drops it; only what every host really connected to is suggested.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from nccl_doctor.collect.fanout import fan_out
from nccl_doctor.collect.port_machine import Machine

DIAL_S = 3.0
AT_ONCE = 64
"""Ports that are tried together: fewer than a host dials at once, so that one time-out is all that it costs."""


def reached(target: Machine, others: Sequence[Machine], address: str, ports: Sequence[int]) -> dict[str, set[int]]:
    """By host, those of the target's free ports, of which :data:`AT_ONCE` are tried, to which it connects.

    Raises:
        NotReachedError: a host did not answer.
    """
    nonce = secrets.token_hex(16)
    wanted = list(ports[:AT_ONCE])
    sockets = [{"address": "", "port": port, "step": 0, "tries": 1} for port in wanted]

    def dial(machine: Machine) -> set[int]:
        machine.ask("listen", nonce=nonce, sockets=[])
        told = machine.ask("dial", targets=[[address, good, nonce]], timeout_s=DIAL_S)
        return set(good) - {port for _, port, *_ in told["failed"]}

    try:
        listening = target.ask("listen", nonce=nonce, sockets=sockets)
        # what it was not asked for may be somebody else's
        good = sorted({port for port in listening["ports"] if port is not None} & set(wanted))
        found = fan_out(dial, others)
    finally:
        fan_out(lambda machine: machine.ask("unlisten"), [target, *others])
    connected: dict[str, set[int]] = {}
    for machine, answer in zip(others, found, strict=True):
        if isinstance(answer, Exception):
            raise answer
        connected[machine.name] = answer
    return connected
