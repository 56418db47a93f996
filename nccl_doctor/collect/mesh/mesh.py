"""The port mesh: every host listens, every host dials every other one, in both directions.

Each host listens on a sample of its own ephemeral range, from which NCCL's and gloo's listeners come, and the master
also on the master port, where nobody holds it. A port that another program holds is never dialled: NCCL before 2.27.3
dies of a stranger's connection. The controller sends each host two requests, however many pairs there are.

Where a host could open no file for a dial, as those that dialled it had taken them all, it dials again when they are
done; with none left then, too, it has not looked, which says nothing of the network.

Seen with 64 hosts on two processors: 3, and once 229, of 12,159 dials took longer than their three seconds. Where a
rule or a switch drops packets, the second try fails as the first did, and has cost one more time-out. With 100 hosts on
two busy processors most dials were late: what busy hosts dialled is tried as long as that helps. A reset, too, may come
of lateness: from a queue that was full (tcp_abort_on_overflow), or from a listener that nobody heard in time.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from nccl_doctor.collect import answers
from nccl_doctor.collect.answers import Dialled, DialRow, Listening, MalformedError, ProbeError
from nccl_doctor.collect.connect.reach import Window, ask_all, fan_out
from nccl_doctor.collect.connect.session import ProbeSession
from nccl_doctor.collect.mesh import plan
from nccl_doctor.model.base import Unknown, unknown
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.report import DialOutcome, FailedDial
from nccl_doctor.nccl.rdma_pairs import Way
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.snapshot.mesh import Mesh, RdmaDial, Sample, Stall, Trips
from nccl_doctor.snapshot.network import PortTrial
from nccl_doctor.text.hostlist import fold, grouped

PARTNERS = 8  # Hosts that each one tries, the next in the list; every host is tried by as many
DEADLINE_S = 1.5  # The kernel's first retransmission comes after 0.2 s; ten of them fit in
MTU_ANSWER_S = 3.0


def find_stalls(
    sessions: list[ProbeSession], targets: dict[str, list[plan.Target]], dials: list[Dialled | Exception]
) -> tuple[Stall, ...] | Unknown:
    """The pairs between which large packets vanish, of those whose dials were answered."""
    names = [session.node.name for session in sessions]
    chosen: dict[str, list[plan.Target]] = {}
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
        return tuple(
            Stall(src=session.node.name, dst=to.dst, address=to.address, **row.model_dump(exclude={"outcome", "error"}))
            for to, row in zip(mine, told, strict=True)
            if row.outcome == "stalled"
        )

    found = ask_all(ask, sessions, window=Window())
    stalls = tuple(stall for result in found if not isinstance(result, Exception) for stall in result)
    broken = [f"{name}: {result}" for name, result in zip(names, found, strict=True) if isinstance(result, Exception)]
    return unknown(f"large packets could not be tried: {broken[0]}") if broken and not stalls else stalls


_MOST_ERRORS = 8  # Errors of one host's listeners that are told; it opens fewer


@dataclass(frozen=True)
class MeshLimits:
    """How much is dialled: seconds for one connection, and which pairs."""

    dial_s: float = 3.0
    size: plan.MeshSize = "auto"


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

    def sockets(session: ProbeSession) -> list[dict[str, Any]]:
        own = facts[session.node.name]
        free = session.node.node_rank == 0 and isinstance(own.master_port, PortTrial) and own.master_port.free
        return plan.listeners(own, cluster.master_port if free else None, plan.own_nonce(nonce, session.node.name))

    with listening(sessions, nonce, sockets, Window()) as opened:
        ports, silent = _listening(opened)
        sample = plan.sampled([node.name for node in cluster.nodes], limits.size)
        addresses = {session.node.name: plan.address_of(session.node, facts[session.node.name]) for session in sessions}
        dialling = Dialling(sessions, facts, cluster, limits.dial_s, nonce, ports, addresses)
        targets, dialled = dialling.run(plan.partners(dict.fromkeys(names), sample), on_done, sample, oneself=True)
        if sample is not None and (found := plan.suspects(failed_pairs(targets, names, dialled))):
            first, sample = sample, sample.model_copy(update={"by_all": found})
            missed = {name: [dst for dst in found if dst != name and not first.holds(name, dst)] for name in names}
            targets, dialled = together(names, (targets, dialled), dialling.run(missed, lambda _session: None))
        stalls = find_stalls(sessions, targets, dialled)
        rdma = dial_rdma(sessions, facts, dialling.nodes, nonce, ports)
        if cluster.engine is not None:
            more = dialling.engines(plan.partners(dict.fromkeys(names), sample), targets)
            targets, dialled = together(names, (targets, dialled), more)
    silent.update(doubts(dialling.doubtful))
    failed: list[FailedDial] = []
    met: dict[str, dict[str, tuple[str, ...]]] = {}
    unmet: dict[str, dict[str, dict[str, DialOutcome]]] = {}
    tested = 0
    for name, answer in zip(names, dialled, strict=True):
        if isinstance(answer, Exception):
            silent[name] = f"did not report its dials: {answer}"
            continue
        tested += len({target.dst for target in targets[name]} - {name})
        for seen in (row._asdict() for row in answer.failed):
            to = targets[name][seen.pop("target")]
            if dialling.is_engines_alone(to):
                unmet.setdefault(to.dst, {}).setdefault(to.address, {})[name] = seen["outcome"]
                continue
            failed.append(FailedDial(src=name, dst=to.dst, address=to.address, **seen))
        lost = Counter(row.target for row in answer.failed)
        for place, to in enumerate(targets[name]):
            if lost[place] < len(to.ports) and to.dst != name:  # nobody vouches for himself
                mine = met.setdefault(to.dst, {})
                mine[to.address] = (*mine.get(to.address, ()), name)
    return Mesh(
        hosts=len(names),
        pairs=len(names) * (len(names) - 1),
        tested=tested,
        ports=ports,
        failed=tuple(failed),
        not_listening=silent,
        stalls=stalls,
        answered=met,
        rails={name: {to: dialling.used[name].of(to) for to in extra} for name, extra in dialling.beside.items()},
        unmet=unmet,
        sample=sample,
        rdma=rdma,
        trips=_trips(names, targets, dialled),
    )


RDMA_S = 4.0  # the kernel gives up its search for an address after three


def dial_rdma(
    sessions: list[ProbeSession],
    facts: dict[str, HostFacts],
    nodes: dict[str, Node],
    nonce: str,
    ports: dict[str, tuple[int, ...]],
) -> tuple[RdmaDial, ...]:
    """The dials between the interfaces of RDMA ports that NCCL joins; none where there are no such ports.

    To another network nobody dials: a host answers for all its addresses on each of its interfaces, also on one to
    which no RDMA packet for that address may come. There the kernel is asked whether a rule leads there all the same.
    """
    ways = grouped((way.src, way) for way in plan.rdma_ways(nodes, facts) if ports.get(way.dst))
    some = [session for session in sessions if session.node.name in ways]

    def dial(session: ProbeSession) -> list[RdmaDial]:
        mine = ways[session.node.name]
        near, far = [way for way in mine if not way.apart], [way for way in mine if way.apart]
        found = []
        if near:
            targets = [plan.Target(way.dst, way.to, ports[way.dst][-1:], way.interface) for way in near]
            failed = {row.target: row for row in dial_targets(session, targets, nonce, RDMA_S).failed}
            for place, way in enumerate(near):
                row = failed.get(place)
                if row is None:
                    found.append(_rdma_dial(way, "connected"))
                elif row.outcome != "failed":  # by a kernel that lets nobody choose the interface
                    found.append(_rdma_dial(way, row.outcome, error=row.error, seconds=row.seconds))
        if far:
            packets = [{"to": way.to, "source": way.own, "iif": None} for way in far]
            told = session.ask(answers.WAYS, "ways", time.monotonic() + LISTEN_ANSWER_S, packets=packets)
            routes = zip(far, told, strict=False)
            found += [_rdma_dial(way, "routed") for way, route in routes if route.dev == way.interface]
        return found

    seen = ask_all(dial, some, window=Window())  # of what was not seen, routes tell
    return tuple(one for found in seen if not isinstance(found, Exception) for one in found)


def _rdma_dial(way: Way, outcome: str, **more: object) -> RdmaDial:
    ends = {"src": way.src, "dst": way.dst, "interface": way.interface, "address": way.to}
    return RdmaDial.model_validate({**ends, "outcome": outcome, **more})


def _trips(
    names: list[str], targets: dict[str, list[plan.Target]], dialled: list[Dialled | Exception]
) -> dict[str, Trips]:
    """By host, the round trips from it and to it."""
    found: dict[str, list[tuple[int, int]]] = {}
    for name, answer in zip(names, dialled, strict=True):
        for row in () if isinstance(answer, Exception) else answer.trips:
            to = targets[name][row.target].dst
            for end in () if to == name else (name, to):
                found.setdefault(end, []).append((row.rtt_us, row.again))
    return {
        name: Trips(
            pairs=len(trips),
            shortest_us=min(rtt for rtt, _ in trips),
            usual_us=round(median(rtt for rtt, _ in trips)),
            again=sum(again > 0 for _, again in trips),
        )
        for name, trips in found.items()
    }


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


FEW = 0.05  # Share of all dials up to which those that timed out are tried again; of three hosts, one dial
LATE = ("timed-out", "reset", "intercepted")
NO_FILE = ("EMFILE", "ENFILE")

TRIES = 4  # Of busy hosts; each but the first only where the one before it got something through


def retry(
    sessions: list[ProbeSession],
    targets: dict[str, list[plan.Target]],
    answers: list[Dialled | Exception],
    dial: Callable[[ProbeSession, list[plan.Target]], Dialled],
) -> list[Dialled | Exception]:
    """The answers of all hosts, without the dials that came through when they were tried once more."""
    answers = _again(sessions, targets, answers, dial, _unopened)
    for place, answer in enumerate(answers):
        if missed := len(_unopened(answer)):
            answers[place] = ProbeError(f"it may open no more files, for {missed} of them")
    busy = any(session.hello.load is not None and session.hello.load.busy for session in sessions)
    for _ in range(TRIES if busy else 1):
        before = sum(len(_late(answer)) for answer in answers)
        dials = sum(a.connected + len(a.failed) for a in answers if not isinstance(a, Exception))
        if before == 0 or not (busy or before <= FEW * dials):
            break
        answers = _again(sessions, targets, answers, dial, _late)
        if sum(len(_late(answer)) for answer in answers) == before:
            break
    return answers


def _again(
    sessions: list[ProbeSession],
    targets: dict[str, list[plan.Target]],
    answers: list[Dialled | Exception],
    dial: Callable[[ProbeSession, list[plan.Target]], Dialled],
    lost: Callable[[Dialled | Exception], list[DialRow]],
) -> list[Dialled | Exception]:
    """The answers without lost dials that came through; as they were where a host does not answer again."""

    def again(place: int) -> Dialled | Exception:
        session, first = sessions[place], answers[place]
        rows = lost(first)
        if not rows or isinstance(first, Exception):
            return first
        told = targets[session.node.name]
        wanted = [plan.Target(told[row.target].dst, told[row.target].address, (row.port,)) for row in rows]
        second = {row.target: row for row in dial(session, wanted).failed}
        # what fails again stays as it was seen first, unless nobody had looked then
        anew = [row for row in rows if row.error in NO_FILE]
        gone = {row for at, row in enumerate(rows) if at not in second or row in anew}
        seen = [row._replace(target=rows[at].target) for at, row in second.items() if rows[at] in anew]
        left = (*(row for row in first.failed if row not in gone), *seen)
        return Dialled(connected=first.connected + len(first.failed) - len(left), failed=left, trips=first.trips)

    redone = fan_out(again, range(len(sessions)), window=Window())
    return [first if isinstance(now, Exception) else now for first, now in zip(answers, redone, strict=True)]


def _late(answer: Dialled | Exception) -> list[DialRow]:
    return [] if isinstance(answer, Exception) else [row for row in answer.failed if row.outcome in LATE]


def _unopened(answer: Dialled | Exception) -> list[DialRow]:
    return [] if isinstance(answer, Exception) else [row for row in answer.failed if row.error in NO_FILE]


AT_ONCE = 256  # Dials that a host makes at once (probe/mesh/mesh.py)
AGAIN = 2.0  # A dial's time when it is tried again, as a multiple of the first
LISTEN_ANSWER_S = 5.0  # What listening, and reporting after the last dial timed out, may take
Dials = tuple[dict[str, list[plan.Target]], list[Dialled | Exception]]
"""By host where it dialled, and in the hosts' order what became of it."""


@dataclass
class Dialling:
    """Rounds of dials to one mesh's listeners; ``doubtful``: by host, others' addresses that it did not dial."""

    sessions: list[ProbeSession]
    facts: dict[str, HostFacts]
    cluster: Cluster
    dial_s: float
    nonce: str
    ports: dict[str, tuple[int, ...]]
    addresses: dict[str, str]
    doubtful: dict[str, dict[str, str]] = field(default_factory=dict)
    beside: dict[str, set[str]] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """By name."""
        return {node.name: node for node in self.cluster.nodes}

    @cached_property
    def used(self) -> dict[str, plan.Rails]:
        """By host, the addresses over which it will move data."""
        return {name: plan.of_host(self.nodes[name], self.facts[name]) for name in self.ports}

    def run(
        self,
        partners: dict[str, list[str]],
        on_done: Callable[[ProbeSession], None],
        sample: Sample | None = None,
        *,
        oneself: bool = False,
    ) -> Dials:
        """Every host dials its partners, and itself; of a sample's star the master dials one port of each."""
        targets: dict[str, list[plan.Target]] = {}
        for name, others in partners.items():
            ports = self.ports
            if sample is not None and name == sample.order[0]:
                ports = {dst: some[-1:] for dst, some in ports.items()}
            targets[name], doubtful = plan.partner_targets(
                others, self.cluster, self.nodes, self.addresses, self.facts[name], ports
            )
            self.doubtful.setdefault(name, {}).update(doubtful)
            for other in plan.rail_targets(name, targets[name], others, self.facts, self.ports, self.used):
                targets[name].append(other)
                self.beside.setdefault(other.dst, set()).add(other.address)
            if oneself:
                own = self.facts[name], self.addresses[name], self.cluster, self.ports.get(name, ())
                targets[name] += plan.own_targets(self.nodes[name], *own)

        return self._dial(targets, on_done)

    @cached_property
    def engine_addresses(self) -> dict[str, str]:
        """By host, the address that the cluster's engine tells its peers."""
        found = {name: plan.advertised_by(self.cluster, self.nodes[name], self.facts[name]) for name in self.ports}
        return {name: address for name, address in found.items() if address is not None}

    def is_engines_alone(self, to: plan.Target) -> bool:
        """True for an address that is dialled only since an engine tells it."""
        others = {self.addresses[to.dst], self.cluster.master_addr, *self.beside.get(to.dst, ())}
        return self.engine_addresses.get(to.dst) == to.address and to.address not in others

    def engines(self, partners: dict[str, list[str]], done: dict[str, list[plan.Target]]) -> Dials:
        """Every host dials the addresses that its partners' engines tell, where none of ``done`` is there."""
        targets = {
            name: list(
                plan.engine_targets(done[name], others, self.engine_addresses, self.nodes, self.facts[name], self.ports)
            )
            for name, others in partners.items()
        }
        return self._dial(targets, lambda _session: None)

    def _dial(self, targets: dict[str, list[plan.Target]], on_done: Callable[[ProbeSession], None]) -> Dials:
        def first(session: ProbeSession) -> Dialled:
            return dial_targets(session, targets[session.node.name], self.nonce, self.dial_s)

        def again(session: ProbeSession, wanted: list[plan.Target]) -> Dialled:
            return dial_targets(session, wanted, self.nonce, AGAIN * self.dial_s)

        dialled = ask_all(first, self.sessions, on_done, Window())
        return targets, retry(self.sessions, targets, dialled, again)


@contextmanager
def listening(
    sessions: Collection[ProbeSession],
    nonce: str,
    sockets: Callable[[ProbeSession], list[dict[str, Any]]],
    window: Window | None = None,
) -> Iterator[dict[str, Listening | Exception]]:
    """Has hosts listen as long as the block runs: by host, on which ports of those asked for, or why it does not."""
    opened = ask_all(lambda session: open_listeners(session, nonce, sockets(session)), sessions, window=window)
    yield {session.node.name: told for session, told in zip(sessions, opened, strict=True)}
    ask_all(lambda session: session.ask(answers.NOTHING, "unlisten", time.monotonic() + LISTEN_ANSWER_S), sessions)


def open_listeners(session: ProbeSession, nonce: str, sockets: list[dict[str, Any]]) -> Listening:
    """Has a host listen; the ports that it opened, of those asked for."""
    mine = plan.own_nonce(nonce, session.node.name)
    told = session.ask(answers.LISTENING, "listen", time.monotonic() + LISTEN_ANSWER_S, nonce=mine, sockets=sockets)
    if len(told.ports) != len(sockets) or any(
        port is not None and not plan.could_open(wanted, port) for wanted, port in zip(sockets, told.ports, strict=True)
    ):
        # others dial what it says: what it was not asked for may be somebody's else
        raise session.gone(MalformedError("ports on which it was not asked to listen"))
    return told


def failed_pairs(
    targets: dict[str, list[plan.Target]], names: list[str], dialled: list[Dialled | Exception]
) -> set[tuple[str, str]]:
    """The pairs that could not connect on a port at least; without a host's dials to itself."""
    return {
        (name, targets[name][row.target].dst)
        for name, answer in zip(names, dialled, strict=True)
        for row in (() if isinstance(answer, Exception) else answer.failed)
        if targets[name][row.target].dst != name
    }


def together(names: list[str], first: Dials, second: Dials) -> Dials:
    """Two rounds as one; a host that did not report one of them has reported nothing."""
    targets = {name: [*first[0][name], *second[0][name]] for name in names}
    both: list[Dialled | Exception] = []
    for name, one, more in zip(names, first[1], second[1], strict=True):
        if isinstance(one, Exception) or isinstance(more, Exception):
            both.append(more if isinstance(more, Exception) else one)
            continue
        before = len(first[0][name])
        rows = (row._replace(target=row.target + before) for row in more.failed)
        trips = (row._replace(target=row.target + before) for row in more.trips)
        both.append(
            Dialled(
                connected=one.connected + more.connected,
                failed=(*one.failed, *rows),
                trips=(*one.trips, *trips),
            )
        )
    return targets, both


def dial_targets(
    session: ProbeSession, targets: list[plan.Target], nonce: str, timeout_s: float, latest: float = math.inf
) -> Dialled:
    """Has a host dial listeners of this nonce; its answer comes before ``latest``, on the monotonic clock."""
    wanted = [
        [target.address, list(target.ports), plan.own_nonce(nonce, target.dst), *filter(None, [target.interface])]
        for target in targets
    ]
    # A resolver has its time, and dials beyond the number made at once wait for their turn, at worst a time-out each.
    rounds = 2 + sum(len(target.ports) for target in targets) // AT_ONCE
    deadline = min(time.monotonic() + rounds * timeout_s + LISTEN_ANSWER_S, latest)
    told = session.ask(answers.DIALLED, "dial", deadline, targets=wanted, timeout_s=timeout_s)
    asked = {(place, port) for place, target in enumerate(targets) for port in target.ports}
    failed = {(row.target, row.port) for row in told.failed}
    reached = {row.target for row in told.trips}
    if not reached <= {place for place, _ in asked} or len(reached) != len(told.trips):
        raise session.gone(MalformedError("round trips that it was not asked for"))
    if not failed <= asked or len(failed) != len(told.failed) or told.connected + len(failed) != len(asked):
        raise session.gone(MalformedError("dials that it was not asked for"))
    return told


def doubts(doubtful: dict[str, dict[str, str]]) -> dict[str, str]:
    """By host, why others did not dial it: who by whom at which address."""
    by_host: dict[str, dict[str, list[str]]] = {}
    for source, addresses in doubtful.items():
        for name, address in addresses.items():
            by_host.setdefault(name, {}).setdefault(address, []).append(source)
    return {
        name: "; ".join(
            f"says that NCCL uses {address} there, of which {fold(sources)} knows nothing: not dialled"
            for address, sources in told.items()
        )
        for name, told in by_host.items()
    }
