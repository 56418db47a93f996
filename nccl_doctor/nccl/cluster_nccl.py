"""NCCL's choices of interface on all hosts, faults in these choices, and the results of ``nccl-doctor ifname``."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from nccl_doctor.model.base import Unknown
from nccl_doctor.model.finding import Severity, export
from nccl_doctor.model.report import NcclInterface, RdmaAnswer
from nccl_doctor.nccl.host_nccl import HostNccl, host_nccl
from nccl_doctor.nccl.interfaces import Chosen, NcclFailure, is_read, parse_spec
from nccl_doctor.nccl.rdma import ip_of, is_usable, list_rdma
from nccl_doctor.nccl.rdma_pairs import ClusterRdma, RdmaSide
from nccl_doctor.nccl.reachability import LossCause, Peers, Reachability, Reachable, is_private, reachability
from nccl_doctor.nccl.suggest import InterfaceSuggestion, suggest
from nccl_doctor.nccl.versions import VersionNumbers
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.text.hostlist import fold, listed
from nccl_doctor.text.inet import Address, address_of, network_of, numeric, prefix_length

if TYPE_CHECKING:  # no check needs them
    from nccl_doctor.model.documents import Exports, InterfaceAnswer, InterfaceAnswers


MOST_NAMED = 4  # interfaces of a host in one sentence


@dataclass(frozen=True)
class ClusterNccl:
    """NCCL's choices of interface on the hosts that were reached.

    For each host on which NCCL's choice is unknown, ``unknown`` contains the reason.
    """

    snapshot: Snapshot
    by_host: dict[str, HostNccl]
    unknown: dict[str, str]

    @property
    def mesh(self) -> Mesh | None:
        return self.snapshot.mesh if isinstance(self.snapshot.mesh, Mesh) else None

    @cached_property
    def peers(self) -> Peers:
        """The hosts from which the reachability of an address is determined."""
        return Peers(self.by_host, self.mesh)

    @cached_property
    def bootstrap(self) -> dict[str, Reachability]:
        return {
            name: reachability(side, side.chosen.address, self.peers.of(name, side.chosen.address), self.mesh)
            for name, side in self.by_host.items()
            if side.chosen is not None
        }

    @cached_property
    def rdma(self) -> ClusterRdma:
        """The RDMA devices as NCCL lists and connects them.

        Hosts whose RDMA devices are unknown are omitted.
        """
        pairs = ((host.name, host.facts.rdma) for host in self.snapshot.reached if host.facts is not None)
        sides = {
            name: RdmaSide(
                self.by_host[name], list_rdma(devices, self.by_host[name].values, self.by_host[name].version)
            )
            for name, devices in pairs
            if name in self.by_host and not isinstance(devices, Unknown)
        }
        return ClusterRdma(sides, self.mesh)

    @cached_property
    def suggestion(self) -> InterfaceSuggestion | None:
        """Interface names with which NCCL works on all hosts according to the model, or None if no such names exist."""
        return suggest(self.snapshot.reached, self.by_host, self.mesh)

    @cached_property
    def interfaces(self) -> dict[str, NcclInterface]:
        """The interface that NCCL uses on each host. Hosts on which NCCL finds no interface are omitted."""
        return {name: side.interface for name, side in self.by_host.items() if side.interface is not None}

    @property
    def addresses(self) -> dict[str, str]:
        return {name: side.address for name, side in self.interfaces.items()}

    def lost_devices(self, host: str) -> tuple[Chosen, ...]:
        """Return the unreachable interfaces that NET/Socket uses in addition to the bootstrap's interface.

        The result is empty if NCCL transfers data over RDMA.
        """
        side = self.by_host[host]
        if host in self.rdma.sides and self.rdma.sides[host].rdma.entries:
            return ()
        others = (use for use in side.choice.net_socket if side.chosen is None or use.name != side.chosen.name)
        asked = ((use, self.peers.of(host, use.address)) for use in others)
        return tuple(use for use, peers in asked if reachability(side, use.address, peers, self.mesh).is_lost)

    def wanted(self, host: str) -> str | None:
        """Return the host's NCCL_SOCKET_IFNAME as NCCL reads it, or None if it is unset or shorter than two bytes."""
        variable = self.by_host[host].variables.get("NCCL_SOCKET_IFNAME")
        return variable.value if variable is not None and is_read(variable.value) else None

    def is_idle(self, host: str) -> bool:
        """Return whether the bootstrap's interface is not running.

        Versions of NCCL before 2.28.3 can choose an interface that is not running.
        """
        side = self.by_host[host]
        link = side.link(side.chosen.name) if side.chosen is not None else None
        return link is not None and "running" not in link.flags


def cluster_nccl(snapshot: Snapshot, version: VersionNumbers | None = None) -> ClusterNccl:
    """Return NCCL's choices on the hosts of a snapshot, for ``version`` or else for each host's own version."""
    sides = {host.name: host_nccl(host, version=version) for host in snapshot.reached}
    return ClusterNccl(
        snapshot,
        {name: side for name, side in sides.items() if isinstance(side, HostNccl)},
        {name: side.reason for name, side in sides.items() if isinstance(side, Unknown)},
    )


class FaultKind(Enum):
    """Kinds of faults in NCCL's choice of interface. Each value is the name of a diagnosis."""

    NO_MATCH = "ifname-no-match"
    WRONG = "ifname-wrong-interface"
    NEEDED = "ifname-needed"
    AMBIGUOUS = "ifname-ambiguous"
    DOWN = "interface-down"


@dataclass(frozen=True)
class ChoiceFault:
    """A fault in NCCL's choice of interface on a host.

    ``problem`` is a phrase that follows "NCCL on HOST". ``evidence`` maps each observation to the hosts that it
    concerns.
    """

    host: str
    kind: FaultKind
    severity: Severity
    wanted: str | None
    used: Chosen | None
    problem: str
    evidence: Mapping[str, tuple[str, ...]]
    idle: str | None = None  # the interface that is not running


def faults(nccl: ClusterNccl) -> Iterator[ChoiceFault]:
    for side in nccl.by_host.values():
        fault = _no_interface(nccl, side) if side.chosen is None else _bad_interface(nccl, side, side.chosen)
        if fault is not None:
            yield fault


def _no_interface(nccl: ClusterNccl, side: HostNccl) -> ChoiceFault | None:
    failure = side.choice.bootstrap
    if not isinstance(failure, NcclFailure) or "NCCL_COMM_ID" in side.variables:  # env-bad-value reports that one
        return None
    wanted = nccl.wanted(side.host)
    links = ((entry.interface, side.link(entry.interface)) for entry in side.interfaces.addresses)
    down = [(name, link.name) for name, link in links if link is not None and "running" not in link.flags]
    idle = [name for name, link in down if wanted is None or parse_spec(wanted).accepts(link)]
    why = f" because {idle[0]} is down or has no carrier," if idle else ""
    problem = f'finds no usable interface{why} and fails with "{failure.words}"'
    names = listed(dict.fromkeys(entry.interface for entry in side.interfaces.addresses)) or "none"
    evidence = {f"{failure.reason}; with an address: {names}": (side.host,)}
    kind = FaultKind.DOWN if idle else FaultKind.NO_MATCH
    return ChoiceFault(side.host, kind, Severity.ERROR, wanted, None, problem, evidence, idle[0] if idle else None)


def _bad_interface(nccl: ClusterNccl, side: HostNccl, chosen: Chosen) -> ChoiceFault | None:
    wanted = nccl.wanted(side.host)
    uses = {f"NCCL uses {chosen.name} ({chosen.address}): {chosen.reason}": (side.host,)}
    if nccl.is_idle(side.host):
        kind = FaultKind.NEEDED if wanted is None else FaultKind.DOWN
        problem = f"will use {chosen.name} ({chosen.address}), which is down or has no carrier"
        return ChoiceFault(side.host, kind, Severity.ERROR, wanted, chosen, problem, uses, chosen.name)
    standing = nccl.bootstrap[side.host]
    if standing.is_lost and not _is_anothers_fault(nccl, side, chosen, standing.causes):
        why = "which the other hosts can't reach"
        if standing.causes == {LossCause.LOOPBACK}:
            why = "the loopback interface, which no other host can reach"
        elif LossCause.OWN_ADDRESS in standing.causes:
            why = "whose address other hosts also have, so each host would connect to itself"
        problem = f"will use {chosen.name} ({chosen.address}), {why}"
        better = nccl.suggestion.interfaces.get(side.host) if nccl.suggestion is not None else None
        lets_through = better in {use.name for use in side.choice.net_socket}
        misled = FaultKind.AMBIGUOUS if lets_through and not (wanted or "").startswith("^") else FaultKind.WRONG
        kind = FaultKind.NEEDED if wanted is None else misled
        evidence = uses | standing.reasons(Reachable.NO)
        return ChoiceFault(side.host, kind, Severity.ERROR, wanted, chosen, problem, evidence)
    devices = nccl.lost_devices(side.host)
    if devices:
        names = listed((f"{use.name} ({use.address})" for use in devices), MOST_NAMED)
        problem = f"will also transfer data over {names}, which no other host can reach"
        kind = FaultKind.NEEDED if wanted is None else FaultKind.AMBIGUOUS
        all_used = listed(f"{use.name} ({use.address})" for use in side.choice.net_socket)
        evidence = {f"NCCL uses {all_used}": (side.host,)}
        return ChoiceFault(side.host, kind, Severity.WARNING, wanted, devices[0], problem, evidence)
    return None


def _is_anothers_fault(nccl: ClusterNccl, side: HostNccl, chosen: Chosen, causes: set[LossCause]) -> bool:
    if is_private(side, chosen.name):
        return False
    # In a pod there is usually no other interface for NCCL to use.
    addresses = [entry for entry in side.interfaces.addresses if not address_of(entry.address).is_loopback]
    others = [entry for entry in addresses if entry.interface.partition(":")[0] != chosen.name]
    if causes <= {LossCause.NO_ROUTE, LossCause.SILENT, LossCause.GATEWAY} and not others:
        return True
    return causes == {LossCause.OWN_ADDRESS} or (
        causes <= {LossCause.NO_ROUTE, LossCause.SILENT} and nccl.suggestion is None
    )


def answers(snapshot: Snapshot, version: VersionNumbers | None = None) -> InterfaceAnswers:
    """Return the result of ``ifname`` for each host.

    If ``version`` is None, the result is for the host's own version of NCCL.
    """
    from nccl_doctor.model.documents import InterfaceAnswers

    nccl = cluster_nccl(snapshot, version)
    trouble = any(_trouble(nccl, name) is not None for name in nccl.by_host)
    suggestion = nccl.suggestion if trouble else None
    devices = rdma_answers(nccl.rdma)
    rows = tuple(
        _answer(nccl, host.name, suggestion).model_copy(update={"rdma": devices.get(host.name, ())})
        for host in snapshot.hosts
    )
    return InterfaceAnswers(hosts=rows, exports=_exports(rows))


def answers_for(snapshot: Snapshot, address: Address, version: VersionNumbers | None = None) -> InterfaceAnswers:
    """Return each host's interface in the network of ``address``, and the setting that selects this interface."""
    from nccl_doctor.model.documents import InterfaceAnswers

    plain = answers(snapshot, version)
    sides = {host.name: side for host in snapshot.reached if isinstance(side := host_nccl(host), HostNccl)}
    entries = {name: [entry for entry in side.interfaces.addresses if entry.netmask] for name, side in sides.items()}
    nets = [
        (address_of(entry.address) != address, -within.prefixlen, within)
        for entry in itertools.chain.from_iterable(entries.values())
        if address in (within := network_of(f"{entry.address}/{prefix_length(entry.netmask or '')}"))
    ]
    net = min(nets, key=lambda result: result[:2])[2] if nets else None

    def answer(row: InterfaceAnswer) -> InterfaceAnswer:
        if row.name not in sides:
            return row
        near = [entry for entry in entries[row.name] if net is not None and address_of(entry.address) in net]
        near.sort(key=lambda entry: address_of(entry.address) != address)
        if not near:
            why = f"no interface has {address}" + (f" or another address of {net}" if net is not None else "")
            return row.model_copy(update={"reason": why, "set": {}, "known": True})
        name, ip = near[0].interface.partition(":")[0], near[0].address
        why = f"has {address}" if address_of(ip) == address else f"is on the net of {address}, {net}"
        now = row.nccl_interface.name if row.nccl_interface is not None else "none" if row.known else None
        why += f"; NCCL takes {now} as things stand" if now not in (name, None) else ""
        update = {"reason": why, "set": InterfaceSuggestion({row.name: name}).variables(row.name), "has": (name, ip)}
        return row.model_copy(update=update | {"known": True})

    result = tuple(map(answer, plain.hosts))
    return InterfaceAnswers(asked=str(address), hosts=result, exports=_exports(result))


def _answer(nccl: ClusterNccl, host: str, suggestion: InterfaceSuggestion | None) -> InterfaceAnswer:
    from nccl_doctor.model.documents import InterfaceAnswer

    side = nccl.by_host.get(host)
    if side is None:
        why = f"not known: {nccl.unknown.get(host, 'the host was not reached')}"
        return InterfaceAnswer(name=host, nccl_interface=None, reason=why, known=False)
    to_set = suggestion.variables(host) if suggestion is not None else {}
    bootstrap = side.choice.bootstrap
    if isinstance(bootstrap, NcclFailure):
        why = f"{bootstrap.reason}: NCCL ends with {bootstrap.words!r}"
        return InterfaceAnswer(name=host, nccl_interface=None, reason=why, set=to_set)
    trouble = _trouble(nccl, host)
    reason = bootstrap.reason
    if side.disagreement is not None:
        reason = side.disagreement if side.source == "libnccl" else f"{reason}, but {side.disagreement}"
    if trouble is not None:
        better = suggestion.interfaces[host] if suggestion is not None else None
        rivals = [use.name for use in side.choice.net_socket if use.name == better]
        if rivals and rivals != [bootstrap.name] and nccl.wanted(host) is None and side.disagreement is None:
            reason = f"comes before {rivals[0]} in the kernel's order"
        reason = f"{reason}; {trouble}"
    return InterfaceAnswer(name=host, nccl_interface=side.summary, reason=reason, set=to_set)


def _trouble(nccl: ClusterNccl, host: str) -> str | None:
    side = nccl.by_host[host]
    if side.chosen is None:
        return "NCCL finds no interface"
    if nccl.is_idle(host):
        return f"{side.chosen.name} is not running"
    alone = len(nccl.snapshot.hosts) == 1
    link = side.link(side.chosen.name)
    if alone and link is not None and "loopback" in link.flags and len(side.interfaces.links) > 1:
        return "no other host could reach it"
    standing = nccl.bootstrap[host]
    if standing.is_lost:
        unsure = any(verdict.answer is Reachable.UNSURE for verdict in standing.verdicts)
        why, sources = next(iter(standing.reasons(Reachable.NO).items()))
        return f"{fold(sources)}: {why}" if unsure else "no other host can reach it"
    lost = nccl.lost_devices(host)
    if lost:
        return f"NET/Socket also uses {', '.join(use.name for use in lost)}, which no other host can reach"
    return None


def _exports(answers: tuple[InterfaceAnswer, ...]) -> tuple[Exports, ...]:
    from nccl_doctor.model.documents import Exports

    by_setting: dict[tuple[str, ...], list[str]] = {}
    for side in answers:
        if side.set:
            lines = tuple(str(made) for name, value in side.set.items() if (made := export(name, value)))
            by_setting.setdefault(lines, []).append(side.name)
    alike = len(by_setting) == 1 and all(side.set for side in answers)  # one block for all hosts
    return tuple(Exports(hosts=None if alike else tuple(hosts), lines=lines) for lines, hosts in by_setting.items())


def describe_gids(rdma: ClusterRdma, gids: Sequence[str]) -> str | None:
    """Describe the ports with these GIDs and state whether the ports can connect to each other.

    Return None if no host has the GIDs.
    """
    wanted = {(address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address
              for gid in gids if (address := numeric(gid)) is not None}  # fmt: skip
    for pair in rdma.pairs:
        held = [entry.gid.entry for entry in (pair.here, pair.there)]
        if len(wanted) == 2 and {ip_of(gid) for gid in held if gid is not None} == wanted:
            ends = f"{pair.source}'s {pair.here} and {pair.target}'s {pair.there}"
            return f"{ends} are at place {pair.place} of both lists: {pair.talk.why}"
    owners = [
        f"{ip_of(gid)} is of {name}'s {entry}"
        for name, side in rdma.sides.items()
        for entry in side.rdma.entries
        for gid in entry.port.gids
        if ip_of(gid) in wanted and is_usable(gid) and gid.type != "IB/RoCE v1"
    ]
    return ", ".join(owners) or None


def rdma_answers(rdma: ClusterRdma) -> dict[str, tuple[RdmaAnswer, ...]]:
    apart: dict[tuple[str, int], list[str]] = {}
    for pair in rdma.pairs:
        if pair.talk.answer is Reachable.NO:
            apart.setdefault((pair.source, pair.here.index), []).append(pair.target)
            apart.setdefault((pair.target, pair.there.index), []).append(pair.source)
    by_host: dict[str, tuple[RdmaAnswer, ...]] = {}
    for name, side in rdma.sides.items():
        places = {entry.index: place for place, nic in enumerate(side.rdma.nics) for entry in nic.members}
        rows = []
        for entry in side.rdma.entries:
            net, lost = side.network(entry), apart.get((name, entry.index))
            row = RdmaAnswer(
                device=entry.device.name,
                port=entry.port.number,
                netdev=entry.netdev,
                link_layer=entry.port.link_layer,
                rate_gbps=entry.port.rate_gbps,
                gid_index=entry.gid.index,
                gid=None if entry.gid.entry is None else str(ip_of(entry.gid.entry)),
                why=entry.gid.why,
                network=None if net is None else str(net),
                place=places[entry.index],
                apart=tuple(dict.fromkeys(lost or ())),
                trouble=f"no way to {fold(lost)}'s" if lost else None,
            )
            rows.append(row)
        by_host[name] = tuple(rows)
    return by_host
