"""The address that gloo chooses on a host, and the rule that decides which of two hosts connects to the other.

Unlike NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME contains complete names, not prefixes (``lookupAddrForIface`` in
gloo/transport/tcp/device.cc). The list syntax and the default of GLOO_SOCKET_IFNAME come from torch
(ProcessGroupGloo.cpp and init.cpp in torch/csrc/distributed/c10d).

Of two ranks, the rank with the higher address connects to the other rank. gloo compares addresses as memcmp(3) does
and, if the addresses are equal, compares ports (``Device::isInitiator`` in gloo/transport/tcp/device.cc). A host that
advertises 127.0.0.1 can communicate with peers in 10.0.0.0/8, because the host itself connects to these peers. A host
that advertises 127.0.0.1 can't communicate with peers in 192.168.0.0/16, because these peers would have to connect to
127.0.0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nccl_doctor.model.base import Unknown, known
from nccl_doctor.nccl.interfaces import Chosen, NcclFailure
from nccl_doctor.snapshot.hosts import Host
from nccl_doctor.snapshot.network import Interfaces, Resolution
from nccl_doctor.text.inet import address_of

GLOO_SOCKET_IFNAME = "GLOO_SOCKET_IFNAME"
LOOPBACK = "127.0.0.1"


def gloo_devices_of(host: Host) -> tuple[Chosen, ...] | NcclFailure | None:
    """Return the devices that gloo uses for a job on a host, or None if a required fact is unknown."""
    facts = host.facts
    if facts is None:
        return None
    identity, names, interfaces, env = facts.identity, facts.resolution, facts.interfaces, facts.env
    if any(isinstance(fact, Unknown) for fact in (identity, names, interfaces, env)):
        return None
    own_name = known(names).get(known(identity).hostname)
    return gloo_devices(known(interfaces), {**known(env), **host.node.env}, own_name)


def gloo_devices(
    interfaces: Interfaces, variables: Mapping[str, str], hostname: Resolution | None
) -> tuple[Chosen, ...] | NcclFailure | None:
    """Return the devices to which gloo binds, or the reason why gloo fails to start.

    The result has one device for each name in GLOO_SOCKET_IFNAME, which is a comma-separated list. torch ignores a
    comma at the end of the list. If GLOO_SOCKET_IFNAME is not set or has fewer than two characters, gloo uses the first
    local address to which the host's own name resolves, or else 127.0.0.1. The result is None if it is unknown how the
    host's name resolves.
    """
    value = variables.get(GLOO_SOCKET_IFNAME, "")
    if len(value) > 1:
        names = value.removesuffix(",").split(",")
        devices = [exact(interfaces, name, f"{GLOO_SOCKET_IFNAME} names it") for name in names]
        for name, device in zip(names, devices, strict=True):
            if device is None:
                there = any(link.name == name for link in interfaces.links)
                bare = f"{name!r} has no address, as a member of a bond or a bridge has none"
                why = bare if there else f"no interface is called {name!r}"
                return NcclFailure(f"Unable to find address for: {name}", why)
        return tuple(device for device in devices if device is not None)
    if hostname is None:
        return None
    owners = {entry.address: entry.interface for entry in interfaces.addresses}
    for address in hostname.addresses:
        if address in owners or address.startswith("127."):
            return (Chosen(owners.get(address, "lo"), address, "the host's own name resolves to it"),)
    return (Chosen("lo", LOOPBACK, "the host's own name resolves to none of its addresses"),)


def exact(interfaces: Interfaces, name: str, reason: str) -> Chosen | None:
    """Return the first address of the interface with exactly this name, or None if no such address exists."""
    addresses = (entry.address for entry in interfaces.addresses if entry.interface == name)
    return next((Chosen(name, address, reason) for address in addresses), None)


Reaches = Callable[[str, str], bool]  # whether a host (by name) can reach an address


def lost_to(host: str, addresses: Mapping[str, str], reaches: Reaches) -> tuple[str, ...]:
    """Return the hosts on which gloo can't connect to ``host`` because of the address that ``host`` uses."""
    own_address = address_of(addresses[host])
    hosts = []
    for name, text in addresses.items():
        is_dialled = name != host and is_initiator(text, addresses[host])
        misses = is_dialled and (own_address.is_loopback or not reaches(name, addresses[host]))
        if own_address.version != address_of(text).version or misses:
            hosts.append(name)
    return tuple(hosts)


def is_initiator(address: str, other: str) -> bool:
    """Return whether the rank at ``address`` initiates the connection to the rank at ``other``."""
    here, there = address_of(address), address_of(other)
    return here.version == there.version and here.packed >= there.packed
