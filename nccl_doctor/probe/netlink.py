"""Netlink requests (netlink(7)) for kernel tables and routes (rtnetlink(7)) and for TCP sockets (sock_diag(7)).

Unlike /proc/net/tcp, sock_diag can list the sockets of a single port. Since Linux 6.8, sock_diag also lists sockets
that are bound but neither listening nor connected (TCP_BOUND_INACTIVE in include/net/tcp_states.h). If the kernel has
no sock_diag, as in gVisor, /proc/net/tcp is read instead.

The kernel's route lookup for a packet considers policy rules, all routing tables and strict reverse-path filtering, and
does not require root privileges.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys
import time
from typing import Any, Iterator, NamedTuple

NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLM_F_DUMP_INTR = 0x10
NLMSG_ERROR, NLMSG_DONE = 2, 3
HEADER = struct.Struct("=IHHII")
NUMBER = struct.Struct("=I")
ATTEMPTS = 8  # attempts to read a table that changes meanwhile
_ATTRIBUTE = struct.Struct("=HH")


class InterruptedDumpError(OSError):
    """Error for a dump in which entries might be missing or duplicated because the table changed during the dump."""


def request(kind: int, flags: int, number: int, body: bytes) -> bytes:
    """Return a netlink request.

    ``number`` is the sequence number, which the kernel repeats in its answers.
    """
    return HEADER.pack(HEADER.size + len(body), kind, NLM_F_REQUEST | flags, number, 0) + body


def attribute(kind: int, value: bytes) -> bytes:
    """Return a packed attribute of a netlink request.

    The length of ``value`` must be a multiple of four, because no padding is added.
    """
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value


def attributes(rest: bytes) -> dict[int, bytes]:
    """Return a dictionary of the netlink attributes at the end of a message. The keys are attribute types.

    If a type occurs more than once, the first attribute is used.
    """
    values: dict[int, bytes] = {}
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if length < _ATTRIBUTE.size:
            break
        values.setdefault(kind, rest[_ATTRIBUTE.size : length])
        rest = rest[length + 3 & ~3 :]
    return values


def dump(kernel: socket.socket, kind: int, body: bytes) -> Iterator[bytes]:
    """Yield the bodies of all messages in the answer to a dump request.

    Raise OSError if the kernel rejects the request or the socket times out.
    """
    kernel.send(request(kind, NLM_F_DUMP, 1, body))
    while True:
        data, at = kernel.recv(1 << 16), 0
        while at + HEADER.size <= len(data):
            length, message_type, flags, *_ = HEADER.unpack_from(data, at)
            if flags & NLM_F_DUMP_INTR:
                raise InterruptedDumpError("the table changes while it is read")
            answer = data[at + HEADER.size : at + length]
            # The end of an aborted dump carries an error, too.
            if message_type == NLMSG_ERROR or (message_type == NLMSG_DONE and any(answer[:4])):
                raise refusal(answer)
            if message_type == NLMSG_DONE:
                return
            yield answer
            at += max((length + 3) & ~3, HEADER.size)


def read_tables(wanted: list[tuple[int, bytes]], deadline: float) -> list[list[bytes]]:
    """Return a consistent dump of an rtnetlink table for each request in ``wanted``.

    A request is a pair of request type and request body.
    """
    attempts = 0
    while True:
        attempts += 1
        # A new socket for each attempt: otherwise the rest of an interrupted dump would come first.
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
            try:
                return [list(_until(deadline, kernel, kind, body)) for kind, body in wanted]
            except InterruptedDumpError:
                if attempts == ATTEMPTS:
                    raise


def _until(deadline: float, kernel: socket.socket, kind: int, body: bytes) -> Iterator[bytes]:
    messages: Iterator[bytes | None] = dump(kernel, kind, body)
    message: bytes | None = b""
    while message is not None:
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        kernel.settimeout(left)
        if (message := next(messages, None)) is not None:
            yield message


def refusal(body: bytes) -> OSError:
    code = -struct.unpack_from("=i", body)[0]
    return OSError(code, os.strerror(code))


NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
STATES = (
    *("UNKNOWN", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "BOUND", "CLOSE_WAIT"),
    *("LAST_ACK", "LISTEN", "CLOSING", "SYN_RECV", "BOUND"),
)
"""Names of TCP states, indexed by state number (include/net/tcp_states.h).

In a request, state 13 (TCP_BOUND_INACTIVE) selects sockets that are bound but neither listening nor connected. In an
answer, a socket that is bound but neither listening nor connected has state 7 (TCP_CLOSE).
"""
ALL_STATES = (1 << len(STATES)) - 1
LISTENING = 1 << STATES.index("LISTEN")
TABLE_FIELDS = 10  # of a line of /proc/net/tcp, up to the inode (proc_pid_net(5))
MOST_TABLE = 1 << 23  # enough for fifty thousand sockets; any user can create more in an own namespace
TIMER_RETRANSMIT, TIMER_TIME_WAIT, TIMER_PROBE = 1, 3, 4
INET_DIAG_INFO = 2
_REQUEST = struct.Struct("=BBBBI")
_SOCKET_ID = struct.Struct("!HH16s16s12x")
_MESSAGE = struct.Struct("=BBBB")
_TAIL = struct.Struct("=IIIII")
_BYTES, _BYTES_AT = struct.Struct("=QQ"), 120  # tcpi_bytes_acked and tcpi_bytes_received, since Linux 4.1
_HEARD, _HEARD_AT = struct.Struct("=I"), 52  # tcpi_last_data_recv, in ms


class DiagSocket(NamedTuple):
    """A TCP socket in the kernel's socket tables."""

    state: str
    local_address: str
    local_port: int
    remote_address: str
    remote_port: int
    inode: int  # as in /proc/PID/fd, "socket:[inode]"; 0 if no process has it open any more
    uid: int  # user id of the owner
    expires_s: float | None  # seconds until the kernel forgets it, in TIME_WAIT; else None


class SocketTraffic(NamedTuple):
    """A TCP socket and its traffic. Amounts of data are in bytes."""

    socket: DiagSocket
    unread: int  # received, but not read by the program
    unsent: int  # written by the program, but not acknowledged by the peer
    retransmits: int  # unanswered retransmissions of the oldest unacknowledged data
    # consecutive unanswered window probes, because the peer had no room or this host dropped the packets
    # (tcp_send_probe0). One may be on its way, and the peer's kernel answers two per second (tcp_invalid_ratelimit).
    probes: int
    acked: int | None  # sent and acknowledged so far; None if the kernel does not report it, as for ``received``
    received: int | None
    # seconds since data arrived, or since it was connected; None if the kernel does not report it
    heard_s: float | None = None


def sockets_on(port: int, timeout_s: float = 2.0, states: int = ALL_STATES) -> list[DiagSocket]:
    """Return all TCP sockets on a local port in this network namespace.

    IPv4 sockets precede IPv6 sockets. Port 0 means any port.
    """
    sockets = map(parse_socket, _dump(port, 0, timeout_s, states))
    # The kernel skips the port when it dumps sockets that are only bound (seen on 6.18).
    return [sock for sock in sockets if port in (0, sock.local_port)]


def find_sockets(ports: set[int], *, listeners: bool = False) -> list[DiagSocket]:
    """Return the TCP sockets on the given local ports and, if requested, all listening sockets.

    Raise OSError if the sockets can't be read.
    """
    try:
        sockets = [sock for port in sorted(ports) for sock in sockets_on(port)]
        everywhere = sockets_on(0, states=LISTENING) if listeners else []
    except OSError:
        table = [flow.socket for flow in read_table()]
        return [sock for sock in table if sock.local_port in ports or (listeners and sock.state == "LISTEN")]
    return sockets + [sock for sock in everywhere if sock.local_port not in ports]


def describe_socket(sock: DiagSocket, pid: int | None) -> dict[str, Any]:
    """Return a socket in the JSON form of ``snapshot.TcpSocket``.

    A socket in state "BOUND" is neither listening nor connected.
    """
    return {
        "local_address": sock.local_address,
        "local_port": sock.local_port,
        "remote_address": sock.remote_address if sock.remote_port else None,
        "remote_port": sock.remote_port or None,
        "state": sock.state,
        "pid": pid,
    }


def flows(timeout_s: float = 2.0) -> list[SocketTraffic]:
    """Return the traffic of all TCP sockets in this network namespace that belong to a process."""
    all_flows = map(parse_flow, _dump(0, 1 << INET_DIAG_INFO - 1, timeout_s, ALL_STATES))
    return [flow for flow in all_flows if flow.socket.inode]


def parse_flow(body: bytes) -> SocketTraffic:
    """Parse a ``struct inet_diag_msg`` and the optional ``struct tcp_info`` (include/uapi/linux/tcp.h)."""
    _, _, timer, _ = _MESSAGE.unpack_from(body)
    _, unread, unsent, _, _ = _TAIL.unpack_from(body, _MESSAGE.size + _SOCKET_ID.size)
    info = attributes(body[_MESSAGE.size + _SOCKET_ID.size + _TAIL.size :]).get(INET_DIAG_INFO, b"")
    acked, received = _BYTES.unpack_from(info, _BYTES_AT) if len(info) >= _BYTES_AT + _BYTES.size else (None, None)
    return SocketTraffic(
        socket=parse_socket(body),
        unread=unread,
        unsent=unsent,
        # without these timers nothing is retransmitted, and nobody is probed
        retransmits=info[2] if len(info) > 2 and timer == TIMER_RETRANSMIT else 0,
        probes=info[3] if len(info) > 3 and timer == TIMER_PROBE else 0,
        acked=acked,
        received=received,
        heard_s=_HEARD.unpack_from(info, _HEARD_AT)[0] / 1000 if len(info) >= _HEARD_AT + _HEARD.size else None,
    )


def parse_socket(body: bytes) -> DiagSocket:
    """Parse a ``struct inet_diag_msg`` (include/uapi/linux/inet_diag.h)."""
    family, state, timer, _ = _MESSAGE.unpack_from(body)
    local_port, remote_port, local, remote = _SOCKET_ID.unpack_from(body, _MESSAGE.size)
    expires_ms, _, _, uid, inode = _TAIL.unpack_from(body, _MESSAGE.size + _SOCKET_ID.size)
    size = 4 if family == socket.AF_INET else 16
    return DiagSocket(
        state=STATES[state] if state < len(STATES) else f"state {state}",
        local_address=socket.inet_ntop(family, local[:size]),
        local_port=local_port,
        remote_address=socket.inet_ntop(family, remote[:size]),
        remote_port=remote_port,
        inode=inode,
        uid=uid,
        expires_s=expires_ms / 1000 if timer == TIMER_TIME_WAIT else None,
    )


def ends(sock: DiagSocket) -> tuple[tuple[str, int], tuple[str, int]]:
    return (plain(sock.local_address), sock.local_port), (plain(sock.remote_address), sock.remote_port)


def plain(address: str) -> str:
    """Convert an IPv4-mapped address, such as ::ffff:10.0.0.1, to IPv4."""
    return address[7:] if address.startswith("::ffff:") and "." in address else address


def read_table(folder: str = "/proc/net") -> list[SocketTraffic]:
    """Return the TCP sockets and their queues from the files ``tcp`` and ``tcp6`` in /proc/net or /proc/PID/net.

    Raise OSError if the files can't be read.
    """
    rows = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"{folder}/{name}", encoding="ascii") as table:
                lines = [line.split() for line in table.read(MOST_TABLE).splitlines()[1:]]
        except FileNotFoundError:
            if name == "tcp":
                raise
            continue  # no IPv6
        rows += [_parse_line(fields) for fields in lines if len(fields) >= TABLE_FIELDS]
    return rows


def parse_endpoint(text: str) -> tuple[str, int]:
    """Parse an address and port from /proc/net/tcp or /proc/net/tcp6.

    The files contain addresses as 32-bit words in host byte order.
    """
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)), int(port, 16)


def _parse_line(fields: list[str]) -> SocketTraffic:
    local, remote = map(parse_endpoint, fields[1:3])
    state, (timer, ticks) = int(fields[3], 16), (int(part, 16) for part in fields[5].split(":"))
    unsent, unread = (int(part, 16) for part in fields[4].split(":"))
    retransmits, probes = int(fields[6], 16) * (timer == TIMER_RETRANSMIT), int(fields[8]) * (timer == TIMER_PROBE)
    word = STATES[state] if state < len(STATES) else f"state {state}"
    expires_s = ticks / os.sysconf("SC_CLK_TCK") if timer == TIMER_TIME_WAIT else None
    sock = DiagSocket(word, *local, *remote, inode=int(fields[9]), uid=int(fields[7]), expires_s=expires_s)
    return SocketTraffic(sock, unread, unsent, retransmits, probes, acked=None, received=None)


def _dump(port: int, extensions: int, timeout_s: float, states: int) -> Iterator[bytes]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(timeout_s)
        for family in (socket.AF_INET, socket.AF_INET6):
            wanted = _REQUEST.pack(family, socket.IPPROTO_TCP, extensions, 0, states)
            yield from dump(kernel, SOCK_DIAG_BY_FAMILY, wanted + _SOCKET_ID.pack(port, 0, b"", b""))


RTM_GETROUTE = 26
RTM_F_CLONED, RTM_F_LOOKUP_TABLE = 0x200, 0x1000
RTA_DST, RTA_SRC, RTA_IIF, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_TABLE = 1, 2, 3, 4, 5, 6, 7, 15
RTA_VIA = 18
TIMEOUT_S = 2.0
REFUSING = {6: ("blackhole", "EINVAL"), 7: ("unreachable", "EHOSTUNREACH"), 8: ("prohibit", "EACCES")}
"""Route types (linux/rtnetlink.h) that reject packets, and the error that each type causes."""

MOST_ROUTES = 20000
"""Maximum number of routes that are read to find the route that rejected a packet. If a host has more routes, the
rejecting route is not determined.
"""

_ROUTE = struct.Struct("=BBBBBBBBI")


def look_up_ways(request: dict[str, Any]) -> list[dict[str, Any]]:
    return look_up(request["packets"])


def look_up(wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a ``snapshot.Way`` for each packet in ``wanted``.

    A packet is a dictionary with the keys "to", "source" and "iif". The values of "source" and "iif" can be None. For a
    rejected packet, the ``snapshot.Way`` contains the rejecting route if the route can be determined.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(TIMEOUT_S)
        kernel.bind((0, 0))
        ways = [_way(kernel, number, packet) for number, packet in enumerate(wanted, 1)]
    refused = [way for way in ways if way["iif"] is None and way["error"] in {error for _, error in REFUSING.values()}]
    for family in {_family(way["to"]) for way in refused}:
        with contextlib.suppress(OSError):  # then the route can't be named
            routes = _routes(family)
            for way in refused:
                if _family(way["to"]) == family:
                    way["refusal"] = find_refusal(routes, way["to"], way["error"])
    return ways


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _routes(family: int) -> list[tuple[int, bytes, int, int, int]]:
    """Return the table, destination, prefix length, metric and type of each route.

    The result is empty if there are too many routes or if reading them takes too long.
    """
    routes: list[tuple[int, bytes, int, int, int]] = []
    deadline = time.monotonic() + TIMEOUT_S
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(TIMEOUT_S)
        for body in dump(kernel, RTM_GETROUTE, _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)):
            if len(routes) == MOST_ROUTES or time.monotonic() > deadline:
                return []
            _, bits, of_source, tos, table, _, _, kind, flags = _ROUTE.unpack_from(body)
            if not (of_source or tos or flags & RTM_F_CLONED):
                values = attributes(body[_ROUTE.size :])
                number = NUMBER.unpack(values[RTA_TABLE])[0] if RTA_TABLE in values else table
                metric = NUMBER.unpack(values[RTA_PRIORITY])[0] if RTA_PRIORITY in values else 0
                routes.append((number, values.get(RTA_DST, b""), bits, metric, kind))
    return routes


def find_refusal(routes: list[tuple[int, bytes, int, int, int]], to: str, error: str) -> dict[str, Any] | None:
    """Return a ``snapshot.Refusal`` for the route that rejected a packet to the address ``to`` with ``error``.

    Only the best match in each routing table is considered. Return None unless exactly one of the best matches rejects
    packets with ``error``.
    """
    wanted = socket.inet_pton(_family(to), to)
    size = len(wanted) * 8
    number = int.from_bytes(wanted, "big")
    best: dict[int, tuple[int, int, bytes, int]] = {}
    for table, destination, bits, metric, kind in routes:
        network = int.from_bytes(destination.ljust(len(wanted), b"\0"), "big")
        if (network ^ number) >> (size - bits) == 0:
            rank = (-bits, metric, destination, kind)
            best[table] = min(best.get(table, rank), rank)
    refusing = [
        {
            "kind": REFUSING[kind][0],
            "destination": f"{socket.inet_ntop(_family(to), destination.ljust(len(wanted), bytes(1)))}/{-bits}",
            "table": table,
        }
        for table, (bits, _, destination, kind) in best.items()
        if kind in REFUSING and REFUSING[kind][1] == error
    ]
    return refusing[0] if len(refusing) == 1 else None


def _way(kernel: socket.socket, number: int, packet: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {**packet, "dev": None, "gateway": None, "prefers": None, "table": None, "error": None}
    try:
        kernel.send(way_request(number, packet["to"], packet["source"], packet["iif"]))
        return {**result, **parse_way(kernel.recv(1 << 16))}
    except OSError as error:
        return {**result, "error": errno.errorcode.get(error.errno or 0, str(error))}


def way_request(number: int, to: str, source: str | None, iif: str | None) -> bytes:
    """Return a netlink message that requests one route. Raise OSError if the interface or an address is invalid."""
    family = _family(to)
    bits = 128 if family == socket.AF_INET6 else 32
    body = _ROUTE.pack(family, bits, bits if source else 0, 0, 0, 0, 0, 0, RTM_F_LOOKUP_TABLE)
    body += attribute(RTA_DST, socket.inet_pton(family, to))
    if source is not None:
        body += attribute(RTA_SRC, socket.inet_pton(family, source))
    if iif is not None:
        body += attribute(RTA_IIF, NUMBER.pack(socket.if_nametoindex(iif)))
    return request(RTM_GETROUTE, 0, number, body)


def parse_way(message: bytes) -> dict[str, Any]:
    """Return the route in the kernel's answer, with addresses as strings. Raise OSError if the answer is an error."""
    _, kind, *_ = HEADER.unpack_from(message)
    body = message[HEADER.size :]
    if kind == NLMSG_ERROR:
        raise refusal(body)
    family, values = body[0], attributes(body[_ROUTE.size :])
    gateway, source, of_gateway = values.get(RTA_GATEWAY), values.get(RTA_PREFSRC), family
    if RTA_VIA in values:  # a gateway of the other address family (struct rtvia in linux/rtnetlink.h)
        of_gateway, gateway = int.from_bytes(values[RTA_VIA][:2], sys.byteorder), values[RTA_VIA][2:]
    return {
        "dev": socket.if_indextoname(NUMBER.unpack(values[RTA_OIF])[0]) if RTA_OIF in values else None,
        "gateway": socket.inet_ntop(of_gateway, gateway) if gateway else None,
        "prefers": socket.inet_ntop(family, source) if source else None,
        "table": NUMBER.unpack(values[RTA_TABLE])[0] if RTA_TABLE in values else None,
    }
