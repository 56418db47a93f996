"""The path MTU test and the listeners of the port mesh test.

A listener sends its host's nonce to every client that connects. The nonce proves that a connection reached the intended
host. An address alone proves nothing, because network bridges on different hosts can have the same address.

By default (net.ipv4.ip_no_pmtu_disc=0, see ip(7)), the kernel sets the DF bit in every TCP packet. If a link on the
path has a smaller MTU than the network interfaces at both ends, a router reports "fragmentation needed" over ICMP. If
the ICMP message is lost, the TCP handshake succeeds, but full-size segments are lost and the connection stalls. The
path MTU test sends a few full-size segments and polls the number of unacknowledged bytes (SIOCOUTQ, tcp(7)). The
receiving kernel acknowledges segments even if no program reads the data.

The listeners run in a thread with a selector. asyncio is not used, because importing asyncio takes 40 ms and asyncio
would triple the time for each connection. While a thread opens connections, the same thread also serves the listeners,
because two threads would cause a thread switch at every system call.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import itertools
import os
import resource
import selectors
import socket
import termios
import threading
import time
from typing import Any, Callable

from nccl_doctor.probe.mesh.dials import Beside, SocketAddress, dial_all, end_with_reset, endpoints, resolved

PATIENCE_S = 60.0
"""Number of seconds that a listener waits for a peer to close a connection."""
PAUSE_S = 0.05  # after a failed accept: the peer closed first, or no file is left. The dial reports it.
BACKLOG = 1024  # connections that wait to be accepted: of every host of a large cluster at once
CHUNK = 65536  # bytes read at once
ROOM = 1 << 20  # the same for incoming connections, which are many at full speed (probe/mesh/rate.py)
MOST_HELD = 600  # concurrent connections, and at most half of the allowed open files; the oldest is closed first
MOST_PER_PEER = 100  # the same from one address; all addresses of this host count as one, since any local user has them
FEW_PER_PEER = 8  # the least number if few files may be open: a host dials several ports of another at once
YOUNG_S = 1.0  # our own connections are done by then: none younger is closed for a stranger's
MOST_PEERS = 4096  # addresses that are counted separately


class MeshEnd:
    """The listening sockets of a host and the connections that the sockets have accepted."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce.encode()
        self._selector = selectors.EpollSelector()
        self._listening: list[socket.socket] = []
        self._answered: dict[socket.socket, float] = {}
        self._held: dict[str, dict[socket.socket, None]] = {}
        self._peer: dict[socket.socket, str] = {}
        self._accepted: dict[tuple[str, int, str], int] = {}
        self._crowds: dict[str, int] = {}
        self._resting: dict[socket.socket, float] = {}
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        files = 2 * MOST_HELD if files == resource.RLIM_INFINITY else files
        self._most = min(MOST_HELD, files // 2)
        self._most_per_peer = min(MOST_PER_PEER, max(FEW_PER_PEER, files // 8))
        self._closing = False
        self._turn = threading.Lock()  # its holder serves the sockets
        self._room = bytearray(ROOM)
        self._heard, self._wake = socket.socketpair()
        self._selector.register(self._heard, selectors.EVENT_READ, lambda sock: sock.recv(CHUNK))
        self._thread = threading.Thread(target=self._serve, name="mesh", daemon=True)

    def listen(self, sockets: list[dict[str, Any]]) -> dict[str, Any]:
        """Open a listener for each ``{"address", "port", "step", "tries"}`` in ``sockets``.

        This method must not be called more than once per object.

        If a port is in use, ``step`` is added to the port number, and at most ``tries`` ports are tried. If a request
        has a "mute" key, the socket is bound but does not listen, so the kernel refuses connections.
        """
        ports: list[int | None] = []
        errors: dict[str, str] = {}
        for index, wanted in enumerate(sockets):
            try:
                sock = _open_near(wanted)
                self._listening.append(sock)
                if not wanted.get("mute"):  # without a listening process, the kernel refuses every connection
                    self._selector.register(sock, selectors.EVENT_READ, self._accept)
                ports.append(int(sock.getsockname()[1]))
            except OSError as error:
                ports.append(None)
                errors[str(index)] = errno.errorcode.get(error.errno or 0, str(error))
        self._thread.start()
        return {"ports": ports, "errors": errors}

    def close(self) -> dict[str, Any]:
        """Close all sockets and return an ``answers.Heard``.

        The result lists all peers that connected and, separately, the peers that opened too many connections.
        """
        self._closing = True
        self._wake.send(b"\0")
        if self._thread.ident is not None:
            self._thread.join()
        for sock in (*self._answered, *self._listening, self._heard, self._wake):
            sock.close()
        self._selector.close()
        accepted = [[*key, count] for key, count in self._accepted.items()]
        return {"accepted": accepted, "crowds": [[peer, count] for peer, count in self._crowds.items()]}

    def dial(self, targets: list[list[Any]], timeout_s: float) -> dict[str, Any]:
        """Connect to the targets with :func:`dial` while serving the listeners."""
        with self._turn:
            return dial(targets, timeout_s, (self._selector.fileno(), self._attend))

    def _serve(self) -> None:
        wait: float | None = None
        while not self._closing:
            self._selector.select(wait)
            with self._turn:
                self._attend()  # may learn that the run is over
                ends = [next(iter(times.values())) for times in (self._answered, self._resting) if times]
                wait = max(0.0, min(ends) - time.monotonic()) if ends else None

    def _attend(self) -> None:
        for key, _ in sorted(self._selector.select(0), key=lambda ready: ready[0].fileobj in self._listening):
            act: Callable[[socket.socket], object] = key.data  # closed ones are handled before new ones
            act(key.fileobj)  # type: ignore[arg-type]  # a socket: nothing else is registered
        now = time.monotonic()
        for sock in _due(self._answered, now):
            self._hang_up(sock)
        for sock in _due(self._resting, now):
            del self._resting[sock]
            self._selector.register(sock, selectors.EVENT_READ, self._accept)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            if self._is_full(self._answered, self._most):
                oldest, end = next(iter(self._answered.items()))
                if time.monotonic() < end - PATIENCE_S + YOUNG_S:
                    self._note_crowd(oldest)
                    self._rest(listener)
                    return
                self._give_way(oldest)
            try:
                sock, peer = listener.accept()
            except BlockingIOError:
                return
            except OSError:
                self._rest(listener)
                return
            sock.setblocking(False)
            end_with_reset(sock)
            with contextlib.suppress(OSError):  # the peer closed: the reader notices, too
                sock.send(self._nonce)
            self._count(sock, _plain(peer[0]))
            self._answered[sock] = time.monotonic() + PATIENCE_S
            self._selector.register(sock, selectors.EVENT_READ, self._take)

    def _take(self, sock: socket.socket) -> None:
        try:
            more = sock.recv_into(self._room, 0, socket.MSG_TRUNC)  # the kernel discards it without copying (tcp(7))
        except BlockingIOError:
            return
        except OSError:
            more = 0
        if not more:
            self._hang_up(sock)

    def _count(self, sock: socket.socket, peer: str) -> None:
        """Record a peer's connection and close the peer's oldest connection if the peer has too many connections."""
        own_address = sock.getsockname()
        local = _plain(own_address[0])
        key = local, int(own_address[1]), peer
        if key in self._accepted or len(self._accepted) < MOST_PEERS:
            self._accepted[key] = self._accepted.get(key, 0) + 1
        source = "" if peer == local or peer.startswith("127.") or peer == "::1" else peer
        if self._is_full(self._held.get(source, {}), self._most_per_peer):
            self._give_way(next(iter(self._held[source])))
        self._held.setdefault(source, {})[sock] = None
        self._peer[sock] = source

    def _is_full(self, crowd: dict[socket.socket, Any], most: int) -> bool:
        """Return whether ``crowd`` has at least ``most`` connections after closed connections have been removed."""
        if len(crowd) >= most:
            for sock in list(crowd):
                self._take(sock)
        return len(crowd) >= most

    def _note_crowd(self, sock: socket.socket) -> None:
        named = self._peer[sock] or _plain(sock.getsockname()[0])
        if named in self._crowds or len(self._crowds) < MOST_PEERS:
            self._crowds[named] = self._crowds.get(named, 0) + 1

    def _give_way(self, sock: socket.socket) -> None:
        self._note_crowd(sock)
        self._hang_up(sock)

    def _rest(self, listener: socket.socket) -> None:
        self._selector.unregister(listener)
        self._resting[listener] = time.monotonic() + PAUSE_S

    def _hang_up(self, sock: socket.socket) -> None:
        del self._answered[sock]
        source = self._peer.pop(sock)
        del self._held[source][sock]
        if not self._held[source]:
            del self._held[source]
        self._selector.unregister(sock)
        sock.close()


def _plain(address: str) -> str:
    """Remove the zone index from an address and convert an IPv4-mapped address (::ffff:…) to IPv4."""
    bare = address.partition("%")[0]
    return bare[7:] if bare.startswith("::ffff:") and "." in bare else bare


def _due(times: dict[socket.socket, float], now: float) -> list[socket.socket]:
    """Return the sockets whose time in ``times`` is not later than ``now``.

    The entries of ``times`` must be in ascending order of time.
    """
    return [sock for sock, _ in itertools.takewhile(lambda item: item[1] <= now, times.items())]


class MeshRequests:
    """A handler of the controller's requests for this host's part of the port mesh test."""

    def __init__(self, _server: object) -> None:
        self._end: MeshEnd | None = None

    def listen(self, request: dict[str, Any]) -> dict[str, Any]:
        self._end = MeshEnd(request["nonce"])
        return self._end.listen(request["sockets"])

    def dial(self, request: dict[str, Any]) -> dict[str, Any]:
        """Connect to the targets while serving the open listeners."""
        return (self._end.dial if self._end else dial)(request["targets"], request["timeout_s"])

    def unlisten(self, _request: dict[str, Any]) -> dict[str, Any] | None:
        """Close the listeners and return an ``answers.Heard``, or None if there are no listeners."""
        end, self._end = self._end, None
        return None if end is None else end.close()


def dial(targets: list[list[Any]], timeout_s: float, beside: Beside | None = None) -> dict[str, Any]:
    """Connect to the targets with :func:`dial_all` and return a summary of the results.

    The keys of the summary are "connected" (number of connections), "failed" (rows of failed attempts) and "trips"
    (round-trip times and retransmissions by target).
    """
    trips: dict[int, tuple[int, int]] = {}
    results = dial_all(targets, timeout_s, trips, beside)
    failed = [row for row in results if row[2] != "connected"]
    trip_rows = [[index, *trip] for index, trip in trips.items()]
    return {"connected": len(results) - len(failed), "failed": failed, "trips": trip_rows}


def _open_near(wanted: dict[str, Any]) -> socket.socket:
    """Return a socket that listens on the requested port or on the first free port that the request allows.

    With SO_REUSEADDR, two sockets can bind the same port while neither of them listens, but only the first listen(2)
    succeeds. If the request has a "mute" key, the socket is bound but does not listen.
    """
    port = wanted["port"]
    for left in range(wanted["tries"], 0, -1):
        sock = None
        try:
            sock = _bound(wanted["address"], port)
            if not wanted.get("mute"):
                sock.setblocking(False)
                sock.listen(BACKLOG)
        except OSError as error:
            if sock is not None:
                sock.close()
            if left == 1 or error.errno != errno.EADDRINUSE:
                raise
        else:
            return sock
        port += wanted["step"]
    raise ValueError("no tries were allowed")


def _bound(address: str, port: int) -> socket.socket:
    """Return a TCP socket that is bound to an address and port.

    If the address is empty, the socket accepts IPv6 and IPv4 connections, like torch's TCPStore. If binding to IPv6
    fails, the socket is bound to IPv4.
    """
    if address:
        ((family, place),) = endpoints(address, port)
        return _bound_to(family, place)
    try:
        return _bound_to(socket.AF_INET6, ("::", port))
    except OSError:  # no IPv6, or another program listens on one of its addresses, as ``ssh -L`` does on [::1]
        return _bound_to(socket.AF_INET, ("", port))


def _bound_to(family: int, place: tuple[Any, ...]) -> socket.socket:
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
"""Data that the path MTU test sends. The data fills more than three 9,000-byte segments but fits into a default receive
buffer (128 KiB, net.ipv4.tcp_rmem).
"""

SEGMENTS = 8  # of a limited size; fewer than Linux sends before the first answer (ten; RFC 6928)
AT_ONCE = 32
LEAST_STEP_S, STEP_S = 0.001, 0.01
TCP_MAXSEG = 2  # linux/tcp.h


class Push:
    """A transfer of full-size segments to a listener.

    The addresses of the listener are tried in turn until a connection is accepted.

    ``result`` is None until the outcome is known. Only the outcome "stalled" indicates a path MTU problem. The outcome
    "reset" means that the peer answered. The cause of the outcome "not-connected" is diagnosed by the port mesh test.
    """

    def __init__(self, places: list[SocketAddress], segment: int | None = None) -> None:
        self._places, self._segment = list(places), segment
        self._sent = 0
        self.sock: socket.socket | None = None
        self.result: dict[str, Any] | None = None
        self._connect("no address")

    def go_on(self) -> bool:
        """Send data if the connection is established, or try the next address if the connection failed.

        Return False while a connection attempt is pending.
        """
        assert self.sock is not None
        number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._connect(os.strerror(number))
            return self.sock is None
        try:
            if self._segment is None:
                self._sent = self.sock.send(PAYLOAD)
            else:  # a packet for each call: a network card, or a switch in software, would get several as one
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sent = sum(self.sock.send(PAYLOAD[: self._segment]) for _ in range(SEGMENTS))
        except OSError as error:
            self._end("reset", str(error))
        return True

    def look(self) -> None:
        if self.sock is None:
            return
        try:
            left = unacked(self.sock)
            number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        except OSError as error:
            self._end("reset", str(error))
            return
        if number or not left:
            self._end("reset" if number else "passed", os.strerror(number) if number else None)

    def end(self) -> None:
        """End the transfer and set the outcome to "stalled" or "not-connected" if the outcome is still unknown."""
        if self.result is None and self.sock is not None and self._sent:
            self.look()
        if self.result is None:
            self._end("stalled" if self._sent else "not-connected", None if self._sent else "timed out")

    def _connect(self, error: str) -> None:
        while self._places:
            family, place = self._places.pop(0)
            if self.sock is not None:
                self.sock.close()
            try:
                self.sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                if self._segment is not None:  # before the connection: both ends send no larger segments (tcp(7))
                    self.sock.setsockopt(socket.IPPROTO_TCP, TCP_MAXSEG, self._segment)
                number = self.sock.connect_ex(place)
            except OSError as fault:
                error = str(fault)
                continue
            if number in (0, errno.EINPROGRESS):
                return
            error = os.strerror(number)
        self._end("not-connected", error)

    def _end(self, outcome: str, error: str | None) -> None:
        left = segment = 0
        if self.sock is not None:
            if outcome in ("passed", "stalled"):
                left = unacked(self.sock)
                segment = self.sock.getsockopt(socket.IPPROTO_TCP, TCP_MAXSEG)
            self.sock.close()
            self.sock = None
        self.result = {"outcome": outcome, "sent": self._sent, "unacked": left, "segment": segment, "error": error}


def try_path_mtu(request: dict[str, Any]) -> list[dict[str, Any]]:
    targets = [(address, port) for address, port in request["targets"]]
    return try_all(targets, request["deadline_s"], request["segment"])


def try_all(targets: list[tuple[str, int]], deadline_s: float, segment: int | None = None) -> list[dict[str, Any]]:
    """Send full-size segments to each target and return one ``answers.PathMtuResult`` per target, in order.

    At most :data:`AT_ONCE` transfers run in parallel. If ``segment`` is given, segments have at most ``segment`` bytes.
    The kernel waits at least 0.2 s before the first retransmission, so ``deadline_s`` should be more than one second.
    """
    by_address = resolved({address for address, _ in targets}, deadline_s)
    results: list[dict[str, Any]] = []
    for first in range(0, len(targets), AT_ONCE):
        pushes = []
        for address, port in targets[first : first + AT_ONCE]:
            places = by_address[address]
            known = [] if isinstance(places, tuple) else places
            pushes.append(Push([(family, (place[0], port, *place[2:])) for family, place in known], segment))
        _push(pushes, time.monotonic() + deadline_s)
        results += [push.result for push in pushes if push.result is not None]
    return results


def _push(pushes: list[Push], deadline: float) -> None:
    sent: list[Push] = []
    step = LEAST_STEP_S
    with selectors.PollSelector() as selector:

        def wait(push: Push) -> None:
            if push.sock is not None:
                selector.register(push.sock, selectors.EVENT_WRITE, push)

        for push in pushes:
            wait(push)
        while (sent or selector.get_map()) and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(min(step, left) if sent else left):
                selector.unregister(key.fileobj)
                push = key.data
                (sent.append if push.go_on() else wait)(push)
            for push in sent:
                push.look()
            sent = [push for push in sent if push.result is None]
            step = min(2 * step, STEP_S) if sent else step
    for push in pushes:
        push.end()


def unacked(connection: socket.socket) -> int:
    """Return the number of sent or queued bytes that the peer's kernel has not acknowledged (SIOCOUTQ)."""
    count = array.array("i", [0])
    fcntl.ioctl(connection, termios.TIOCOUTQ, count)
    return count[0]
