"""The host's interfaces and addresses, in the kernel's order, by which NCCL chooses.

Everything is asked of the kernel for this network namespace by psutil and ioctl(2); /sys/class/net may belong to
another one, as it does in containers that share the host's /sys.
"""

from __future__ import annotations

import array
import errno
import fcntl
import socket
import struct
from typing import TYPE_CHECKING, Any

from nccl_doctor.probe import psutil_memory

if TYPE_CHECKING:
    from psutil._ntuples import snicaddr, snicstats

SIOCETHTOOL = 0x8946
ETHTOOL_GDRVINFO = 3
DRIVER_INFO_SIZE = 196
NO_BUS = frozenset({"", "N/A", "tun", "tap"})
"""What drivers of virtual interfaces give for a bus address."""


def collect() -> dict[str, Any]:
    """snapshot.Interfaces."""
    psutil_memory.require()
    import psutil

    # if_nameindex(3) dumps the links in the order in which the kernel dumps their addresses too.
    indexes = {name: index for index, name in socket.if_nameindex()}
    stats = psutil.net_if_stats()
    links = [_link(name, index, stats[name]) for name, index in indexes.items() if name in stats]
    return {"links": links, "addresses": addresses(psutil.net_if_addrs(), indexes)}


def addresses(found: dict[str, list[snicaddr]], indexes: dict[str, int]) -> list[dict[str, Any]]:
    """snapshot.InterfaceAddress in getifaddrs(3)'s order: all IPv4, then all IPv6, each by the kernel's order of links.

    Args:
        found: of psutil.net_if_addrs. It keeps the kernel's order of IPv4, but groups by interface, so that the IPv6
            addresses of one that has IPv4 too would come early.
        indexes: interface index by name, in the kernel's order.
    """
    places = {name: place for place, name in enumerate(indexes)}
    rows: list[dict[str, Any]] = []
    for family, word in ((socket.AF_INET, "inet"), (socket.AF_INET6, "inet6")):
        of_family = [(name, one) for name, some in found.items() for one in some if one.family == family]
        if family == socket.AF_INET6:
            of_family.sort(key=lambda item: places.get(item[0], len(places)))
        for name, one in of_family:
            address, _, scope = one.address.partition("%")
            scope_id = indexes.get(scope, 0) if not scope.isdigit() else int(scope)
            row = {"interface": name, "family": word, "address": address, "netmask": one.netmask, "scope_id": scope_id}
            rows.append(row)
    return rows


def _link(name: str, index: int, stat: snicstats) -> dict[str, Any]:
    flags = [flag for flag in stat.flags.split(",") if flag]
    return {
        "name": name,
        "index": index,
        "flags": flags,
        "mtu": stat.mtu,
        "speed_mbps": stat.speed or None,
        "kind": "loopback" if "loopback" in flags else kind(*driver_info(name)),
    }


def kind(driver: str, bus: str) -> str:
    """snapshot.Link.kind of what the driver tells: physical where it sits on a bus, else what makes it."""
    if bus not in NO_BUS:
        return "physical"
    if "VLAN" in driver:
        return "vlan"  # "802.1Q VLAN Support", net/8021q/vlan_dev.c
    return {"": "virtual", "bonding": "bond"}.get(driver, driver)


def driver_info(name: str) -> tuple[str, str]:
    """Driver and bus address of an interface (struct ethtool_drvinfo); both empty where the kernel has none."""
    buffer = array.array("B", struct.pack("=I", ETHTOOL_GDRVINFO) + bytes(DRIVER_INFO_SIZE - 4))
    request = struct.pack("16sP16x", name.encode(), buffer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            fcntl.ioctl(any_socket, SIOCETHTOOL, request)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENODEV, errno.EPERM):
                return "", ""
            raise
    answer = buffer.tobytes()
    return _text(answer[4:36]), _text(answer[100:132])


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("ascii", "replace")
