"""Rounds of dials to a mesh's listeners: who dials whom, at which address, and what became of it.

Where a host could open no file for a dial, as those that dialled it had taken them all, it dials again when they are
done; with none left then, too, it has not looked, which says nothing of the network.

Seen with 64 hosts on two processors: 3, and once 229, of 12,159 dials took longer than their three seconds. Where a
rule or a switch drops packets, the second try fails as the first did, and has cost one more time-out. With 100 hosts on
two busy processors most dials were late: what busy hosts dialled is tried as long as that helps. A reset, too, may come
of lateness: from a queue that was full (tcp_abort_on_overflow), or from a listener that nobody heard in time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nccl_doctor.collect import answers
from nccl_doctor.collect.answers import Dialled, DialRow, Listening, MalformedError, ProbeError
from nccl_doctor.collect.connect.reach import Window, ask_all, fan_out
from nccl_doctor.collect.connect.session import ProbeSession
from nccl_doctor.collect.mesh.plan import Rails, Target, between, confirmed, could_open, of_host, own_nonce
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.snapshot import HostFacts, Sample
from nccl_doctor.snapshot.hosts import nproc
from nccl_doctor.text.hostlist import fold

FEW = 0.05
"""Share of all dials up to which those that timed out are tried again; of three hosts, one dial."""

LATE = ("timed-out", "reset", "intercepted")
NO_FILE = ("EMFILE", "ENFILE")

TRIES = 4
"""Of busy hosts; each but the first only where the one before it got something through."""


def retry(
    sessions: list[ProbeSession],
    targets: dict[str, list[Target]],
    answers: list[Dialled | Exception],
    dial: Callable[[ProbeSession, list[Target]], Dialled],
) -> list[Dialled | Exception]:
    """The answers of all hosts, without the dials that came through when they were tried once more."""
    answers = [_looked(answer) for answer in _again(sessions, targets, answers, dial, _unopened, replace_rows)]
    busy = any(session.hello.load is not None and session.hello.load.busy for session in sessions)
    for _ in range(TRIES if busy else 1):
        before = sum(len(_late(answer)) for answer in answers)
        dials = sum(a.connected + len(a.failed) for a in answers if not isinstance(a, Exception))
        if before == 0 or not (busy or before <= FEW * dials):
            break
        answers = _again(sessions, targets, answers, dial, _late, drop_recovered)
        if sum(len(_late(answer)) for answer in answers) == before:
            break
    return answers


def _again(
    sessions: list[ProbeSession],
    targets: dict[str, list[Target]],
    answers: list[Dialled | Exception],
    dial: Callable[[ProbeSession, list[Target]], Dialled],
    lost: Callable[[Dialled | Exception], list[DialRow]],
    mended: Callable[[Dialled, list[DialRow], Dialled], Dialled],
) -> list[Dialled | Exception]:
    """The answers, mended by what became of the lost dials; as they were where a host does not answer again."""

    def again(place: int) -> Dialled | Exception:
        session, first = sessions[place], answers[place]
        rows = lost(first)
        if not rows or isinstance(first, Exception):
            return first
        told = targets[session.node.name]
        wanted = [Target(told[row.target].dst, told[row.target].address, (row.port,)) for row in rows]
        return mended(first, rows, dial(session, wanted))

    redone = fan_out(again, range(len(sessions)), window=Window())
    return [first if isinstance(now, Exception) else now for first, now in zip(answers, redone, strict=True)]


def _late(answer: Dialled | Exception) -> list[DialRow]:
    return [] if isinstance(answer, Exception) else [row for row in answer.failed if row.outcome in LATE]


def _unopened(answer: Dialled | Exception) -> list[DialRow]:
    return [] if isinstance(answer, Exception) else [row for row in answer.failed if row.error in NO_FILE]


def _looked(answer: Dialled | Exception) -> Dialled | Exception:
    missed = len(_unopened(answer))
    return ProbeError(f"it may open no more files, for {missed} of them") if missed else answer


def drop_recovered(answer: Dialled, rows: list[DialRow], second: Dialled) -> Dialled:
    """The answer without those of the rows that did not fail again, which stay as they were seen first."""
    still = {row.target for row in second.failed}
    saved = [row for place, row in enumerate(rows) if place not in still]
    left = tuple(row for row in answer.failed if row not in saved)
    return Dialled(connected=answer.connected + len(saved), failed=left)


def replace_rows(answer: Dialled, rows: list[DialRow], second: Dialled) -> Dialled:
    """The answer with what the second try saw in place of the rows."""
    seen = tuple(row._replace(target=rows[row.target].target) for row in second.failed)
    left = tuple(row for row in answer.failed if row not in rows)
    return Dialled(connected=answer.connected + len(rows) - len(seen), failed=(*left, *seen))


AT_ONCE = 256
"""Dials that a host makes at once (probe/mesh/mesh.py)."""

AGAIN = 2.0
"""A dial's time when it is tried again, as a multiple of the first."""

ANSWER_S = 5.0
"""What listening, and reporting after the last dial timed out, may take."""

Dials = tuple[dict[str, list[Target]], list[Dialled | Exception]]
"""By host where it dialled, and in the hosts' order what became of it."""


@dataclass
class Dialling:
    """Rounds of dials to the listeners of one mesh.

    Attributes:
        dial_s: seconds for one connection.
        doubtful: by host, the addresses of others that it did not dial.
        beside: by host, the addresses at which it was dialled beside those of the bootstrap and the master.
    """

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
    def used(self) -> dict[str, Rails]:
        """By host, the addresses over which it will move data."""
        return {name: of_host(self.nodes[name], self.facts[name]) for name in self.ports}

    def run(
        self,
        plan: dict[str, list[str]],
        on_done: Callable[[ProbeSession], None],
        sample: Sample | None = None,
        *,
        oneself: bool = False,
    ) -> Dials:
        """Every host dials its partners, and itself; of a sample's star the master dials one port of each."""
        targets: dict[str, list[Target]] = {}
        for name, others in plan.items():
            ports = self.ports
            if sample is not None and name == sample.order[0]:
                ports = {dst: some[-1:] for dst, some in ports.items()}
            targets[name], doubtful = _targets(
                others, self.cluster, self.nodes, self.addresses, self.facts[name], ports
            )
            self.doubtful.setdefault(name, {}).update(doubtful)
            for other in _others(name, targets[name], others, self.facts, self.ports, self.used):
                targets[name].append(other)
                self.beside.setdefault(other.dst, set()).add(other.address)
            if oneself:
                own = self.facts[name], self.addresses[name], self.cluster, self.ports.get(name, ())
                targets[name] += _oneself(self.nodes[name], *own)

        def first(session: ProbeSession) -> Dialled:
            return dial_targets(session, targets[session.node.name], self.nonce, self.dial_s)

        def again(session: ProbeSession, wanted: list[Target]) -> Dialled:
            return dial_targets(session, wanted, self.nonce, AGAIN * self.dial_s)

        dialled = ask_all(first, self.sessions, on_done, Window())
        return targets, retry(self.sessions, targets, dialled, again)


def _others(
    name: str,
    mine: list[Target],
    partners_of: list[str],
    facts: dict[str, HostFacts],
    ports: dict[str, tuple[int, ...]],
    used: dict[str, Rails],
) -> Iterator[Target]:
    """The partners' other addresses over which data will move, each with the last of the host's ports."""
    dialled = {(target.dst, target.address) for target in mine}
    for dst in partners_of:
        if ports.get(dst) and name in used:
            for address in between(facts[name], used[name], used[dst]):
                if (dst, address) not in dialled:
                    yield Target(dst, address, ports[dst][-1:])


def _oneself(node: Node, facts: HostFacts, address: str, cluster: Cluster, mine: tuple[int, ...]) -> Iterator[Target]:
    """A host's own listeners, by the address that the others use: the master's store, and ranks beside each other."""
    wanted = [port for port in mine if port == cluster.master_port and node.node_rank == 0]
    if nproc(node, facts, alone=False) > 1:
        wanted += mine[-1:]
    if wanted and confirmed(address, node, facts):
        yield Target(node.name, address, tuple(dict.fromkeys(wanted)))


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
    ask_all(lambda session: session.ask(answers.NOTHING, "unlisten", time.monotonic() + ANSWER_S), sessions)


def open_listeners(session: ProbeSession, nonce: str, sockets: list[dict[str, Any]]) -> Listening:
    """Has a host listen; the ports that it opened, of those asked for."""
    mine = own_nonce(nonce, session.node.name)
    told = session.ask(answers.LISTENING, "listen", time.monotonic() + ANSWER_S, nonce=mine, sockets=sockets)
    if len(told.ports) != len(sockets) or any(
        port is not None and not could_open(wanted, port) for wanted, port in zip(sockets, told.ports, strict=True)
    ):
        # others dial what it says: what it was not asked for may be somebody's else
        raise session.gone(MalformedError("ports on which it was not asked to listen"))
    return told


def failed_pairs(
    targets: dict[str, list[Target]], names: list[str], dialled: list[Dialled | Exception]
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
        rows = (row._replace(target=row.target + len(first[0][name])) for row in more.failed)
        both.append(Dialled(connected=one.connected + more.connected, failed=(*one.failed, *rows)))
    return targets, both


def dial_targets(
    session: ProbeSession, targets: list[Target], nonce: str, timeout_s: float, latest: float = math.inf
) -> Dialled:
    """Has a host dial listeners of this nonce; its answer comes before ``latest``, on the monotonic clock."""
    wanted = [[target.address, list(target.ports), own_nonce(nonce, target.dst)] for target in targets]
    # A resolver has its time, and dials beyond the number made at once wait for their turn, at worst a time-out each.
    rounds = 2 + sum(len(target.ports) for target in targets) // AT_ONCE
    deadline = min(time.monotonic() + rounds * timeout_s + ANSWER_S, latest)
    told = session.ask(answers.DIALLED, "dial", deadline, targets=wanted, timeout_s=timeout_s)
    asked = {(place, port) for place, target in enumerate(targets) for port in target.ports}
    failed = {(row.target, row.port) for row in told.failed}
    if not failed <= asked or len(failed) != len(told.failed) or told.connected + len(failed) != len(asked):
        raise session.gone(MalformedError("dials that it was not asked for"))
    return told


def _targets(
    partners_of: list[str],
    cluster: Cluster,
    nodes: dict[str, Node],
    addresses: dict[str, str],
    source: HostFacts,
    ports: dict[str, tuple[int, ...]],
) -> tuple[list[Target], dict[str, str]]:
    """Each partner's own address with all its ports, and the master address as the job will use it.

    Also, by partner, the addresses that are not dialled: nothing that the dialling host knows confirms them.
    """
    targets: list[Target] = []
    doubtful: dict[str, str] = {}
    for name in partners_of:
        if not ports.get(name):
            continue
        address = addresses[name]
        if confirmed(address, nodes[name], source):
            targets.append(Target(name, address, ports[name]))
        else:
            doubtful[name] = address
        if nodes[name].node_rank == 0 and cluster.master_addr != address and cluster.master_port in ports[name]:
            targets.append(Target(name, cluster.master_addr, (cluster.master_port,)))
    return targets, doubtful


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
