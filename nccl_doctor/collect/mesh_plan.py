"""Who dials whom on which ports: pure planning of the port mesh."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nccl_doctor.snapshot import HostFacts, PortRange, Sample
from nccl_doctor.text.fewest import groups

MeshSize = Literal["auto", "full", "none"]

ALL_PAIRS_UP_TO = 128
"""Hosts up to which every pair is dialled."""

RANDOM_PEERS = 14
"""Beyond it, each host dials so many besides the master and its two neighbours in the ring of ranks."""

MOST_SUSPECTS = 16
"""Hosts that all others dial, after a dial failed that they explain."""

RANDOM_PORTS = 1
"""Besides both ends of a host's ephemeral range: three ports in all."""

TRIES = 16
"""How far a listener may step aside from a port that somebody holds."""

FIRST_UNPRIVILEGED = 1024
"""The kernel takes no range below net.ipv4.ip_unprivileged_port_start (ip-sysctl.rst), which this is by default."""

WHOLE = PortRange(low=32768, high=60999)
"""Linux' default for net.ipv4.ip_local_port_range, for hosts whose own could not be read."""


@dataclass(frozen=True)
class Target:
    """Where one host dials: a host's address, and the ports on it that are ours."""

    dst: str
    address: str
    ports: tuple[int, ...]


def own_nonce(nonce: str, name: str) -> str:
    """What one host's listeners say: of this run, and of this host alone."""
    return hashlib.sha256(f"{nonce} {name}".encode()).hexdigest()[:32]


def sampled(order: Sequence[str], size: MeshSize) -> Sample | None:
    """Which pairs of a job's hosts, by rank, are dialled; None for all of them.

    The random ones are drawn as a circle with fixed distances, so that every host dials as many as dial it; the same
    hosts draw the same.
    """
    count = len(order)
    if size == "full" or count <= ALL_PAIRS_UP_TO:
        return None
    draw = random.Random(" ".join(order))  # noqa: S311 - no secret
    return Sample(order=tuple(order), distances=(1, count - 1, *draw.sample(range(2, count - 1), RANDOM_PEERS)))


def partners(names: Collection[str], sample: Sample | None) -> dict[str, list[str]]:
    """For each host that takes part, whom it dials."""
    if sample is None:
        return {name: [other for other in names if other != name] for name in names}
    order, count = sample.order, len(sample.order)
    plan: dict[str, list[str]] = {}
    for rank, name in enumerate(order):
        wanted = order if rank == 0 else [order[0], *(order[(rank + far) % count] for far in sample.distances)]
        if name in names:
            plan[name] = [other for other in dict.fromkeys(wanted) if other in names and other != name]
    return {name: plan[name] for name in names}


def suspects(failed: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The fewest hosts that explain the pairs that failed; none where they are so many that a sample shows enough."""
    found = sorted(name for group in groups(failed) for name in group.guilty)
    return tuple(found) if len(found) <= MOST_SUSPECTS else ()


def listeners(facts: HostFacts, master_port: int | None, seed: str) -> list[dict[str, Any]]:
    """The listeners that a host is asked for: the master port where it is given, and a sample of its ephemeral range.

    NCCL and gloo bind port 0, so any port of the range may be theirs except the reserved ones; rules and cloud ACLs
    often open a part of the range only, hence both ends. Each is ``{"address", "port", "step", "tries"}``: a port that
    somebody holds is left for the next one in direction ``step``.
    """
    own = facts.port_range if isinstance(facts.port_range, PortRange) else WHOLE
    draw = random.Random(seed)  # noqa: S311 - no secret
    middle = draw.sample(range(own.low, own.high + 1), min(RANDOM_PORTS, own.high - own.low + 1))
    wanted = [(own.low, 1), (own.high, -1), *((port, 1) for port in middle)]
    taken = own.reserved_ports
    found = [
        {"address": "", "port": _unreserved(port, step, taken, own), "step": step, "tries": TRIES}
        for port, step in wanted
    ]
    if master_port is not None:
        found.insert(0, {"address": "", "port": master_port, "step": 0, "tries": 1})
    return found


def could_open(wanted: dict[str, Any], port: int) -> bool:
    """Whether a listener that was asked for may have come to this port: a step aside, or the kernel's own choice."""
    if wanted["port"] == 0:
        return port >= FIRST_UNPRIVILEGED
    return port in range(wanted["port"], wanted["port"] + (wanted["step"] or 1) * wanted["tries"], wanted["step"] or 1)


def _unreserved(port: int, step: int, taken: frozenset[int], own: PortRange) -> int:
    """The first port from here that may be given out; 0, the kernel's own choice, where none is left this way."""
    while port in taken:
        port += step
    return port if own.low <= port <= own.high else 0
