"""The port mesh: every host listens, and dials every other host or, in large clusters, a sample of hosts.

Each host listens on a sample of its ephemeral port range, from which NCCL and gloo get their ports. The master also
listens on the master port if that port is free. A port that another program uses is never dialled, since NCCL before
2.27.3 crashes when an unknown program connects. If all hosts dial each other, each pair of hosts is tested in both
directions. The number of requests to each host does not depend on the number of pairs.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from nccl_doctor.collect.mesh import plan
from nccl_doctor.collect.mesh.dials import (
    LATE,
    LISTEN_ANSWER_S,
    Dialling,
    dial_targets,
    doubts,
    failed_pairs,
    listening,
    together,
)
from nccl_doctor.crew import answers
from nccl_doctor.crew.answers import Dialled, Heard, Listening, MalformedError, PathMtuResult
from nccl_doctor.crew.parallel import Window, ask_all
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.model.base import Unknown, unknown
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.report import DialOutcome, FailedDial
from nccl_doctor.nccl.rdma_pairs import RdmaPath
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.snapshot.mesh import Disputed, Mesh, RdmaDial, Stall, Trips
from nccl_doctor.snapshot.network import Interfaces, PortTrial
from nccl_doctor.text.hostlist import grouped

PARTNERS = 8  # hosts that each host tries, the next ones in the list; every host is tried by as many
DEADLINE_S = 1.5  # the kernel first retransmits after 0.2 s; ten retransmissions fit in
MTU_ANSWER_S = 3.0
SMALL = 1200  # bytes of a segment that passes wherever IPv6's smallest MTU (1280; RFC 8200, section 5) does


def find_stalls(
    sessions: list[ProbeSession], targets: dict[str, list[plan.DialTarget]], dials: list[Dialled | Exception]
) -> tuple[Stall, ...] | Unknown:
    """Return the pairs of hosts between which large packets are lost even though connections succeed."""
    names = [session.node.name for session in sessions]
    chosen: dict[str, list[plan.DialTarget]] = {}
    for place, (name, answer) in enumerate(zip(names, dials, strict=True)):
        if not isinstance(answer, Exception):
            near = {names[(place + step) % len(names)] for step in range(1, PARTNERS + 1)} - {name}
            unreached = {row.target for row in answer.failed}
            reached = {t.dst: t for index, t in reversed([*enumerate(targets[name])]) if index not in unreached}
            chosen[name] = [target for dst, target in reached.items() if dst in near]

    def ask(session: ProbeSession) -> tuple[Stall, ...]:
        mine = chosen.get(session.node.name, [])
        stalled = [(to, row) for to, row in zip(mine, _push(session, mine), strict=True) if row.outcome == "stalled"]
        again = [to for to, _ in stalled]
        full, small = _push(session, again), _push(session, again, SMALL)
        return tuple(
            Stall(
                src=session.node.name,
                dst=to.dst,
                address=to.address,
                **row.model_dump(exclude={"outcome", "error"}),
                by_size=second.outcome == "stalled" and third.outcome == "passed",
            )
            for (to, row), second, third in zip(stalled, full, small, strict=True)
        )

    results = ask_all(ask, sessions, window=Window())
    stalls = tuple(stall for result in results if not isinstance(result, Exception) for stall in result)
    broken = [f"{name}: {result}" for name, result in zip(names, results, strict=True) if isinstance(result, Exception)]
    return unknown(f"large packets could not be tried: {broken[0]}") if broken and not stalls else stalls


def _push(
    session: ProbeSession, targets: list[plan.DialTarget], segment: int | None = None
) -> tuple[PathMtuResult, ...]:
    """Have a host send full-size segments, or segments of ``segment`` bytes, to each target."""
    if not targets:
        return ()
    wanted = [[target.address, target.ports[-1]] for target in targets]
    deadline = time.monotonic() + DEADLINE_S + MTU_ANSWER_S
    asked = {"targets": wanted, "deadline_s": DEADLINE_S, "segment": segment}
    results = session.wait(answers.PATH_MTU, session.send(answers.PATH_MTU, deadline, **asked), deadline)
    if len(results) != len(wanted):
        raise session.gone(MalformedError("large packets to others than it was asked for"))
    return results


_MOST_ERRORS = 8  # errors of one host's listeners that are reported; it opens fewer


@dataclass(frozen=True)
class MeshLimits:
    """Limits of the port mesh: the time limit of a connection attempt in seconds, and the size of the mesh."""

    dial_s: float = 3.0
    size: plan.MeshSize = "auto"


def run_mesh(
    sessions: list[ProbeSession],
    facts: dict[str, HostFacts],
    cluster: Cluster,
    limits: MeshLimits,
    on_done: Callable[[ProbeSession], None],
) -> Mesh:
    """Open listeners on the hosts, have the hosts dial each other's listeners, and close the listeners."""
    nonce = secrets.token_hex(16)
    names = [session.node.name for session in sessions]

    def sockets(session: ProbeSession) -> list[dict[str, Any]]:
        host = facts[session.node.name]
        free = session.node.node_rank == 0 and isinstance(host.master_port, PortTrial) and host.master_port.free
        return plan.listeners(host, cluster.master_port if free else None, plan.own_nonce(nonce, session.node.name))

    heard: dict[str, Heard] = {}
    with listening(sessions, nonce, sockets, Window(), heard) as opened:
        ports, silent = _listening(opened)
        sample = plan.sampled([node.name for node in cluster.nodes], limits.size)
        addresses = {session.node.name: plan.address_of(session.node, facts[session.node.name]) for session in sessions}
        dialling = Dialling(sessions, facts, cluster, limits.dial_s, nonce, ports, addresses)
        targets, dialled = dialling.run(plan.partners(dict.fromkeys(names), sample), on_done, sample, oneself=True)
        if sample is not None and (suspects := plan.suspects(failed_pairs(targets, names, dialled))):
            first, sample = sample, sample.model_copy(update={"by_all": suspects})
            missed = {name: [dst for dst in suspects if dst != name and not first.holds(name, dst)] for name in names}
            targets, dialled = together(names, (targets, dialled), dialling.run(missed, lambda _session: None))
        stalls = find_stalls(sessions, targets, dialled)
        rdma = dial_rdma(sessions, facts, dialling.nodes, nonce, ports)
        if cluster.engine is not None:
            more = dialling.engines(plan.partners(dict.fromkeys(names), sample), targets)
            targets, dialled = together(names, (targets, dialled), more)
    silent.update(doubts(dialling.doubtful))
    failed: list[FailedDial] = []
    sources: dict[str, dict[str, tuple[str, ...]]] = {}
    unmet: dict[str, dict[str, dict[str, DialOutcome]]] = {}
    tested = 0
    for name, answer in zip(names, dialled, strict=True):
        if isinstance(answer, Exception):
            silent[name] = f"did not report its dials: {answer}"
            continue
        tested += len({target.dst for target in targets[name]} - {name})
        for fields in (row._asdict() for row in answer.failed):
            to = targets[name][fields.pop("target")]
            if dialling.is_engines_alone(to):
                unmet.setdefault(to.dst, {}).setdefault(to.address, {})[name] = fields["outcome"]
                continue
            failed.append(FailedDial(src=name, dst=to.dst, address=to.address, **fields))
        vain = Counter(row.target for row in answer.failed)
        for place, to in enumerate(targets[name]):
            if vain[place] < len(to.ports) and to.dst != name:  # a host does not confirm its own reachability
                mine = sources.setdefault(to.dst, {})
                mine[to.address] = (*mine.get(to.address, ()), name)
    crowded = {name: crowd(entry) for name, entry in heard.items() if entry.crowds}
    silent.update({dial.dst: crowded[dial.dst] for dial in failed if dial.outcome in LATE and dial.dst in crowded})
    failed = [dial for dial in failed if not (dial.outcome in LATE and dial.dst in crowded)]
    lossy = {(loss.src, loss.dst) for loss in dialling.lost_connections if loss.by_port}
    disputed = disputes([dial for dial in failed if (dial.src, dial.dst) not in lossy], facts, heard)
    denied = {(dial.src, dial.dst, dial.address, dial.port) for dial in disputed}
    failed = [dial for dial in failed if (dial.src, dial.dst, dial.address, dial.port) not in denied]
    return Mesh(
        hosts=len(names),
        pairs=len(names) * (len(names) - 1),
        tested=tested,
        ports=ports,
        failed=tuple(failed),
        disputed=disputed,
        lost_connections=dialling.lost_connections,
        not_listening=silent,
        stalls=stalls,
        answered=sources,
        rails={name: {to: dialling.used[name].of(to) for to in extra} for name, extra in dialling.beside.items()},
        unmet=unmet,
        sample=sample,
        rdma=rdma,
        trips=_trips(names, targets, dialled),
    )


NOT_CONNECTED = frozenset({"timed-out", "refused", "no-route", "unreachable"})


def disputes(
    failed: Sequence[FailedDial], facts: Mapping[str, HostFacts], heard: Mapping[str, Heard]
) -> tuple[Disputed, ...]:
    """Return the connections that failed according to the dialling host but that the dialled host accepted.

    The results of these connections are unknown, since a busy host might give up too early and a compromised host might
    report false results.
    """
    owners: dict[str, set[str]] = {}
    for name, host_facts in facts.items():
        if isinstance(host_facts.interfaces, Interfaces):
            for entry in host_facts.interfaces.addresses:
                owners.setdefault(entry.address, set()).add(name)
    accepted = {
        (next(iter(owners[row.peer])), name, row.address, row.port)
        for name, answer in heard.items()
        for row in answer.accepted
        if len(owners.get(row.peer, ())) == 1  # an address that several hosts have, such as docker0's, identifies none
    }
    return tuple(
        Disputed(src=dial.src, dst=dial.dst, address=dial.address, port=dial.port, outcome=dial.outcome)
        for dial in failed
        if dial.src != dial.dst and dial.outcome in NOT_CONNECTED and dial.error != "SILENT"
        if (dial.src, dial.dst, dial.address, dial.port) in accepted
    )


def crowd(heard: Heard) -> str:
    """Return a phrase that names the peers whose many connections might have displaced nccl-doctor's connections."""
    who = ", ".join(peer for peer, _ in sorted(heard.crowds, key=lambda row: -row[1])[:4])
    return f"dials to it failed while connections from {who} left no room on its listeners: not judged"


RDMA_S = 4.0  # the kernel gives up resolving an address after three seconds


def dial_rdma(
    sessions: list[ProbeSession],
    facts: dict[str, HostFacts],
    nodes: dict[str, Node],
    nonce: str,
    ports: dict[str, tuple[int, ...]],
) -> tuple[RdmaDial, ...]:
    """Dial between the network interfaces of RDMA ports that NCCL connects to each other, and return the results.

    For an address in another network, only the kernel's route is queried. A connection would prove nothing, because
    Linux accepts packets for any local address on every interface.
    """
    ways = grouped((way.src, way) for way in plan.rdma_ways(nodes, facts) if ports.get(way.dst))
    some = [session for session in sessions if session.node.name in ways]

    def dial(session: ProbeSession) -> list[RdmaDial]:
        mine = ways[session.node.name]
        near, far = [way for way in mine if not way.apart], [way for way in mine if way.apart]
        dials = []
        if near:
            targets = [plan.DialTarget(way.dst, way.to, ports[way.dst][-1:], way.interface) for way in near]
            failed = {row.target: row for row in dial_targets(session, targets, nonce, RDMA_S).failed}
            for place, way in enumerate(near):
                row = failed.get(place)
                if row is None:
                    dials.append(_rdma_dial(way, "connected"))
                elif row.outcome != "failed":  # a kernel that lets nobody choose the interface
                    dials.append(_rdma_dial(way, row.outcome, error=row.error, seconds=row.seconds))
        if far:
            packets = [{"to": way.to, "source": way.own, "iif": None} for way in far]
            answer = session.ask(answers.WAYS, time.monotonic() + LISTEN_ANSWER_S, packets=packets)
            routes = zip(far, answer, strict=False)
            dials += [_rdma_dial(way, "routed") for way, route in routes if route.dev == way.interface]
        return dials

    results = ask_all(dial, some, window=Window())  # routes explain what was not reached
    return tuple(entry for dials in results if not isinstance(dials, Exception) for entry in dials)


def _rdma_dial(way: RdmaPath, outcome: str, **more: object) -> RdmaDial:
    ends = {"src": way.src, "dst": way.dst, "interface": way.interface, "address": way.to}
    return RdmaDial.model_validate({**ends, "outcome": outcome, **more})


def _trips(
    names: list[str], targets: dict[str, list[plan.DialTarget]], dialled: list[Dialled | Exception]
) -> dict[str, Trips]:
    """Return statistics of the round-trip times from and to each host. A pair with several addresses counts once."""
    by_host: dict[str, dict[tuple[str, str], tuple[int, int]]] = {}
    for name, answer in zip(names, dialled, strict=True):
        for row in () if isinstance(answer, Exception) else answer.trips:
            to = targets[name][row.target].dst
            for end in () if to == name else (name, to):
                pairs = by_host.setdefault(end, {})
                shortest, again = pairs.get((name, to), (row.rtt_us, 0))
                pairs[name, to] = min(shortest, row.rtt_us), again + row.again
    return {
        name: Trips(
            pairs=len(trips),
            shortest_us=min(rtt for rtt, _ in trips.values()),
            usual_us=round(median(rtt for rtt, _ in trips.values())),
            again=sum(again > 0 for _, again in trips.values()),
        )
        for name, trips in by_host.items()
    }


def _listening(opened: Mapping[str, Listening | Exception]) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
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
