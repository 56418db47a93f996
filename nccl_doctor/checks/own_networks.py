"""Containers with a network of their own, and whether other hosts reach them there."""

from __future__ import annotations

from nccl_doctor.snapshot import Host, HostFacts, Mesh, Outside, Snapshot, Surroundings, Unknown


def has_own_network(facts: HostFacts) -> bool:
    """Whether all that a host told was found in a container whose network is not the host's."""
    inside, outside = facts.surroundings, facts.outside
    if not isinstance(inside, Surroundings) or not isinstance(outside, Outside):
        return False
    return None not in (inside.network, outside.network) and inside.network != outside.network


def is_unreached(snapshot: Snapshot, host: Host) -> bool:
    """Whether no other host reaches it there: a macvlan, an overlay and published ports do no harm."""
    if host.facts is None or not has_own_network(host.facts) or len(snapshot.cluster.nodes) == 1:
        return False
    mesh, name = snapshot.mesh, host.name
    if not isinstance(mesh, Mesh):
        return not _is_known_by_own_address(host, host.facts)
    dialled = (src for src in mesh.ports if src != name and (mesh.sample is None or mesh.sample.holds(src, name)))
    return all((src, name) in mesh.failures for src in dialled)


def _is_known_by_own_address(host: Host, facts: HostFacts) -> bool:
    """Whether the address that the hosts file means is one of the container's interfaces."""
    if isinstance(facts.interfaces, Unknown) or isinstance(facts.resolution, Unknown):
        return True
    address = host.node.address
    resolved = facts.resolution.get(address)
    wanted = {address, *(resolved.addresses if resolved else ())}
    return any(entry.address in wanted for entry in facts.interfaces.addresses)
