"""Network interfaces, addresses, routes, TCP sockets and host names, from the kernel and the resolver.

Interfaces and addresses are read over netlink (rtnetlink(7)) and have the same order as in the result of getifaddrs(3),
which NCCL calls. All IPv4 addresses precede all IPv6 addresses. Facts from drivers are read with ioctl(2). All facts
describe the probe's network namespace. The files in /sys/class/net are not used, because they might describe another
network namespace, for example in a container that shares the host's /sys.
"""

from __future__ import annotations

import array
import binascii
import errno
import fcntl
import json
import os
import socket
import struct
import time
import zlib
from collections import Counter
from typing import Any

from nccl_doctor.probe import netlink
from nccl_doctor.probe.facts.rdma import PCI_ADDRESS, pci_link
from nccl_doctor.probe.procs import pids_by_inode
from nccl_doctor.probe.tools import Unavailable, encoded, fact, side_by_side

RTM_GETLINK, RTM_GETADDR = 18, 22
IFLA_IFNAME, IFLA_MTU, IFLA_EXT_MASK = 3, 4, 29
RTEXT_FILTER_SKIP_STATS = 8
IFA_ADDRESS, IFA_LOCAL, IFA_LABEL = 1, 2, 3
FLAGS = (  # of IFF_*, bit by bit (netdevice(7))
    *("up", "broadcast", "debug", "loopback", "pointopoint", "notrailers", "running", "noarp", "promisc", "allmulti"),
    *("master", "slave", "multicast", "portsel", "automedia", "dynamic"),
)
SIOCETHTOOL = 0x8946
ETHTOOL_GSET, SETTINGS_SIZE = 1, 44
ETHTOOL_GDRVINFO, DRIVER_INFO_SIZE = 3, 196
SPEED_UNKNOWN = (0, 0xFFFF, 0xFFFFFFFF)  # older drivers only fill the lower half
NO_BUS = frozenset({"", "N/A", "tun", "tap"})  # bus addresses that drivers of virtual interfaces report
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")


@fact("interfaces")
def read_interfaces(deadline: float) -> dict[str, Any]:
    # Traffic counters are left out, since some drivers query their device for them.
    mask = netlink.attribute(IFLA_EXT_MASK, netlink.NUMBER.pack(RTEXT_FILTER_SKIP_STATS))
    wanted = [(RTM_GETLINK, _LINK.pack(0, 0, 0, 0, 0) + mask), (RTM_GETADDR, _ADDRESS.pack(0, 0, 0, 0, 0))]
    try:
        links, addresses = netlink.read_tables(wanted, deadline)
    except OSError as error:
        why = error.strerror or error
        raise Unavailable(f"netlink, with which NCCL lists the interfaces, too, does not answer: {why}") from error
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        rows = [parse_link(body, asking) for body in links]
    names = {row["index"]: row["name"] for row in rows}
    address_rows = (parse_address(body, names) for body in addresses)
    return {"links": rows, "addresses": [row for row in address_rows if row is not None]}


def parse_link(body: bytes, asking: socket.socket) -> dict[str, Any]:
    _, _, index, bits, _ = _LINK.unpack_from(body)
    attributes = netlink.attributes(body[_LINK.size :])
    name = _text(attributes[IFLA_IFNAME])
    flags = [word for bit, word in enumerate(FLAGS) if bits >> bit & 1]
    # by its bus address: /sys/class/net may show another namespace
    driver, bus = driver_info(asking, name)
    return {
        "name": name,
        "index": index,
        "flags": flags,
        "mtu": netlink.NUMBER.unpack(attributes[IFLA_MTU])[0],
        "speed_mbps": speed(asking, name),
        "kind": "loopback" if "loopback" in flags else kind(driver, bus),
        "pci": pci_link(f"/sys/bus/pci/devices/{bus}") if PCI_ADDRESS.fullmatch(bus) else None,
    }


def parse_address(body: bytes, names: dict[int, str]) -> dict[str, Any] | None:
    """Return a ``snapshot.InterfaceAddress``, or None for a non-IP address or an unknown interface."""
    family, prefix, _, _, index = _ADDRESS.unpack_from(body)
    attributes = netlink.attributes(body[_ADDRESS.size :])
    # On a point-to-point link, IFA_ADDRESS is the peer's address.
    address = attributes.get(IFA_LOCAL) or attributes.get(IFA_ADDRESS)
    if family not in (socket.AF_INET, socket.AF_INET6) or address is None or index not in names:
        return None
    bits = len(address) * 8
    netmask = (1 << bits) - (1 << bits - min(prefix, bits))
    first = int.from_bytes(address[:2], "big")
    link_local = first & 0xFFC0 == 0xFE80 or first & 0xFF0F == 0xFF02  # fe80::/10, and ff02::/16 (RFC 4291)
    return {
        "interface": _text(attributes[IFA_LABEL]) if IFA_LABEL in attributes else names[index],
        "family": "inet" if family == socket.AF_INET else "inet6",
        "address": socket.inet_ntop(family, address),
        "netmask": socket.inet_ntop(family, netmask.to_bytes(len(address), "big")),
        "scope_id": index if family == socket.AF_INET6 and link_local else 0,
    }


def kind(driver: str, bus: str) -> str:
    """Return the kind of a ``snapshot.Link``.

    If the driver reports a bus address, the kind is "physical". The kind of a virtual device is its type, such as
    "bond".
    """
    if bus not in NO_BUS:
        return "physical"
    if "VLAN" in driver:
        return "vlan"  # "802.1Q VLAN Support", net/8021q/vlan_dev.c
    return {"": "virtual", "bonding": "bond"}.get(driver, driver)


def driver_info(asking: socket.socket, name: str) -> tuple[str, str]:
    """Return the driver and bus address of a network interface (``struct ethtool_drvinfo``).

    Return two empty strings if the driver does not report its name and bus address.
    """
    try:
        answer = ask_driver(asking, name, ETHTOOL_GDRVINFO, DRIVER_INFO_SIZE)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENODEV, errno.EPERM):
            return "", ""
        raise
    return _text(answer[4:36]), _text(answer[100:132])


def speed(asking: socket.socket, name: str) -> int | None:
    """Return the speed of a network interface in Mb/s (``struct ethtool_cmd``).

    The result is None if the driver does not report the speed.
    """
    try:
        answer = ask_driver(asking, name, ETHTOOL_GSET, SETTINGS_SIZE)
    except OSError:
        return None
    (low,), (high,) = struct.unpack_from("=H", answer, 12), struct.unpack_from("=H", answer, 28)
    mbps: int = high << 16 | low
    return None if mbps in SPEED_UNKNOWN else mbps


def ask_driver(asking: socket.socket, name: str, command: int, size: int) -> bytes:
    """Send an ethtool ioctl request to an interface's driver and return the answer of ``size`` bytes.

    Raise OSError if the request fails.
    """
    buffer = array.array("B", struct.pack("=I", command) + bytes(size - 4))
    fcntl.ioctl(asking, SIOCETHTOOL, struct.pack("16sP16x", os.fsencode(name), buffer.buffer_info()[0]))
    return buffer.tobytes()


def _text(field: bytes) -> str:
    return os.fsdecode(field.partition(b"\0")[0])


RTF_UP, RTF_GATEWAY, RTF_REJECT = 0x1, 0x2, 0x200
RTF_CACHE, RTF_LOCAL, RTF_ANYCAST = 0x01000000, 0x80000000, 0x00100000


@fact("routes")
def read_routes() -> list[dict[str, Any]]:
    """Return a ``snapshot.Route`` for every route that could carry a packet to another host."""
    with open("/proc/net/route") as file:
        routes = parse_inet(file.read())
    try:
        with open("/proc/net/ipv6_route") as file:
            return routes + parse_inet6(file.read())
    except FileNotFoundError:  # a kernel without IPv6
        return routes


def parse_inet(text: str) -> list[dict[str, Any]]:
    """Return the usable routes in the text of /proc/net/route.

    Addresses in the file are hexadecimal numbers in host byte order.
    """
    routes = []
    for line in text.splitlines()[1:]:
        interface, destination, gateway, flag_text, _, _, metric, mask, *_ = line.split()
        flags = int(flag_text, 16)
        if not flags & RTF_UP or flags & RTF_REJECT or interface == "*":  # "*" is a blackhole or throw route
            continue
        length = bin(int(mask, 16)).count("1")
        via = _inet(gateway) if flags & RTF_GATEWAY else None
        routes.append(_route("inet", f"{_inet(destination)}/{length}", via, interface, int(metric)))
    return routes


def parse_inet6(text: str) -> list[dict[str, Any]]:
    """Return the usable routes in /proc/net/ipv6_route, except local, multicast, anycast and loopback routes."""
    routes = []
    for line in text.splitlines():
        destination, length, _, _, gateway, metric, _, _, flag_text, interface = line.split()
        flags = int(flag_text, 16)
        noise = RTF_REJECT | RTF_CACHE | RTF_LOCAL | RTF_ANYCAST
        if not flags & RTF_UP or flags & noise or interface == "lo" or destination.startswith("ff"):
            continue
        via = _inet6(gateway) if flags & RTF_GATEWAY else None
        routes.append(_route("inet6", f"{_inet6(destination)}/{int(length, 16)}", via, interface, int(metric, 16)))
    return routes


def _route(family: str, destination: str, gateway: str | None, interface: str, metric: int) -> dict[str, Any]:
    return {"family": family, "destination": destination, "gateway": gateway, "interface": interface, "metric": metric}


def _inet(text: str) -> str:
    return socket.inet_ntop(socket.AF_INET, struct.pack("=I", int(text, 16)))


def _inet6(text: str) -> str:
    return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(text))


@fact("sockets")
def list_sockets(ports: set[int]) -> list[dict[str, Any]]:
    """Return a ``snapshot.TcpSocket`` for every listening socket and every socket on the given local ports."""
    try:
        sockets = netlink.find_sockets(ports, listeners=True)
    except OSError as error:
        raise Unavailable(f"neither sock_diag nor /proc/net/tcp can be read: {error.strerror or error}") from error
    pids, _ = pids_by_inode({sock.inode for sock in sockets})
    rows = [netlink.describe_socket(sock, min(pids.get(sock.inode, ()), default=None)) for sock in sockets]
    return sorted(rows, key=lambda row: (row["local_port"], row["local_address"], row["remote_port"] or 0))


def unpacked(text: str) -> dict[str, list[Any] | None]:
    """Decode the cluster's host names, which collect/facts/host_facts.py sends as compressed JSON in base64."""
    names: dict[str, list[Any] | None] = json.loads(zlib.decompress(binascii.a2b_base64(text)).decode())
    return names


@fact("resolution")
def resolve_names(names: dict[str, list[Any] | None], deadline: float) -> dict[str, Any]:
    """Return a ``snapshot.Names`` with the host names that this host resolves differently from other hosts.

    ``names`` maps each host name to the result of the other hosts as ``[addresses, error]``, or to None if no result is
    known.
    """
    return deviating(resolve(list(dict.fromkeys([*names, socket.gethostname()])), deadline), names)


def look_up_names(request: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Resolve the host names in a request (see :func:`resolve`)."""
    return resolve(request["names"], time.monotonic() + request["deadline_s"])


def resolve(wanted: list[str], deadline: float) -> dict[str, dict[str, Any]]:
    answers = {name: look_up(name) for name in wanted if is_literal(name)}
    pending = [name for name in wanted if name not in answers]
    answers.update(side_by_side(look_up, pending, deadline))
    late = {"addresses": [], "error": "no answer in time"}
    return {name: answers.get(name, late) for name in wanted}


def deviating(by_name: dict[str, dict[str, Any]], names: dict[str, list[Any] | None]) -> dict[str, Any]:
    """Return a ``snapshot.Names`` with the most common source address and this host's deviating results.

    A result deviates if it differs from the known result of the other hosts, or if its source address is not the most
    common one.
    """
    sources = Counter(answer["source"] for answer in by_name.values() if answer.get("source"))
    source = sources.most_common(1)[0][0] if sources else None
    differences = {}
    for name, answer in by_name.items():
        known = names.get(name) or ([[name], None] if source and is_literal(name) else None)
        usual = not answer["addresses"] or (answer.get("source"), answer.get("source_error")) == (source, None)
        if not usual or [answer["addresses"], answer["error"]] != known:
            differences[name] = answer
    return {"own": differences, "source": source}


def look_up(name: str) -> dict[str, Any]:
    """Resolve a host name or IP address and return a ``snapshot.Resolution``.

    The arguments of getaddrinfo(3) are the same as in torch and Gloo.
    """
    flags = socket.AI_NUMERICHOST if is_literal(name) else 0
    try:
        answers = socket.getaddrinfo(encoded(name), 9, socket.AF_UNSPEC, socket.SOCK_STREAM, 0, flags)
    except socket.gaierror as error:
        return {"addresses": [], "error": error.strerror}
    except UnicodeError:  # the IDNA codec's error for an empty or too long label
        return {"addresses": [], "error": "not a valid host name"}
    source, source_error = source_to(*answers[0][::4])
    addresses = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
    return {"addresses": addresses, "error": None, "source": source, "source_error": source_error}


def source_to(family: int, address: tuple[Any, ...]) -> tuple[str | None, str | None]:
    """Return the source address that the kernel selects for a destination, or the name of the error.

    No packet is sent, because the function only calls connect(2) on a UDP socket.
    """
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return probe.getsockname()[0], None
    except OSError as error:
        return None, errno.errorcode.get(error.errno or 0, str(error))


def is_literal(name: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, name.partition("%")[0])
        except (OSError, ValueError):
            continue
        return True
    return False
