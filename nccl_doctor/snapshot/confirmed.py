"""Which addresses of a host somebody besides it speaks for: only these stand in a command for another host.

A host may claim any address, and what it claims must not become a rule on an honest one. Evidence is, each alone:

- the hosts file names the address;
- this machine resolves the hosts file's name for the host to it (:attr:`Snapshot.resolved`);
- the host that the command is for resolves that name to it: it answers for its own command alone;
- the host that the command is for dialled it and met the host's own listener, which says a nonce of the run's that is
  this host's alone (:attr:`Mesh.answered`). That a third one says so is none: two that lie could vouch for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nccl_doctor.snapshot import Host, Mesh, Names, Snapshot
from nccl_doctor.text.inet import Address, numeric


def addresses(snapshot: Snapshot, host: str, reader: str) -> frozenset[Address]:
    """The confirmed addresses of a host, for a command on ``reader``; both by their nodes' names."""
    told = snapshot.mesh.answered.get(host, {}) if isinstance(snapshot.mesh, Mesh) else {}
    met = [address for address, witnesses in told.items() if reader in witnesses]
    names = [node.address for node in snapshot.cluster.nodes if node.name == host]
    if snapshot.cluster.nodes[0].name == host:
        names.append(snapshot.cluster.master_addr)
    return frozenset(_usable((*met, *(text for name in names for text in _known(snapshot, name, reader)))))


def of_name(snapshot: Snapshot, name: str, reader: str) -> frozenset[Address]:
    """The confirmed addresses of a name of the hosts file."""
    hosts = [node.name for node in snapshot.cluster.nodes if node.address == name]
    if name == snapshot.cluster.master_addr:
        hosts.append(snapshot.cluster.nodes[0].name)
    found = [one for host in hosts for one in addresses(snapshot, host, reader)]
    return frozenset(found) | frozenset(_usable(_known(snapshot, name, reader)))


def _known(snapshot: Snapshot, name: str, reader: str) -> Iterator[object]:
    """What the hosts file, this machine and the reader make of a name."""
    yield name
    yield from snapshot.resolved.get(name, ())
    for host in snapshot.hosts:
        if host.name == reader:
            yield from _resolved_there(host, name)


def _resolved_there(host: Host, name: str) -> Iterator[object]:
    if host.facts is not None and isinstance(host.facts.resolution, Names):
        told = host.facts.resolution.get(name)
        yield from told.addresses if told is not None else ()


def _usable(texts: Iterable[object]) -> Iterator[Address]:
    for text in texts:
        address = numeric(str(text))
        if address is not None and not (address.is_loopback or address.is_unspecified or address.is_multicast):
            yield address
