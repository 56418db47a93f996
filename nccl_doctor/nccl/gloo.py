"""gloo's choice of address on a host, and which of two hosts connects to the other.

Unlike NCCL's variable, GLOO_SOCKET_IFNAME takes complete names and not prefixes (gloo/transport/tcp/device.cc,
``lookupAddrForIface``). Its syntax as a list and its default come from torch (ProcessGroupGloo.cpp and init.cpp in
torch/csrc/distributed/c10d).

Of two ranks, the one with the higher address connects to the other. Addresses are compared as by memcmp(3), and equal
addresses by their ports (gloo/transport/tcp/device.cc, ``Device::isInitiator``). So nobody dials 127.0.0.1 if it is the
higher one: a single host that advertises it can connect with peers in 10.0.0.0/8, but not with peers in 192.168.0.0/16.
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
    """Return the devices that gloo uses for a job on a host; None if a fact needed for this is unknown."""
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

    There is one device for each name in GLOO_SOCKET_IFNAME, a comma-separated list. If the variable is not set, gloo
    uses the first local address to which the host's own name resolves, or else 127.0.0.1. The result is None if it is
    unknown how the host's name resolves.
    """
    value = variables.get(GLOO_SOCKET_IFNAME, "")
    if len(value) > 1:
        devices = [exact(interfaces, name, f"{GLOO_SOCKET_IFNAME} names it") for name in value.split(",")]
        for name, device in zip(value.split(","), devices, strict=True):
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
    """Return the first address of the interface with exactly this name; None if there is none."""
    found = (entry.address for entry in interfaces.addresses if entry.interface == name)
    return next((Chosen(name, address, reason) for address in found), None)


Reaches = Callable[[str, str], bool]  # whether a host (by name) can reach an address


def lost_to(host: str, addresses: Mapping[str, str], reaches: Reaches) -> tuple[str, ...]:
    """Return the hosts whose gloo can't connect to ``host`` because of the address that ``host`` uses."""
    own = address_of(addresses[host])
    found = []
    for name, text in addresses.items():
        is_dialled = name != host and is_initiator(text, addresses[host])
        misses = is_dialled and (own.is_loopback or not reaches(name, addresses[host]))
        if own.version != address_of(text).version or misses:
            found.append(name)
    return tuple(found)


def is_initiator(own: str, other: str) -> bool:
    """Return whether the rank at address ``own`` connects to the rank at ``other``."""
    here, there = address_of(own), address_of(other)
    return here.version == there.version and here.packed >= there.packed
