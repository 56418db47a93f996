"""Opens the listeners of a mesh, has the hosts dial the listeners in rounds, and repeats failed attempts.

If connections from other hosts use all file descriptors of a host, the host dials again after these connections have
ended. If the host still has no free file descriptor, the result is unknown, since the failure reveals nothing about the
network.

In a test with 64 hosts on two processors, 3 of 12,159 connection attempts exceeded the time limit of three seconds; in
another such test, 229 attempts exceeded this limit. If a firewall rule or a switch drops packets, the second attempt
also fails and costs one more timeout. In a test with 100 hosts on two busy processors, most connection attempts
exceeded the time limit. If a host is busy, failed attempts are repeated up to four times, as long as some of them
succeed. Attempts that end with a reset are also repeated, because a full accept queue (with ``tcp_abort_on_overflow``)
or a process that accepts connections too late can cause a reset.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nccl_doctor.collect.mesh import plan
from nccl_doctor.collect.mesh.lost_connections import ConnectionTrials
from nccl_doctor.crew.answers import (
    DIAL,
    LISTEN,
    UNLISTEN,
    Dialled,
    DialRow,
    Heard,
    Listening,
    MalformedError,
    ProbeError,
)
from nccl_doctor.crew.parallel import Window, ask_all, fan_out
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.snapshot.mesh import LostConnections, Sample
from nccl_doctor.text.hostlist import fold

FEW = 0.05  # share of all dials up to which timed-out dials are repeated; with three hosts, one dial
LATE = ("timed-out", "reset", "intercepted")
NO_FILE = ("EMFILE", "ENFILE")

TRIES = 4  # of busy hosts; repeated only if the previous try reached something


def retry(
    sessions: list[ProbeSession],
    targets: dict[str, list[plan.DialTarget]],
    answers: list[Dialled | Exception],
    dial: Callable[[ProbeSession, list[plan.DialTarget]], Dialled],
) -> list[Dialled | Exception]:
    """Repeat failed connection attempts, and return all hosts' answers without the failures that did not recur."""
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
    targets: dict[str, list[plan.DialTarget]],
    answers: list[Dialled | Exception],
    dial: Callable[[ProbeSession, list[plan.DialTarget]], Dialled],
    lost: Callable[[Dialled | Exception], list[DialRow]],
) -> list[Dialled | Exception]:
    """Repeat the failed attempts that ``lost`` selects, and return the answers without the failures that did not recur.

    If a host does not answer the second request, its first answer is kept.
    """

    def again(place: int) -> Dialled | Exception:
        session, first = sessions[place], answers[place]
        rows = lost(first)
        if not rows or isinstance(first, Exception):
            return first
        peers = targets[session.node.name]
        wanted = [plan.DialTarget(peers[row.target].dst, peers[row.target].address, (row.port,)) for row in rows]
        second = {row.target: row for row in dial(session, wanted).failed}
        # a second failure keeps its first result, unless there was none
        anew = [row for row in rows if row.error in NO_FILE]
        gone = {row for at, row in enumerate(rows) if at not in second or row in anew}
        updates = [row._replace(target=rows[at].target) for at, row in second.items() if rows[at] in anew]
        left = (*(row for row in first.failed if row not in gone), *updates)
        return Dialled(connected=first.connected + len(first.failed) - len(left), failed=left, trips=first.trips)

    redone = fan_out(again, range(len(sessions)), window=Window())
    return [first if isinstance(now, Exception) else now for first, now in zip(answers, redone, strict=True)]


def _late(answer: Dialled | Exception) -> list[DialRow]:
    return [] if isinstance(answer, Exception) else [row for row in answer.failed if row.outcome in LATE]


def _unopened(answer: Dialled | Exception) -> list[DialRow]:
    return [] if isinstance(answer, Exception) else [row for row in answer.failed if row.error in NO_FILE]


AT_ONCE = 256  # dials that a host makes at the same time (probe/mesh/mesh.py)
AGAIN = 2.0  # time for a repeated dial, as a multiple of the first
LISTEN_ANSWER_S = 5.0  # time for listening, and for the report after the last dial timed out
Dials = tuple[dict[str, list[plan.DialTarget]], list[Dialled | Exception]]
"""Targets keyed by the host that dials them, and results in the order of the hosts."""


@dataclass
class Dialling:
    """Rounds in which hosts dial a mesh's listeners; ``doubtful`` lists the addresses that each host did not dial."""

    sessions: list[ProbeSession]
    facts: dict[str, HostFacts]
    cluster: Cluster
    dial_s: float
    nonce: str
    ports: dict[str, tuple[int, ...]]
    addresses: dict[str, str]
    doubtful: dict[str, dict[str, str]] = field(default_factory=dict)
    beside: dict[str, set[str]] = field(default_factory=dict)
    lost_connections: tuple[LostConnections, ...] = ()

    @cached_property
    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.cluster.nodes}

    @cached_property
    def used(self) -> dict[str, plan.Rails]:
        """The interfaces over which each host will transfer data."""
        return {name: plan.of_host(self.nodes[name], self.facts[name]) for name in self.ports}

    def run(
        self,
        partners: dict[str, list[str]],
        on_done: Callable[[ProbeSession], None],
        sample: Sample | None = None,
        *,
        oneself: bool = False,
    ) -> Dials:
        """Have every host dial its partners and, with ``oneself``, also itself."""
        targets: dict[str, list[plan.DialTarget]] = {}
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
                args = self.facts[name], self.addresses[name], self.cluster, self.ports.get(name, ())
                targets[name] += plan.own_targets(self.nodes[name], *args)

        return self._dial(targets, on_done, trials=True)

    @cached_property
    def engine_addresses(self) -> dict[str, str]:
        """The address that the cluster's engine advertises for each host."""
        addresses = {name: plan.advertised_by(self.cluster, self.nodes[name], self.facts[name]) for name in self.ports}
        return {name: address for name, address in addresses.items() if address is not None}

    def is_engines_alone(self, to: plan.DialTarget) -> bool:
        """Return whether an address is dialled only because an engine advertises it."""
        others = {self.addresses[to.dst], self.cluster.master_addr, *self.beside.get(to.dst, ())}
        return self.engine_addresses.get(to.dst) == to.address and to.address not in others

    def engines(self, partners: dict[str, list[str]], done: dict[str, list[plan.DialTarget]]) -> Dials:
        """Have every host dial the addresses that its partners' engines advertise, except addresses in ``done``."""
        targets = {
            name: list(
                plan.engine_targets(done[name], others, self.engine_addresses, self.nodes, self.facts[name], self.ports)
            )
            for name, others in partners.items()
        }
        return self._dial(targets, lambda _session: None)

    def _dial(
        self,
        targets: dict[str, list[plan.DialTarget]],
        on_done: Callable[[ProbeSession], None],
        *,
        trials: bool = False,
    ) -> Dials:
        def first(session: ProbeSession) -> Dialled:
            return dial_targets(session, targets[session.node.name], self.nonce, self.dial_s)

        def again(session: ProbeSession, wanted: list[plan.DialTarget]) -> Dialled:
            return dial_targets(session, wanted, self.nonce, AGAIN * self.dial_s)

        def many(session: ProbeSession, wanted: list[plan.DialTarget], seconds: float) -> Dialled:
            return dial_targets(session, wanted, self.nonce, seconds)

        dialled = ask_all(first, self.sessions, on_done, Window())
        answers = retry(self.sessions, targets, dialled, again)
        master = self.cluster.nodes[0].name, self.cluster.master_port
        if not trials:
            return targets, answers
        answers, lost = ConnectionTrials(self.sessions, targets, dialled, answers, many, self.dial_s, master).run()
        self.lost_connections += lost
        return targets, answers


@contextmanager
def listening(
    sessions: Collection[ProbeSession],
    nonce: str,
    sockets: Callable[[ProbeSession], list[dict[str, Any]]],
    window: Window | None = None,
    heard: dict[str, Heard] | None = None,
) -> Iterator[dict[str, Listening | Exception]]:
    """Have hosts listen while the block runs, and yield the open ports or the error of each host.

    After the block has ended, the connections that each host's listeners accepted are stored in ``heard``.
    """
    opened = ask_all(lambda session: open_listeners(session, nonce, sockets(session)), sessions, window=window)
    yield {session.node.name: result for session, result in zip(sessions, opened, strict=True)}
    ended = ask_all(lambda session: session.ask(UNLISTEN, time.monotonic() + LISTEN_ANSWER_S), sessions)
    if heard is not None:
        result = zip(sessions, ended, strict=True)
        heard.update({session.node.name: end for session, end in result if isinstance(end, Heard)})


def open_listeners(session: ProbeSession, nonce: str, sockets: list[dict[str, Any]]) -> Listening:
    mine = plan.own_nonce(nonce, session.node.name)
    info = session.ask(LISTEN, time.monotonic() + LISTEN_ANSWER_S, nonce=mine, sockets=sockets)
    if len(info.ports) != len(sockets) or any(
        port is not None and not plan.could_open(wanted, port) for wanted, port in zip(sockets, info.ports, strict=True)
    ):
        # others dial these addresses: one that was not requested may belong to another host
        raise session.gone(MalformedError("ports on which it was not asked to listen"))
    return info


def failed_pairs(
    targets: dict[str, list[plan.DialTarget]], names: list[str], dialled: list[Dialled | Exception]
) -> set[tuple[str, str]]:
    """Return the pairs of different hosts that failed to connect on at least one port."""
    return {
        (name, targets[name][row.target].dst)
        for name, answer in zip(names, dialled, strict=True)
        for row in (() if isinstance(answer, Exception) else answer.failed)
        if targets[name][row.target].dst != name
    }


def together(names: list[str], first: Dials, second: Dials) -> Dials:
    """Merge the results of two rounds.

    If either result of a host is an error, the merged result is the error.
    """
    targets = {name: [*first[0][name], *second[0][name]] for name in names}
    both: list[Dialled | Exception] = []
    for name, old, more in zip(names, first[1], second[1], strict=True):
        if isinstance(old, Exception) or isinstance(more, Exception):
            both.append(more if isinstance(more, Exception) else old)
            continue
        before = len(first[0][name])
        rows = (row._replace(target=row.target + before) for row in more.failed)
        trips = (row._replace(target=row.target + before) for row in more.trips)
        both.append(
            Dialled(connected=old.connected + more.connected, failed=(*old.failed, *rows), trips=(*old.trips, *trips))
        )
    return targets, both


def dial_targets(
    session: ProbeSession, targets: list[plan.DialTarget], nonce: str, timeout_s: float, latest: float = math.inf
) -> Dialled:
    """Have a host connect to the listeners that use ``nonce``, and wait for its answer until ``latest``."""
    wanted = [
        [target.address, list(target.ports), plan.own_nonce(nonce, target.dst), *filter(None, [target.interface])]
        for target in targets
    ]
    # Resolving takes time, and dials beyond the number made at once wait for their turn, at worst a time-out each.
    rounds = 2 + sum(len(target.ports) for target in targets) // AT_ONCE
    deadline = min(time.monotonic() + rounds * timeout_s + LISTEN_ANSWER_S, latest)
    answer = session.ask(DIAL, deadline, targets=wanted, timeout_s=timeout_s)
    asked = {(place, port) for place, target in enumerate(targets) for port in target.ports}
    failed = {(row.target, row.port) for row in answer.failed}
    reached = {row.target for row in answer.trips}
    if not reached <= {place for place, _ in asked} or len(reached) != len(answer.trips):
        raise session.gone(MalformedError("round trips that it was not asked for"))
    if not failed <= asked or len(failed) != len(answer.failed) or answer.connected + len(failed) != len(asked):
        raise session.gone(MalformedError("dials that it was not asked for"))
    return answer


def doubts(doubtful: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return a phrase for each host that some hosts did not dial.

    The phrase gives the address, the hosts that did not dial the address, and the reason.
    """
    by_host: dict[str, dict[str, list[str]]] = {}
    for source, addresses in doubtful.items():
        for name, address in addresses.items():
            by_host.setdefault(name, {}).setdefault(address, []).append(source)
    return {
        name: "; ".join(
            f"says that NCCL uses {address} there, of which {fold(sources)} knows nothing: not dialled"
            for address, sources in by_address.items()
        )
        for name, by_address in by_host.items()
    }
