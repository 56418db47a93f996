"""Finds faults in the host names that gloo uses, and detects torch's NCCL backend and containers' own networks."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

from nccl_doctor.checks.nccl_choice import good_interfaces
from nccl_doctor.checks.view import View, failed_where
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.finding import Details, Finding, Fix, Severity
from nccl_doctor.nccl.gloo import GLOO_SOCKET_IFNAME, gloo_devices_of, lost_to
from nccl_doctor.nccl.interfaces import NcclFailure
from nccl_doctor.nccl.reachability import Reachable, reach
from nccl_doctor.nccl.suggest import setting
from nccl_doctor.nccl.variables import NCCL2_SWITCH, uses_nccl2
from nccl_doctor.snapshot.hosts import Host, HostFacts, Snapshot
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.network import Resolution
from nccl_doctor.snapshot.surroundings import Outside, Surroundings
from nccl_doctor.snapshot.system import TorchInfo
from nccl_doctor.text.hostlist import quoted
from nccl_doctor.text.inet import is_loopback

CHANCE = (
    ". On a host with this fault, gloo listens on a loopback address. Gloo works only if the addresses of all other "
    "hosts are lower than 127.x, because in each pair of hosts, the host with the higher address connects to the host "
    "with the lower address. Gloo fails if a second host has this fault, or if another host has a higher address (for "
    "example 192.168.x.x)"
)
"""Addition to the message about a name that resolves to a wrong address, for cases in which gloo still works."""

ENOUGH = 128
"""Maximum number of hosts for which gloo's connections are simulated. In larger clusters, a sample of the hosts is
used.
"""


@dataclass(frozen=True)
class OwnName:
    """A host's own name, the address that gloo derives from it, and the hosts that can't connect to this address."""

    host: str
    name: str
    resolution: Resolution
    gloo: str
    lost: tuple[str, ...]

    @property
    def is_loopback(self) -> bool:
        """True if gloo listens on a loopback address to which the name resolves."""
        return self.gloo in self.resolution.addresses and is_loopback(self.gloo)

    @property
    def is_stale(self) -> bool:
        """True if the name resolves only to addresses that the host does not have."""
        return bool(self.resolution.addresses) and self.gloo not in self.resolution.addresses


_known: WeakKeyDictionary[object, dict[tuple[str, ...], tuple[OwnName, ...]]] = WeakKeyDictionary()
"""Cache of the results of ``own_names``, keyed by ``Derived`` object and tuple of hosts.

Three checks need the results.
"""


def own_names(view: View) -> tuple[OwnName, ...]:
    """Return an ``OwnName`` for each host on which gloo uses the host name, because GLOO_SOCKET_IFNAME is not set."""
    known_names, hosts = _known.setdefault(view.derived, {}), tuple(host.name for host in view.hosts)
    if hosts not in known_names:
        known_names[hosts] = tuple(_own_names(view))
    return known_names[hosts]


def _own_names(view: View) -> Iterator[OwnName]:
    if len({node.address for node in view.snapshot.cluster.nodes}) < 2:
        return
    named: dict[str, tuple[str, Resolution]] = {}
    addresses: dict[str, str] = {}
    for host, facts in view.facts:
        identity = known(facts.identity)
        resolution = known(facts.resolution).get(identity.hostname)
        variables = {**known(facts.env), **host.node.env}
        devices = gloo_devices_of(host)
        if devices and not isinstance(devices, NcclFailure):
            addresses[host.name] = devices[0].address
            if resolution is not None and len(variables.get(GLOO_SOCKET_IFNAME, "")) < 2:
                named[host.name] = identity.hostname, resolution
    usual = Counter(map(_is_v4, addresses.values())).most_common()[0][0] if addresses else True
    spread = list(addresses)[:: max(0, len(addresses) - 1) // ENOUGH + 1]
    for host_name, (name, resolution) in named.items():
        lost: tuple[str, ...] = ()
        nccl = view.nccl.by_host.get(host_name)
        is_used = nccl is not None and nccl.chosen is not None and nccl.chosen.address == addresses[host_name]
        # gloo uses NCCL's address, in the family of the others: then the host's name does not matter
        if not is_used or _is_v4(addresses[host_name]) != usual or is_loopback(addresses[host_name]):
            rivals = {
                other: addresses[other]
                for other in dict.fromkeys((host_name, *spread))
                if other == host_name or not _cannot_conflict(view, host_name, other, addresses, usual=usual)
            }
            lost = lost_to(host_name, rivals, partial(_reaches, view, host_name))
        yield OwnName(host_name, name, resolution, addresses[host_name], lost)


def _is_v4(address: str) -> bool:
    return ":" not in address


def _cannot_conflict(view: View, host: str, other: str, addresses: Mapping[str, str], *, usual: bool) -> bool:
    """Return whether both hosts share a machine, or ``host`` uses the usual address family and ``other`` does not."""
    by_host = view.nccl.by_host
    ends = [by_host[name].machine for name in (host, other) if name in by_host]
    if len(ends) == 2 and ends[0] is not None and ends[0] == ends[1]:
        return True
    mine, theirs = _is_v4(addresses[host]), _is_v4(addresses[other])
    return mine != theirs and mine == usual


def _reaches(view: View, host: str, source: str, address: str) -> bool:
    """Return whether gloo on ``source`` might be able to reach ``address`` on ``host``."""
    target, dialler = view.nccl.by_host.get(host), view.nccl.by_host.get(source)
    if target is None or dialler is None or (target.chosen is not None and target.chosen.address == address):
        return True
    return reach(dialler, target, address, view.nccl.mesh).answer is not Reachable.NO


def finding(view: View, caught: list[OwnName], message: str) -> Finding:
    """Return the finding for the faulty names in ``caught``.

    If possible, the remedy sets GLOO_SOCKET_IFNAME.
    """
    nccl = view.nccl
    good = good_interfaces(nccl)
    summary = (
        "Set this in the job's environment (the hosts file's env), or map each host's name to its real address in "
        "that host's /etc/hosts."
    )
    names = {entry.host: good[entry.host] for entry in caught if entry.host in good}
    # other hosts are dialled at the addresses to which they resolve their own names
    by_name = {(entry.host, entry.name) for entry in caught}
    by_gloo = {(entry.host, entry.gloo) for entry in caught if nccl.addresses.get(entry.host) != entry.gloo}
    failed = failed_where(view, lambda dial: (dial.src, dial.address) in by_name or (dial.dst, dial.address) in by_gloo)
    lost = any(entry.lost for entry in caught)
    return Finding(
        hosts=tuple(entry.host for entry in caught),
        message=message,
        evidence=tuple(
            f"{entry.host}: {quoted(entry.name)}: {', '.join(entry.resolution.addresses) or entry.resolution.error}"
            for entry in caught
        ),
        facts={entry.host: list(entry.resolution.addresses) for entry in caught},
        details=Details(failed=failed),
        fix=setting(summary, GLOO_SOCKET_IFNAME, names) if len(names) == len(caught) else Fix(summary=summary),
        # in a job with NCCL, gloo may only be used for small messages
        severity=Severity.INFO if not lost else Severity.ERROR if is_without_gpus(view) else None,
    )


def is_without_gpus(view: View) -> bool:
    """Return whether the job can't use NCCL because no host has a GPU."""
    return all(facts.gpus == () for _, facts in view.facts)


def on_nccl2(view: View) -> dict[str, bool]:
    """Return, for each host whose torch version and variables are known, whether torch's "nccl" backend is nccl2."""
    result = {}
    for host, facts in view.facts:
        host_nccl = view.by_host.get(host.name)
        if isinstance(facts.torch, TorchInfo) and host_nccl is not None:
            switch = host_nccl.variables.get(NCCL2_SWITCH)
            used = uses_nccl2(facts.torch.version, None if switch is None else switch.value)
            if used is not None and (switch is None or switch.doubt is None):
                result[host.name] = used
    return result


def has_own_network(facts: HostFacts) -> bool:
    """Return whether the facts come from a container with its own network namespace."""
    inside, outside = facts.surroundings, facts.outside
    if not isinstance(inside, Surroundings) or not isinstance(outside, Outside):
        return False
    return None not in (inside.network, outside.network) and inside.network != outside.network


def is_unreached(snapshot: Snapshot, host: Host) -> bool:
    """Return whether the host is a container in its own network namespace and can't be reached by any other host."""
    facts, mesh, name = host.facts, snapshot.mesh, host.name
    if facts is None or not has_own_network(facts) or len(snapshot.cluster.nodes) == 1:
        return False
    if isinstance(mesh, Mesh):
        dialled = (src for src in mesh.ports if src != name and (mesh.sample is None or mesh.sample.holds(src, name)))
        return all((src, name) in mesh.failures for src in dialled)
    if isinstance(facts.interfaces, Unknown) or isinstance(facts.resolution, Unknown):
        return False
    # the answer for the hosts file's name, beside what the container resolves
    resolved = facts.resolution.get(host.node.address)
    wanted = {host.node.address, *(resolved.addresses if resolved else ())}
    return all(entry.address not in wanted for entry in facts.interfaces.addresses)
