"""What can be wrong with the interface that NCCL uses on a host, as one kind a host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from nccl_doctor.model.finding import Severity
from nccl_doctor.nccl.cluster_nccl import ClusterNccl
from nccl_doctor.nccl.host_nccl import HostNccl
from nccl_doctor.nccl.interfaces import Chosen, Failure, parse_spec
from nccl_doctor.nccl.reach import Cause, Reachable, is_private
from nccl_doctor.text.inet import address_of


class Kind(Enum):
    """The faults of NCCL's choice of interface, by the names of their diagnoses."""

    NO_MATCH = "ifname-no-match"
    WRONG = "ifname-wrong-interface"
    NEEDED = "ifname-needed"
    AMBIGUOUS = "ifname-ambiguous"
    DOWN = "interface-down"


@dataclass(frozen=True)
class Fault:
    """What is wrong on one host.

    Attributes:
        wanted: NCCL_SOCKET_IFNAME there, None where NCCL takes it for unset.
        used: the interface at fault, None where NCCL finds none.
        problem: what NCCL does there, to follow "NCCL on HOST".
        evidence: what shows it, each with the hosts of which it is true.
    """

    host: str
    kind: Kind
    severity: Severity
    wanted: str | None
    used: Chosen | None
    problem: str
    evidence: Mapping[str, tuple[str, ...]]


def faults(nccl: ClusterNccl) -> Iterator[Fault]:
    """What is wrong with each host's choice of interface, where something is."""
    for one in nccl.by_host.values():
        found = _no_interface(nccl, one) if one.chosen is None else _bad_interface(nccl, one, one.chosen)
        if found is not None:
            yield found


def _no_interface(nccl: ClusterNccl, one: HostNccl) -> Fault | None:
    failure = one.choice.bootstrap
    if not isinstance(failure, Failure) or "NCCL_COMM_ID" in one.variables:  # env-bad-value tells of that one
        return None
    wanted = nccl.wanted(one.host)
    idle = [
        entry.interface
        for entry in one.interfaces.addresses
        for link in [one.link(entry.interface)]
        if link is not None
        and "running" not in link.flags
        and (wanted is None or parse_spec(wanted).accepts(link.name))
    ]
    seen = f"finds {idle[0]} not running" if idle else "finds no interface"
    problem = f"{seen}, and ends with “{failure.words}”"
    names = ", ".join(dict.fromkeys(entry.interface for entry in one.interfaces.addresses)) or "none"
    evidence = {f"{failure.reason}; with an address: {names}": (one.host,)}
    kind = Kind.DOWN if idle else Kind.NO_MATCH
    return Fault(one.host, kind, Severity.ERROR, wanted, None, problem, evidence)


def _bad_interface(nccl: ClusterNccl, one: HostNccl, chosen: Chosen) -> Fault | None:
    wanted = nccl.wanted(one.host)
    uses = {f"NCCL uses {chosen.name} ({chosen.address}): {chosen.reason}": (one.host,)}
    if nccl.is_idle(one.host):
        kind = Kind.NEEDED if wanted is None else Kind.DOWN
        problem = f"will use {chosen.name} ({chosen.address}), which is not running"
        return Fault(one.host, kind, Severity.ERROR, wanted, chosen, problem, uses)
    standing = nccl.bootstrap[one.host]
    if standing.is_lost and not _is_anothers_fault(nccl, one, chosen, standing.causes):
        problem = f"will use {chosen.name} ({chosen.address}), {_unreached(standing.causes)}"
        evidence = uses | standing.reasons(Reachable.NO)
        return Fault(one.host, _kind(nccl, one, wanted), Severity.ERROR, wanted, chosen, problem, evidence)
    devices = nccl.lost_devices(one.host)
    if devices:
        names = ", ".join(f"{use.name} ({use.address})" for use in devices)
        problem = f"will move data over {names} as well as {chosen.name}, and no other host can reach that"
        kind = Kind.NEEDED if wanted is None else Kind.AMBIGUOUS
        all_used = ", ".join(f"{use.name} ({use.address})" for use in one.choice.net_socket)
        return Fault(
            one.host, kind, Severity.WARNING, wanted, devices[0], problem, {f"NCCL uses {all_used}": (one.host,)}
        )
    return None


def _kind(nccl: ClusterNccl, one: HostNccl, wanted: str | None) -> Kind:
    """Which of three: not set; a list that lets a good one through as well; a list that leads astray."""
    if wanted is None:
        return Kind.NEEDED
    better = nccl.suggestion.interfaces.get(one.host) if nccl.suggestion is not None else None
    through = {use.name for use in one.choice.net_socket}
    return Kind.AMBIGUOUS if not wanted.startswith("^") and better in through else Kind.WRONG


def _is_anothers_fault(nccl: ClusterNccl, one: HostNccl, chosen: Chosen, causes: set[Cause]) -> bool:
    """Whether no other interface would mend it: duplicate-address, route-missing, or a drop outside of the host."""
    if is_private(one, chosen.name):
        return False
    if causes <= {Cause.NO_ROUTE, Cause.SILENT, Cause.GATEWAY} and not _others(one, chosen):
        return True
    return causes == {Cause.OWN_ADDRESS} or (causes <= {Cause.NO_ROUTE, Cause.SILENT} and nccl.suggestion is None)


def _others(one: HostNccl, chosen: Chosen) -> list[str]:
    """The interfaces with an address that NCCL could be told to take instead; in a pod there is mostly none."""
    addresses = (entry for entry in one.interfaces.addresses if not address_of(entry.address).is_loopback)
    return [entry.interface for entry in addresses if entry.interface.partition(":")[0] != chosen.name]


def _unreached(causes: set[Cause]) -> str:
    if causes == {Cause.LOOPBACK}:
        return "the loopback interface: no other host can reach it"
    if Cause.OWN_ADDRESS in causes:
        return "an address that other hosts have as well: they would talk to themselves"
    return "which the other hosts can't reach"
