"""A host's end of the port mesh: listeners that prove they are ours, large packets, and the kernel's routes.

A listener writes its host's own nonce to whoever connects, so that "connected" means "to that host": not to whatever
else listens there, nor to the dialling host itself, which may have the same address on a bridge.

TCP sends every segment with the DF bit (net.ipv4.ip_no_pmtu_disc=0, ip(7)). Where a link on the way is narrower than
both ends and the router's "fragmentation needed" is lost, the handshake passes and the first full segment vanishes: the
connection stalls for ever. So: connect, send a few full segments, and watch the kernel's count of bytes that the other
kernel has not acknowledged (SIOCOUTQ, tcp(7)); nobody need read them.

The kernel's own look-up of a packet shows policy rules, all tables and strict reverse-path filtering; it needs no root.
The listeners have a thread with a selector: asyncio takes 40 ms to import, and three times as much a connection.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import itertools
import selectors
import socket
import struct
import termios
import threading
import time
from typing import Any, Callable

from nccl_doctor.probe import netlink
from nccl_doctor.probe.mesh.dials import dial_all, end_with_reset, endpoints

PATIENCE_S = 60.0
"""How long a listener waits for the other side to hang up; a busy host that looks later is told of a reset."""
PAUSE_S = 0.05  # After an accept that failed: the other side hung up first, or no file is left. The dial tells.
BACKLOG = 1024  # connections that wait to be accepted: of every host of a large cluster at once
CHUNK = 65536  # bytes that are taken at once
ROOM = 1 << 20  # the same of what dialled us, which at full speed (probe/mesh/rate.py) is much


class MeshEnd:
    """The listening sockets of one host, and those who were answered; each of these until it hangs up."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce.encode()
        self._selector = selectors.DefaultSelector()
        self._listening: list[socket.socket] = []
        self._answered: dict[socket.socket, float] = {}
        self._resting: dict[socket.socket, float] = {}
        self._closing = False
        self._room = bytearray(ROOM)
        self._heard, self._wake = socket.socketpair()
        self._selector.register(self._heard, selectors.EVENT_READ, lambda sock: sock.recv(CHUNK))
        self._thread = threading.Thread(target=self._serve, name="mesh", daemon=True)

    def listen(self, sockets: list[dict[str, Any]]) -> dict[str, Any]:
        """Opens a listener for each ``{"address", "port", "step", "tries"}``, once, until :meth:`close`.

        A port that is held is left for the next in direction ``step``; with "mute" the port is held closed.
        """
        ports: list[int | None] = []
        errors: dict[str, str] = {}
        for index, wanted in enumerate(sockets):
            try:
                sock = _bound_near(wanted)
                self._listening.append(sock)
                if not wanted.get("mute"):  # where nobody listens, the kernel refuses every connection
                    sock.setblocking(False)
                    sock.listen(BACKLOG)
                    self._selector.register(sock, selectors.EVENT_READ, self._accept)
                ports.append(int(sock.getsockname()[1]))
            except OSError as error:
                ports.append(None)
                errors[str(index)] = errno.errorcode.get(error.errno or 0, str(error))
        self._thread.start()
        return {"ports": ports, "errors": errors}

    def close(self) -> None:
        """Hangs up on everybody and closes all sockets."""
        self._closing = True
        self._wake.send(b"\0")
        if self._thread.ident is not None:
            self._thread.join()
        for sock in (*self._answered, *self._listening, self._heard, self._wake):
            sock.close()
        self._selector.close()

    def _serve(self) -> None:
        while not self._closing:
            ends = [next(iter(times.values())) for times in (self._answered, self._resting) if times]
            for key, _ in self._selector.select(max(0.0, min(ends) - time.monotonic()) if ends else None):
                act: Callable[[socket.socket], object] = key.data
                act(key.fileobj)  # type: ignore[arg-type]  # a socket: nothing else is registered
            now = time.monotonic()
            for sock in _due(self._answered, now):
                self._hang_up(sock)
            for sock in _due(self._resting, now):
                del self._resting[sock]
                self._selector.register(sock, selectors.EVENT_READ, self._accept)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError:
                self._selector.unregister(listener)
                self._resting[listener] = time.monotonic() + PAUSE_S
                return
            sock.setblocking(False)
            end_with_reset(sock)
            with contextlib.suppress(OSError):  # it hung up: the reader sees that too
                sock.send(self._nonce)
            self._answered[sock] = time.monotonic() + PATIENCE_S
            self._selector.register(sock, selectors.EVENT_READ, self._take)

    def _take(self, sock: socket.socket) -> None:
        try:
            more = sock.recv_into(self._room, 0, socket.MSG_TRUNC)  # the kernel throws it away, uncopied (tcp(7))
        except BlockingIOError:
            return
        except OSError:
            more = 0
        if not more:
            self._hang_up(sock)

    def _hang_up(self, sock: socket.socket) -> None:
        del self._answered[sock]
        self._selector.unregister(sock)
        sock.close()


def _due(times: dict[socket.socket, float], now: float) -> list[socket.socket]:
    """Those whose time has come; they were entered in the order of their times."""
    return [sock for sock, _ in itertools.takewhile(lambda item: item[1] <= now, times.items())]


def dial(targets: list[list[Any]], timeout_s: float) -> dict[str, Any]:
    """Dials as :func:`dial_all`: ``{"connected": count, "failed": its rows that did not, "trips": of the others}``."""
    trips: dict[int, tuple[int, int]] = {}
    results = dial_all(targets, timeout_s, trips)
    failed = [row for row in results if row[2] != "connected"]
    told = [[index, *trip] for index, trip in trips.items()]
    return {"connected": len(results) - len(failed), "failed": failed, "trips": told}


def _bound_near(wanted: dict[str, Any]) -> socket.socket:
    """A bound socket on the wanted port, or on the nearest free one that the request allows."""
    port = wanted["port"]
    for left in range(wanted["tries"], 0, -1):
        try:
            return _bound(wanted["address"], port)
        except OSError as error:
            if left == 1 or error.errno != errno.EADDRINUSE:
                raise
        port += wanted["step"]
    raise ValueError("no tries were allowed")


def _bound(address: str, port: int) -> socket.socket:
    """A socket bound to an address, or as torch's TCPStore: to both families, or where that fails, IPv4 alone."""
    if address:
        ((family, place),) = endpoints(address, port)
        return _bound_to(family, place)
    try:
        return _bound_to(socket.AF_INET6, ("::", port))
    except OSError:  # without IPv6, or somebody listens on one of its addresses, as ``ssh -L`` does on [::1]
        return _bound_to(socket.AF_INET, ("", port))


def _bound_to(family: int, place: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(place)
    except OSError:
        sock.close()
        raise
    return sock


PAYLOAD = bytes(32 * 1024)
"""A few segments of 9,000 bytes, and less than a receive buffer takes unread (net.ipv4.tcp_rmem: 128 KiB)."""

AT_ONCE = 32
STEP_S = 0.01
TCP_MAXSEG = 2  # linux/tcp.h


def try_large(address: str, port: int, deadline_s: float) -> dict[str, Any]:
    """Sends full segments to a listener, best one of ours, in more than a second (the kernel sends again at 0.2 s).

    Only "stalled" is a fault: "reset" means that something answered, and "not-connected" is the port mesh's to judge.
    """
    deadline = time.monotonic() + deadline_s
    try:
        connection = socket.create_connection((address, port), timeout=deadline_s)
    except OSError as error:
        return _result("not-connected", 0, 0, 0, str(error))
    with connection:
        connection.setblocking(False)
        try:
            sent = connection.send(PAYLOAD)
            left = unacked(connection)
            while left and time.monotonic() < deadline:
                time.sleep(STEP_S)
                left = unacked(connection)
            error_number = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            segment = connection.getsockopt(socket.IPPROTO_TCP, TCP_MAXSEG)
        except OSError as error:
            return _result("reset", 0, 0, 0, str(error))
        if error_number:
            return _result("reset", sent, left, segment, str(OSError(error_number, "SO_ERROR")))
        return _result("stalled" if left else "passed", sent, left, segment, None)


def try_all(targets: list[tuple[str, int]], deadline_s: float) -> list[dict[str, Any]]:
    """:func:`try_large` for every target, side by side; in their order."""
    results: list[dict[str, Any]] = [{} for _ in targets]

    def work(place: int) -> None:
        results[place] = try_large(*targets[place], deadline_s)

    for first in range(0, len(targets), AT_ONCE):
        some = range(first, min(first + AT_ONCE, len(targets)))
        threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in some]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def unacked(connection: socket.socket) -> int:
    """Bytes sent or waiting to be sent that the peer's kernel has not acknowledged (SIOCOUTQ is TIOCOUTQ)."""
    count = array.array("i", [0])
    fcntl.ioctl(connection, termios.TIOCOUTQ, count)
    return count[0]


def _result(outcome: str, sent: int, left: int, segment: int, error: str | None) -> dict[str, Any]:
    return {"outcome": outcome, "sent": sent, "unacked": left, "segment": segment, "error": error}


RTM_GETROUTE = 26
RTM_F_CLONED, RTM_F_LOOKUP_TABLE = 0x200, 0x1000
RTA_DST, RTA_SRC, RTA_IIF, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_TABLE = 1, 2, 3, 4, 5, 6, 7, 15
TIMEOUT_S = 2.0
REFUSING = {6: ("blackhole", "EINVAL"), 7: ("unreachable", "EHOSTUNREACH"), 8: ("prohibit", "EACCES")}
"""Route types of linux/rtnetlink.h, and the error of a packet that meets one."""

MOST_ROUTES = 20000
"""Of all tables, that are read to name the one that refuses; a host with more, a router, is not asked."""

_ROUTE = struct.Struct("=BBBBBBBBI")


def look_up(wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """snapshot.Way of each ``{"to", "source" or None, "iif" or None}``; of one refused with the route that does it."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(TIMEOUT_S)
        kernel.bind((0, 0))
        ways = [_way(kernel, number, packet) for number, packet in enumerate(wanted, 1)]
    refused = [way for way in ways if way["iif"] is None and way["error"] in {error for _, error in REFUSING.values()}]
    for family in {_family(way["to"]) for way in refused}:
        with contextlib.suppress(OSError):  # then nobody can name the route
            routes = _routes(family)
            for way in refused:
                if _family(way["to"]) == family:
                    way["refusal"] = find_refusal(routes, way["to"], way["error"])
    return ways


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _routes(family: int) -> list[tuple[int, bytes, int, int, int]]:
    """Table, destination, its bits, metric and type of every route; none where there are too many."""
    found: list[tuple[int, bytes, int, int, int]] = []
    deadline = time.monotonic() + TIMEOUT_S
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(TIMEOUT_S)
        for body in netlink.dump(kernel, RTM_GETROUTE, _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)):
            if len(found) == MOST_ROUTES or time.monotonic() > deadline:
                return []
            _, bits, of_source, tos, table, _, _, kind, flags = _ROUTE.unpack_from(body)
            if not (of_source or tos or flags & RTM_F_CLONED):
                told = netlink.attributes(body[_ROUTE.size :])
                number = netlink.NUMBER.unpack(told[RTA_TABLE])[0] if RTA_TABLE in told else table
                metric = netlink.NUMBER.unpack(told[RTA_PRIORITY])[0] if RTA_PRIORITY in told else 0
                found.append((number, told.get(RTA_DST, b""), bits, metric, kind))
    return found


def find_refusal(routes: list[tuple[int, bytes, int, int, int]], to: str, error: str) -> dict[str, Any] | None:
    """snapshot.Refusal: the route that answers so, if it is the best of its table for the address, and of one alone."""
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
    told: dict[str, Any] = {**packet, "dev": None, "gateway": None, "prefers": None, "table": None, "error": None}
    try:
        kernel.send(request(number, packet["to"], packet["source"], packet["iif"]))
        return {**told, **parse(kernel.recv(1 << 16))}
    except OSError as error:
        return {**told, "error": errno.errorcode.get(error.errno or 0, str(error))}


def request(number: int, to: str, source: str | None, iif: str | None) -> bytes:
    """The message that asks for one way; OSError where an interface or address is none."""
    family = _family(to)
    bits = 128 if family == socket.AF_INET6 else 32
    body = _ROUTE.pack(family, bits, bits if source else 0, 0, 0, 0, 0, 0, RTM_F_LOOKUP_TABLE)
    body += netlink.attribute(RTA_DST, socket.inet_pton(family, to))
    if source is not None:
        body += netlink.attribute(RTA_SRC, socket.inet_pton(family, source))
    if iif is not None:
        body += netlink.attribute(RTA_IIF, netlink.NUMBER.pack(socket.if_nametoindex(iif)))
    return netlink.request(RTM_GETROUTE, 0, number, body)


def parse(message: bytes) -> dict[str, Any]:
    """The way in an answer, whose addresses are text; the errno's name where there is none."""
    _, kind, *_ = netlink.HEADER.unpack_from(message)
    body = message[netlink.HEADER.size :]
    if kind == netlink.NLMSG_ERROR:
        raise netlink.refusal(body)
    family, found = body[0], netlink.attributes(body[_ROUTE.size :])
    gateway, source = found.get(RTA_GATEWAY), found.get(RTA_PREFSRC)
    return {
        "dev": socket.if_indextoname(netlink.NUMBER.unpack(found[RTA_OIF])[0]) if RTA_OIF in found else None,
        "gateway": socket.inet_ntop(family, gateway) if gateway else None,
        "prefers": socket.inet_ntop(family, source) if source else None,
        "table": netlink.NUMBER.unpack(found[RTA_TABLE])[0] if RTA_TABLE in found else None,
    }
