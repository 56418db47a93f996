"""What the checks of hosts' own routes share: the failed dials that one kind of route fault explains, by host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nccl_doctor.checks.view import View
from nccl_doctor.firewall.route_lookup import Kind, RouteFault


@dataclass
class Hindered:
    """One host whose kernel stops dials, or answers to them.

    Attributes:
        route_faults: each kind of packet once.
        pairs: the ways between hosts that fail by it, "src" and "dst".
        peers: the hosts at the other ends.
    """

    host: str
    route_faults: dict[RouteFault, None] = field(default_factory=dict)
    pairs: list[dict[str, str]] = field(default_factory=list)
    peers: set[str] = field(default_factory=set)


def hindered(view: View, kind: Kind) -> Iterator[Hindered]:
    """The hosts whose routes or filters hinder dials, in the order of the failed dials."""
    found: dict[str, Hindered] = {}
    for dial in view.mesh.failed:
        fault = view.route_faults.get(dial)
        if fault is None or fault.kind != kind:
            continue
        one = found.setdefault(fault.host, Hindered(fault.host))
        pair = {"src": dial.src, "dst": dial.dst}
        peer = dial.dst if dial.src == one.host else dial.src
        one.route_faults[fault] = None
        one.peers.add(peer)
        if pair not in one.pairs:
            one.pairs.append(pair)
    yield from found.values()
