"""Measures TCP rates in rounds, in which every host sends to one host and receives from one host.

In small clusters, every pair is measured. In larger clusters, random pairs and neighbours in the ring of ranks are
measured. Each rail is measured separately, with the sender's socket bound to the rail's address. Slow rates are
measured again while no other host is sending, because busy hosts and full outgoing links delay acknowledgements and
could be mistaken for slow links.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from nccl_doctor.collect.mesh import plan
from nccl_doctor.collect.mesh.dials import listening
from nccl_doctor.crew import answers
from nccl_doctor.crew.answers import MalformedError, NoRate
from nccl_doctor.crew.parallel import Window, ask_all
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.model.base import Unknown, unknown
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.nccl.host_nccl import nccl_interface
from nccl_doctor.snapshot.hosts import Host, HostFacts
from nccl_doctor.snapshot.network import REAL, Interfaces
from nccl_doctor.snapshot.rate import Figures, LostRate, PairRate, RateLink, Rates
from nccl_doctor.text import inet

ALL_PAIRS_UP_TO = 16  # hosts up to which every pair is measured
# in larger clusters, random hosts to which each host sends besides its two neighbours in the ring of ranks
RANDOM_PEERS = 6
WINDOW_S = 0.5
MOST_BYTES = 64 << 30  # bytes of one stream; 800 Gb/s for its longest time
ROUND_S = 8.0  # time for an answer: handshakes, slow start, and the same with more streams
USUAL_ROUND_S = 0.9
LINKS_S = 5.0


@dataclass(frozen=True)
class WantedRail:
    """A rail to measure, from one host to another."""

    src: str
    dst: str
    rail: int
    interface: str
    peer_interface: str
    source: str
    address: str


DataInterfaces = tuple[tuple[str, str], ...]
"""The interfaces over which NCCL transfers data on a host, each with its address."""


def ends_of(node: Node, facts: HostFacts) -> DataInterfaces:
    """Return NCCL's interfaces on a host, or else gloo's interfaces, or else only the interface of NCCL's bootstrap."""
    used = plan.of_host(node, facts)
    interfaces = tuple((entry.name, entry.address) for entry in (used.nccl or used.gloo))
    chosen = nccl_interface(Host(node=node, facts=facts))
    return interfaces or (((chosen.name, chosen.address),) if chosen is not None else ())


def distances(count: int) -> list[int]:
    """Return, for each round, the distance in the ring of ranks between a sender and its receiver."""
    if count <= ALL_PAIRS_UP_TO:
        return [*range(1, count)]
    draw = random.Random(count)  # noqa: S311 - no secret
    return [1, count - 1, *draw.sample(range(2, count - 1), RANDOM_PEERS)]


def rounds(
    names: Sequence[str], ends: dict[str, DataInterfaces], reaches: Callable[[str, str, str], bool]
) -> list[list[WantedRail]]:
    """Return all rounds for all rails; ``reaches`` returns whether a host may send to another host's address."""
    count = len(names)
    result: list[list[WantedRail]] = []
    for behind in distances(count):
        for rail in range(max(map(len, ends.values()), default=0)):
            pairs = ((src, names[(place + behind) % count]) for place, src in enumerate(names))
            wanted = (_wanted(src, dst, rail, ends) for src, dst in pairs)
            result.append([item for item in wanted if item is not None and reaches(item.src, item.dst, item.address)])
    return [item for item in result if item]


def _wanted(src: str, dst: str, rail: int, ends: dict[str, DataInterfaces]) -> WantedRail | None:
    """Return both ends of a rail, or None if a host lacks this rail or the IP versions differ."""
    if rail >= min(len(ends[src]), len(ends[dst])):
        return None
    (interface, source), (peer_interface, address) = ends[src][rail], ends[dst][rail]
    same = inet.address_of(source).version == inet.address_of(address).version
    return WantedRail(src, dst, rail, interface, peer_interface, source, address) if same else None


def run_rates(
    sessions: list[ProbeSession],
    facts: dict[str, HostFacts],
    cluster: Cluster,
    left_s: Callable[[], float],
    begin: Callable[[int, float], None],
    suspects: Callable[[Rates], Iterable[tuple[str, str, int]]],
) -> Rates | Unknown:
    """Measure rates until no time is left for another round.

    ``begin`` is called first, with the number of rounds and their total time in seconds. ``suspects`` returns the
    sender, receiver and rail of each rate to measure again.
    """
    names = [session.node.name for session in sessions]
    nodes = {node.name: node for node in cluster.nodes}
    ends = {name: ends_of(nodes[name], facts[name]) for name in names}
    info = {name: interfaces for name in names if isinstance(interfaces := facts[name].interfaces, Interfaces)}

    def reaches(src: str, dst: str, address: str) -> bool:
        rail = address in (end for _, end in ends[dst]) and plan.on_link(facts[src], address)
        return rail or plan.confirmed(address, nodes[dst], facts[src])

    planned = rounds(names, ends, reaches)
    if not planned:
        return unknown("no host knows an interface of its own and another's by which NCCL would send")
    begin(len(planned), len(planned) * USUAL_ROUND_S)
    links = ask_all(lambda session: _links(session, ends[session.node.name], info), sessions)
    nonce = secrets.token_hex(16)
    measuring = _Measuring({session.node.name: session for session in sessions}, nonce)
    with listening(sessions, nonce, lambda _session: [plan.listener()], Window()) as opened:
        for name, answer in opened.items():
            if not isinstance(answer, Exception) and answer.ports[0] is not None:
                measuring.ports[name] = answer.ports[0]
        done = 0
        for wanted in planned:
            if left_s() < ROUND_S:
                break
            measuring.round(wanted)
            done += 1
        by_pair = {(entry.src, entry.dst, entry.rail): entry for wanted in planned for entry in wanted}
        rates = Rates(
            hosts=tuple(names),
            rounds=done,
            whole=len(names) <= ALL_PAIRS_UP_TO and done == len(planned),
            rates=tuple(measuring.rates),
            lost=tuple(measuring.lost),
            links={name: info for name, info in zip(names, links, strict=True) if not isinstance(info, Exception)},
        )
        for rail in suspects(rates):
            if left_s() < ROUND_S:
                break
            measuring.round([by_pair[rail]], alone=True)
    if not measuring.rates:
        why = measuring.lost[0].error if measuring.lost else "no time was left"
        return unknown(f"no pair could be measured: {why}")
    return rates.model_copy(update={"rates": tuple(measuring.rates)})


def _links(session: ProbeSession, ends: DataInterfaces, interfaces: dict[str, Interfaces]) -> tuple[RateLink, ...]:
    """Return the links of a host's rails. Only hardware links get a speed, since all veths report the same speed."""
    wanted = [name.partition(":")[0] for name, _ in ends]
    links = session.ask(answers.LINKS, time.monotonic() + LINKS_S, interfaces=wanted)
    if [link.interface for link in links] != wanted:
        raise session.gone(MalformedError("links that it was not asked for"))
    entry = interfaces.get(session.node.name)
    real = {link.name for link in entry.links if link.kind in REAL} if entry is not None else set[str]()
    named = zip(links, (name for name, _ in ends), strict=True)
    return tuple(
        link.model_copy(
            update={"interface": name, **({} if link.interface in real else {"speed_mbps": None, "duplex": None})}
        )
        for link, name in named
    )


@dataclass
class _Measuring:
    sessions: dict[str, ProbeSession]
    nonce: str
    ports: dict[str, int] = field(default_factory=dict)
    rates: list[PairRate] = field(default_factory=list)
    lost: list[LostRate] = field(default_factory=list)
    # by sender and rail, the number of streams of its last measurement
    _streams: dict[tuple[str, int], int] = field(default_factory=dict)

    def round(self, wanted: Iterable[WantedRail], *, alone: bool = False) -> None:
        """Measure the wanted rails, all at the same time."""
        by_src = {way.src: way for way in wanted if way.dst in self.ports and self.sessions[way.src].lost is None}
        asked = [self.sessions[name] for name in by_src]
        for way, rate in zip(by_src.values(), ask_all(lambda s: self._ask(s, by_src[s.node.name]), asked), strict=True):
            ends = {"src": way.src, "dst": way.dst, "rail": way.rail}
            if isinstance(rate, Exception):
                self.lost.append(LostRate(**ends, error=str(rate)))
            elif isinstance(rate, NoRate):
                self.lost.append(LostRate(**ends, error=rate.error))
            else:
                self._streams[way.src, way.rail] = rate.streams
                place = {"interface": way.interface, "peer_interface": way.peer_interface, "address": way.address}
                self.rates.append(PairRate(**rate.model_dump(), **ends, **place, alone=alone))

    def _ask(self, session: ProbeSession, wanted: WantedRail) -> Figures | NoRate:
        return session.ask(
            answers.RATE,
            time.monotonic() + ROUND_S,
            address=wanted.address,
            port=self.ports[wanted.dst],
            nonce=plan.own_nonce(self.nonce, wanted.dst),
            source=wanted.source,
            streams=self._streams.get((wanted.src, wanted.rail), 1),
            window_s=WINDOW_S,
            most_bytes=MOST_BYTES,
        )
