"""The port mesh: every host listens, every host dials every other one, in both directions.

Each host listens on a sample of its own ephemeral range, from which NCCL's and gloo's listeners come, and the master
also on the master port, where nobody holds it. A port that another program holds is never dialled: NCCL before 2.27.3
dies of a stranger's connection. The controller sends each host two requests, however many pairs there are.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from nccl_doctor.collect import answers, path_mtu, rails, redial
from nccl_doctor.collect.answers import Dialled, Listening, MalformedError
from nccl_doctor.collect.asking import ask_all
from nccl_doctor.collect.fanout import fan_out
from nccl_doctor.collect.mesh_addresses import address_of, confirmed
from nccl_doctor.collect.mesh_plan import (
    MeshSize,
    Target,
    could_open,
    listeners,
    own_nonce,
    partners,
    sampled,
    suspects,
)
from nccl_doctor.collect.session import ProbeSession
from nccl_doctor.hostlist import fold
from nccl_doctor.model import Cluster, Node
from nccl_doctor.ranks import nproc
from nccl_doctor.snapshot import Dial, HostFacts, Mesh, PortTrial, Sample

AT_ONCE = 256
"""Dials that a host makes at once (probe/mesh.py)."""

AGAIN = 2.0
"""A dial's time when it is tried again, as a multiple of the first."""

ANSWER_S = 5.0
"""What listening, and reporting after the last dial timed out, may take."""


@dataclass(frozen=True)
class MeshLimits:
    """How much is dialled: seconds for one connection, and which pairs."""

    dial_s: float = 3.0
    size: MeshSize = "auto"


def run(
    sessions: list[ProbeSession],
    facts: dict[str, HostFacts],
    cluster: Cluster,
    limits: MeshLimits,
    on_done: Callable[[ProbeSession], None],
) -> Mesh:
    """Opens the listeners, dials them all, closes them."""
    nonce = secrets.token_hex(16)
    names = [session.node.name for session in sessions]
    opened = ask_all(lambda s: _listen(s, facts[s.node.name], cluster, nonce), sessions)
    ports, silent = _listening(names, opened)
    sample = sampled([node.name for node in cluster.nodes], limits.size)
    addresses = {session.node.name: address_of(session.node, facts[session.node.name]) for session in sessions}
    dialling = _Dialling(sessions, facts, cluster, limits, nonce, ports, addresses)
    targets, dialled = dialling.run(partners(dict.fromkeys(names), sample), on_done, sample, oneself=True)
    if sample is not None and (found := suspects(_failed_pairs(targets, names, dialled))):
        first, sample = sample, sample.model_copy(update={"by_all": found})
        plan = {name: [dst for dst in found if dst != name and not first.holds(name, dst)] for name in names}
        targets, dialled = _together(names, (targets, dialled), dialling.run(plan, lambda _session: None))
    stalls = path_mtu.run(sessions, targets, dialled)
    fan_out(lambda s: s.ask(answers.NOTHING, "unlisten", time.monotonic() + ANSWER_S), sessions)
    silent.update(_doubts(dialling.doubtful))
    failed: list[Dial] = []
    tested = 0
    for name, answer in zip(names, dialled, strict=True):
        if isinstance(answer, Exception):
            silent[name] = f"did not report its dials: {answer}"
            continue
        tested += len({target.dst for target in targets[name]} - {name})
        for index, port, outcome, error in answer.failed:
            to = targets[name][index]
            failed.append(Dial(src=name, dst=to.dst, address=to.address, port=port, outcome=outcome, error=error))
    return Mesh(
        hosts=len(names),
        pairs=len(names) * (len(names) - 1),
        tested=tested,
        ports=ports,
        failed=tuple(failed),
        not_listening=silent,
        stalls=stalls,
        answered=_answered(targets, dict(zip(names, dialled, strict=True))),
        rails={name: {to: dialling.used[name].of(to) for to in extra} for name, extra in dialling.beside.items()},
        sample=sample,
    )


_Dials = tuple[dict[str, list[Target]], list[Dialled | Exception]]
"""By host where it dialled, and in the hosts' order what became of it."""


@dataclass
class _Dialling:
    """Rounds of dials to the listeners of one mesh.

    Attributes:
        doubtful: by host, the addresses of others that it did not dial.
        beside: by host, the addresses at which it was dialled beside those of the bootstrap and the master.
    """

    sessions: list[ProbeSession]
    facts: dict[str, HostFacts]
    cluster: Cluster
    limits: MeshLimits
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
    def used(self) -> dict[str, rails.Rails]:
        """By host, the addresses over which it will move data."""
        return {name: rails.of_host(self.nodes[name], self.facts[name]) for name in self.ports}

    def run(
        self,
        plan: dict[str, list[str]],
        on_done: Callable[[ProbeSession], None],
        sample: Sample | None = None,
        *,
        oneself: bool = False,
    ) -> _Dials:
        """Every host dials its partners, and itself; of a sample's star the master dials one port of each."""
        targets: dict[str, list[Target]] = {}
        for name, others in plan.items():
            ports = self.ports
            if sample is not None and name == sample.order[0]:
                ports = {dst: some[-1:] for dst, some in ports.items()}
            targets[name], doubtful = _targets(others, self.cluster, self.addresses, self.facts[name], ports)
            self.doubtful.setdefault(name, {}).update(doubtful)
            for other in _others(name, targets[name], others, self.facts, self.ports, self.used):
                targets[name].append(other)
                self.beside.setdefault(other.dst, set()).add(other.address)
            if oneself:
                own = self.facts[name], self.addresses[name], self.cluster, self.ports.get(name, ())
                targets[name] += _oneself(self.nodes[name], *own)

        def dial(session: ProbeSession, wanted: list[Target]) -> Dialled:
            return _dial(session, wanted, self.nonce, self.limits.dial_s)

        def again(session: ProbeSession, wanted: list[Target]) -> Dialled:
            return _dial(session, wanted, self.nonce, AGAIN * self.limits.dial_s)

        dialled = ask_all(lambda s: dial(s, targets[s.node.name]), self.sessions, on_done)
        return targets, redial.run(self.sessions, targets, dialled, again)


def _others(
    name: str,
    mine: list[Target],
    partners_of: list[str],
    facts: dict[str, HostFacts],
    ports: dict[str, tuple[int, ...]],
    used: dict[str, rails.Rails],
) -> Iterator[Target]:
    """The partners' other addresses over which data will move, each with the last of the host's ports."""
    dialled = {(target.dst, target.address) for target in mine}
    for dst in partners_of:
        if ports.get(dst) and name in used:
            for address in rails.between(facts[name], used[name], used[dst]):
                if (dst, address) not in dialled:
                    yield Target(dst, address, ports[dst][-1:])


def _oneself(node: Node, facts: HostFacts, address: str, cluster: Cluster, mine: tuple[int, ...]) -> Iterator[Target]:
    """A host's own listeners, by the address that the others use: the master's store, and ranks beside each other."""
    wanted = [port for port in mine if port == cluster.master_port and node.node_rank == 0]
    if nproc(node, facts, alone=False) > 1:
        wanted += mine[-1:]
    if wanted and confirmed(address, node, facts):
        yield Target(node.name, address, tuple(dict.fromkeys(wanted)))


def _failed_pairs(
    targets: dict[str, list[Target]], names: list[str], dialled: list[Dialled | Exception]
) -> set[tuple[str, str]]:
    return {
        (name, targets[name][row.target].dst)
        for name, answer in zip(names, dialled, strict=True)
        for row in (() if isinstance(answer, Exception) else answer.failed)
        if targets[name][row.target].dst != name
    }


def _together(names: list[str], first: _Dials, second: _Dials) -> _Dials:
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


def _answered(
    targets: dict[str, list[Target]], dialled: Mapping[str, Dialled | Exception]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """By host and address, who met its listener there."""
    met: dict[str, dict[str, tuple[str, ...]]] = {}
    for name, answer in dialled.items():
        if isinstance(answer, Exception):
            continue
        failed = Counter(row.target for row in answer.failed)
        for place, to in enumerate(targets[name]):
            if failed[place] < len(to.ports) and to.dst != name:  # nobody vouches for himself
                mine = met.setdefault(to.dst, {})
                mine[to.address] = (*mine.get(to.address, ()), name)
    return met


def _listen(session: ProbeSession, facts: HostFacts, cluster: Cluster, nonce: str) -> Listening:
    trial = facts.master_port
    free = session.node.node_rank == 0 and isinstance(trial, PortTrial) and trial.free
    mine = own_nonce(nonce, session.node.name)
    sockets = listeners(facts, cluster.master_port if free else None, mine)
    told = session.ask(answers.LISTENING, "listen", time.monotonic() + ANSWER_S, nonce=mine, sockets=sockets)
    if len(told.ports) != len(sockets) or any(
        port is not None and not could_open(wanted, port) for wanted, port in zip(sockets, told.ports, strict=True)
    ):
        # others dial what it says: what it was not asked for may be somebody's else
        raise session.gone(MalformedError("ports on which it was not asked to listen"))
    return told


def _listening(
    names: list[str], opened: list[Listening | Exception]
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """By host, the ports it listens on, and why it does not listen on some."""
    ports: dict[str, tuple[int, ...]] = {}
    silent: dict[str, str] = {}
    for name, answer in zip(names, opened, strict=True):
        if isinstance(answer, Exception):
            silent[name] = f"could not listen: {answer}"
            continue
        ports[name] = tuple(port for port in answer.ports if port is not None)
        if answer.errors:
            silent[name] = f"could not listen on all ports: {', '.join(answer.errors.values())}"
    return ports, silent


def _dial(session: ProbeSession, targets: list[Target], nonce: str, timeout_s: float) -> Dialled:
    wanted = [[target.address, list(target.ports), own_nonce(nonce, target.dst)] for target in targets]
    # Dials beyond the number that a host makes at once wait for their turn, at worst a time-out each.
    rounds = 1 + sum(len(target.ports) for target in targets) // AT_ONCE
    deadline = time.monotonic() + rounds * timeout_s + ANSWER_S
    told = session.ask(answers.DIALLED, "dial", deadline, targets=wanted, timeout_s=timeout_s)
    asked = {(place, port) for place, target in enumerate(targets) for port in target.ports}
    failed = {(row.target, row.port) for row in told.failed}
    if not failed <= asked or len(failed) != len(told.failed) or told.connected + len(failed) != len(asked):
        raise session.gone(MalformedError("dials that it was not asked for"))
    return told


def _targets(
    partners_of: list[str],
    cluster: Cluster,
    addresses: dict[str, str],
    source: HostFacts,
    ports: dict[str, tuple[int, ...]],
) -> tuple[list[Target], dict[str, str]]:
    """Each partner's own address with all its ports, and the master address as the job will use it.

    Also, by partner, the addresses that are not dialled: nothing that the dialling host knows confirms them.
    """
    nodes = {node.name: node for node in cluster.nodes}
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


def _doubts(doubtful: dict[str, dict[str, str]]) -> dict[str, str]:
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
