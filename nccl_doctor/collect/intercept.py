"""Whether something takes connections in a host's place: a sidecar of a service mesh, a transparent proxy.

Each host holds a port closed (bound, and nobody listens), and the one before it dials it. The kernel refuses that
whatever the load is; a proxy takes the connection first and looks for its target afterwards. It is tried where the
hosts are pods, or where a dial was taken and came to nothing.
"""

from __future__ import annotations

import secrets
import time

from nccl_doctor.collect import answers
from nccl_doctor.collect.asking import ask_once
from nccl_doctor.collect.mesh_addresses import address_of
from nccl_doctor.collect.mesh_dials import open_listeners
from nccl_doctor.collect.session import ProbeSession
from nccl_doctor.snapshot import Dial, HostFacts, Interception, Mesh

ANSWER_S = 5.0
DIAL_S = 1.0
CLOSED = {"address": "", "port": 0, "step": 0, "tries": 1, "mute": True}


def run(
    sessions: list[ProbeSession], facts: dict[str, HostFacts], mesh: Mesh, *, pods: bool
) -> tuple[Interception, ...]:
    """The dials to closed ports that somebody took."""
    if len(sessions) < 2 or not (pods or any(taken(dial) for dial in mesh.failed)):
        return ()
    nonce = secrets.token_hex(16)

    def hold(session: ProbeSession) -> int | None:
        return open_listeners(session, nonce, [CLOSED]).ports[0]

    held = ask_once(hold, sessions)
    first, *others = zip(sessions, held, strict=True)
    after = {session.node.name: other for session, other in zip(sessions, (*others, first), strict=True)}

    def dial(session: ProbeSession) -> Interception | None:
        other, port = after[session.node.name]
        if not isinstance(port, int):
            return None
        address = address_of(other.node, facts[other.node.name])
        deadline = time.monotonic() + 2 * DIAL_S + ANSWER_S
        targets = [[address, [port], nonce]]
        told = session.ask(answers.DIALLED, "dial", deadline, targets=targets, timeout_s=DIAL_S)
        names = {"src": session.node.name, "dst": other.node.name}
        met = [Dial(**names, address=address, port=port, outcome=row.outcome, error=row.error) for row in told.failed]
        is_taken = told.connected > 0 or any(taken(one) for one in met)
        return Interception(**names, address=address, port=port) if is_taken else None

    found = ask_once(dial, sessions)
    ask_once(lambda session: session.ask(answers.NOTHING, "unlisten", time.monotonic() + ANSWER_S), sessions)
    return tuple(one for one in found if isinstance(one, Interception))


def taken(dial: Dial) -> bool:
    """Whether the connection of a failed dial came about, with whomever."""
    return dial.outcome in ("stranger", "intercepted", "reset") or dial.error == "SILENT"
