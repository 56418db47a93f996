"""The host's interfaces and addresses, in the kernel's order, by which NCCL chooses.

Both are read as getifaddrs(3) reads them for NCCL, by netlink (rtnetlink(7)): the order of the addresses is that of the
kernel's dump, all IPv4 before all IPv6. What the drivers tell comes by ioctl(2). All of it is asked of the kernel for
this network namespace; /sys/class/net may belong to another one, as it does in containers that share the host's /sys.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from typing import Any

from nccl_doctor.probe import netlink
from nccl_doctor.probe.unavailable import Unavailable

RTM_GETLINK, RTM_GETADDR = 18, 22
IFLA_IFNAME, IFLA_MTU, IFLA_EXT_MASK = 3, 4, 29
RTEXT_FILTER_SKIP_STATS = 8
IFA_ADDRESS, IFA_LOCAL, IFA_LABEL = 1, 2, 3
FLAGS = (
    *("up", "broadcast", "debug", "loopback", "pointopoint", "notrailers", "running", "noarp", "promisc", "allmulti"),
    *("master", "slave", "multicast", "portsel", "automedia", "dynamic"),
)
"""Of IFF_*, bit by bit (netdevice(7))."""
SIOCETHTOOL = 0x8946
ETHTOOL_GSET, SETTINGS_SIZE = 1, 44
ETHTOOL_GDRVINFO, DRIVER_INFO_SIZE = 3, 196
SPEED_UNKNOWN = (0, 0xFFFF, 0xFFFFFFFF)
"""Older drivers fill the lower half alone."""
NO_BUS = frozenset({"", "N/A", "tun", "tap"})
"""What drivers of virtual interfaces give for a bus address."""

_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")


def collect(deadline: float) -> dict[str, Any]:
    """Returns the JSON form of snapshot.Interfaces.

    Args:
        deadline: on the clock of ``time.monotonic``.

    Raises:
        Unavailable: netlink is refused here, or changes all the time.
    """
    # Counters of traffic, which some drivers ask their device for, are left out.
    mask = netlink.attribute(IFLA_EXT_MASK, netlink.NUMBER.pack(RTEXT_FILTER_SKIP_STATS))
    wanted = [(RTM_GETLINK, _LINK.pack(0, 0, 0, 0, 0) + mask), (RTM_GETADDR, _ADDRESS.pack(0, 0, 0, 0, 0))]
    try:
        links, addresses = netlink.read_tables(wanted, deadline)
    except OSError as error:
        why = error.strerror or error
        raise Unavailable(f"netlink, by which NCCL finds the interfaces, too, gives no answer here: {why}") from error
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        rows = [parse_link(body, asking) for body in links]
    names = {row["index"]: row["name"] for row in rows}
    told = (parse_address(body, names) for body in addresses)
    return {"links": rows, "addresses": [row for row in told if row is not None]}


def parse_link(body: bytes, asking: socket.socket) -> dict[str, Any]:
    """Returns the JSON form of snapshot.Link of a struct ifinfomsg.

    Args:
        body: with its attributes.
        asking: any socket, by which the driver is asked.
    """
    _, _, index, bits, _ = _LINK.unpack_from(body)
    told = netlink.attributes(body[_LINK.size :])
    name = _text(told[IFLA_IFNAME])
    flags = [word for bit, word in enumerate(FLAGS) if bits >> bit & 1]
    return {
        "name": name,
        "index": index,
        "flags": flags,
        "mtu": netlink.NUMBER.unpack(told[IFLA_MTU])[0],
        "speed_mbps": speed(asking, name),
        "kind": "loopback" if "loopback" in flags else kind(*driver_info(asking, name)),
    }


def parse_address(body: bytes, names: dict[int, str]) -> dict[str, Any] | None:
    """Returns the JSON form of snapshot.InterfaceAddress of a struct ifaddrmsg.

    None for other families, and for an interface that came after the links were read.

    Args:
        body: with its attributes.
        names: of the links, by their indexes.
    """
    family, prefix, _, _, index = _ADDRESS.unpack_from(body)
    told = netlink.attributes(body[_ADDRESS.size :])
    # Of a point-to-point link, IFA_ADDRESS is the peer's.
    address = told.get(IFA_LOCAL) or told.get(IFA_ADDRESS)
    if family not in (socket.AF_INET, socket.AF_INET6) or address is None or index not in names:
        return None
    bits = len(address) * 8
    netmask = (1 << bits) - (1 << bits - min(prefix, bits))
    return {
        "interface": _text(told[IFA_LABEL]) if IFA_LABEL in told else names[index],
        "family": "inet" if family == socket.AF_INET else "inet6",
        "address": socket.inet_ntop(family, address),
        "netmask": socket.inet_ntop(family, netmask.to_bytes(len(address), "big")),
        "scope_id": index if family == socket.AF_INET6 and _is_link_local(address) else 0,
    }


def kind(driver: str, bus: str) -> str:
    """snapshot.Link.kind of what the driver tells: physical where it sits on a bus, else what makes it."""
    if bus not in NO_BUS:
        return "physical"
    if "VLAN" in driver:
        return "vlan"  # "802.1Q VLAN Support", net/8021q/vlan_dev.c
    return {"": "virtual", "bonding": "bond"}.get(driver, driver)


def driver_info(asking: socket.socket, name: str) -> tuple[str, str]:
    """Driver and bus address of an interface (struct ethtool_drvinfo); both empty where the kernel has none."""
    try:
        answer = _ask_driver(asking, name, ETHTOOL_GDRVINFO, DRIVER_INFO_SIZE)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENODEV, errno.EPERM):
            return "", ""
        raise
    return _text(answer[4:36]), _text(answer[100:132])


def speed(asking: socket.socket, name: str) -> int | None:
    """Megabits a second of an interface (struct ethtool_cmd); None where its driver does not tell."""
    try:
        answer = _ask_driver(asking, name, ETHTOOL_GSET, SETTINGS_SIZE)
    except OSError:
        return None
    (low,), (high,) = struct.unpack_from("=H", answer, 12), struct.unpack_from("=H", answer, 28)
    told: int = high << 16 | low
    return None if told in SPEED_UNKNOWN else told


def _ask_driver(asking: socket.socket, name: str, command: int, size: int) -> bytes:
    buffer = array.array("B", struct.pack("=I", command) + bytes(size - 4))
    fcntl.ioctl(asking, SIOCETHTOOL, struct.pack("16sP16x", os.fsencode(name), buffer.buffer_info()[0]))
    return buffer.tobytes()


def _is_link_local(address: bytes) -> bool:
    """fe80::/10, and ff02::/16 of multicast (RFC 4291)."""
    first = int.from_bytes(address[:2], "big")
    return first & 0xFFC0 == 0xFE80 or first & 0xFF0F == 0xFF02


def _text(field: bytes) -> str:
    return os.fsdecode(field.partition(b"\0")[0])
