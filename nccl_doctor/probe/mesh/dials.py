"""Concurrent connection attempts from one host to its targets in the port mesh test, each with its own time limit."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import selectors
import socket
import struct
import time
from typing import Any, Callable, Tuple, Union

from nccl_doctor.probe.tools import side_by_side

AT_ONCE = 256  # concurrent dials of one host: below the usual 1,024 open files, above what a round trip needs
OUTCOMES = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timed-out",
    errno.EHOSTUNREACH: "no-route",
    errno.ENETUNREACH: "unreachable",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.EADDRNOTAVAIL: "no-source-address",
}
UNSENT = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENETUNREACH)
"""Errors of a host without IPv6, without a source address or port, and without a route, in ascending order of weight.

If a host name has several addresses, any other error indicates the cause better than these errors.
"""
TIMED_OUT = ("timed-out", "ETIMEDOUT")
FULL = ("failed", "EMFILE")  # no more files can be opened now: those that dial us take some, too
FULL_S = 0.05
SPARE = 4  # files that a resolver may need at once; without any it reports that the name does not exist
SILENT = ("timed-out", "SILENT")  # something accepted the connection, and was silent even when spoken to
WORD = b"nccl-doctor\n"
"""Data that is sent to a silent listener.

Some proxies connect to their target only after the client has sent data.
"""

OutcomeAndReason = Tuple[str, Union[str, None]]  # as in snapshot.Dial, and the message of the kernel or the resolver
# the same, the seconds that the dial took, and its own port
EndedDial = Tuple[str, Union[str, None], Union[float, None], Union[int, None]]
Key = Tuple[int, int]  # a target's index, and a port
SocketAddress = Tuple[int, Any]  # an address family, and an address as its sockets expect it
Beside = Tuple[int, Callable[[], None]]  # a file, and a function to call when it is readable, and now and then


def end_with_reset(sock: socket.socket) -> None:
    """Configure a socket so that close(2) resets the connection and leaves no TIME_WAIT on a tested port."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Dial:
    """An attempt to connect to the addresses of a host in turn until a connection succeeds, as in torch's TCPStore."""

    def __init__(self, places: list[SocketAddress], nonce: bytes, interface: str = "") -> None:
        self._places, self._nonce, self._interface = list(places), nonce, interface
        self._spoken = False
        self._error: OSError | None = None
        self.began = 0.0
        self.source_port: int | None = None
        # set once its nonce was received: its round trip, and its retransmissions
        self.trip: Tuple[int, int] | None = None
        self.sock: socket.socket | None = None

    def start(self) -> OutcomeAndReason | None:
        """Connect to the next address. Return the outcome, or None while the connection attempt is pending.

        If the outcome is :data:`FULL`, the method can be called again.
        """
        self.began = self.began or time.monotonic()
        self._spoken = False
        try:
            self.sock = socket.socket(self._places[0][0], socket.SOCK_STREAM)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                return FULL
            self._places.pop(0)
            return self._failed(error)
        _, place = self._places.pop(0)
        try:
            self.sock.setblocking(False)
            end_with_reset(self.sock)
            if self._interface:  # allowed for all users since Linux 5.7
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(self._interface))
            number = self.sock.connect_ex(place)
            self.source_port = self.sock.getsockname()[1] or None
        except OSError as error:
            return self._failed(error)
        return None if number in (0, errno.EINPROGRESS) else self._failed(OSError(number, os.strerror(number)))

    def heard(self) -> OutcomeAndReason | None:
        """Receive the peer's first bytes and return the outcome, or None if no data has arrived yet."""
        assert self.sock is not None
        try:
            data = self.sock.recv(len(self._nonce))
        except BlockingIOError:
            # only SO_ERROR reports an ICMP error that arrived while the kernel was busy with the socket
            number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            return self._failed(OSError(number, os.strerror(number))) if number else None
        except OSError as error:
            return self._failed(error)
        if data != self._nonce:
            return "stranger", None
        if self._spoken:
            return "intercepted", None
        info = tcp_info(self.sock)
        self.trip = info["rtt"], info["total_retrans"]
        return "connected", None

    def late(self) -> OutcomeAndReason | None:
        """Return the outcome of an attempt that has timed out.

        If the peer is connected but has sent nothing, send data once and return None. If the result is None, the caller
        restarts the attempt's time limit.
        """
        try:
            assert self.sock is not None
            self.sock.getpeername()
        except OSError:
            return TIMED_OUT
        if self._spoken:
            return SILENT
        self._spoken = True
        with contextlib.suppress(OSError):  # the peer closed the connection, which is noticed elsewhere
            self.sock.send(WORD)
        return None

    def end(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def _failed(self, error: OSError) -> OutcomeAndReason | None:
        self.end()
        self._error = max(error, self._error or error, key=_weight)  # of equals, the later one
        if self._places:
            return self.start()
        number = self._error.errno or 0
        return OUTCOMES.get(number, "failed"), errno.errorcode.get(number, str(self._error))


def _weight(error: OSError) -> int:
    return UNSENT.index(error.errno) if error.errno in UNSENT else len(UNSENT)


_TCP_INFO = 11
_PLACES = {  # linux/tcp.h
    "rtt": ("=I", 68),
    "total_retrans": ("=I", 100),
    "bytes_acked": ("=Q", 120),
    "segments": ("=I", 156),
    "rwnd_limited": ("=Q", 176),
}


def tcp_info(sock: socket.socket) -> dict[str, int]:
    """Return fields of the kernel's ``struct tcp_info``. Fields that are missing in older kernels are 0."""
    data = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256)
    return {
        name: struct.unpack_from(form, data, place)[0] if place + struct.calcsize(form) <= len(data) else 0
        for name, (form, place) in _PLACES.items()
    }


def dial_all(
    targets: list[list[Any]],
    timeout_s: float,
    trips: dict[int, tuple[int, int]] | None = None,
    beside: Beside | None = None,
) -> list[list[Any]]:
    """Connect to each target ``[address, ports, nonce]`` and return a row for each port.

    A row is ``[index, port, outcome, error, seconds, source port]``.

    The seconds and the source port are None if the address can't be resolved. The optional fourth element of a target
    is the network interface to send from. The shortest round-trip time in µs and the number of retransmitted packets
    are stored in ``trips`` under the index of the target. The function in ``beside`` is called repeatedly until all
    connection attempts have ended.
    """
    places = resolved({target[0] for target in targets}, timeout_s)
    results: dict[Key, EndedDial] = {}
    waiting: list[tuple[Key, Dial]] = []
    for index, (address, ports, nonce, *interface) in enumerate(targets):
        resolution = places[address]
        for port in ports:
            if isinstance(resolution, tuple):
                results[index, port] = (*resolution, None, None)
            else:
                at_port = [(family, (place[0], port, *place[2:])) for family, place in resolution]
                waiting.append(((index, port), Dial(at_port, nonce.encode(), *interface)))
    dials = list(waiting)
    results.update(Round(timeout_s, beside).run(waiting))
    for (index, _), dial in dials if trips is not None else ():
        if dial.trip is not None and trips is not None:
            shortest, again = trips.get(index, (dial.trip[0], 0))
            trips[index] = min(shortest, dial.trip[0]), again + dial.trip[1]
    return [[index, port, *results[index, port]] for index, target in enumerate(targets) for port in target[1]]


def _selector() -> selectors.BaseSelector:
    """Return an epoll selector.

    If no file descriptor is left, return a selector based on poll(2), which does not need a file descriptor.
    """
    try:
        return selectors.EpollSelector()
    except OSError:
        return selectors.PollSelector()


class Round:
    """A set of concurrent connection attempts.

    During the attempts, the function in ``beside`` is called repeatedly in the same thread.
    """

    def __init__(self, timeout_s: float, beside: Beside | None = None) -> None:
        self._timeout_s, self._beside = timeout_s, beside
        self._selector = _selector()
        self._flying: dict[Key, tuple[float, Dial]] = {}
        self._results: dict[Key, EndedDial] = {}
        self._waiting: list[tuple[Key, Dial]] = []
        self._full_since: float | None = None

    def run(self, waiting: list[tuple[Key, Dial]]) -> dict[Key, EndedDial]:
        self._waiting, at_once = waiting[::-1], min(AT_ONCE, _room())
        with self._selector:
            if self._beside is not None:
                self._selector.register(self._beside[0], selectors.EVENT_READ)
            while self._waiting or self._flying:
                while self._waiting and len(self._flying) < at_once and self._begin(*self._waiting.pop()):
                    pass
                now = time.monotonic()
                first, _ = next(iter(self._flying.values()), (now + FULL_S, None))
                often = FULL_S if self._waiting or self._beside else first
                for ready, _ in self._selector.select(max(0.0, min(first - now, often))):
                    if ready.data is not None:
                        self._selector.unregister(ready.fileobj)
                        key, dial = ready.data
                        self._go_on(key, dial, dial.heard())
                if self._beside is not None:
                    self._beside[1]()
                self._end_late(time.monotonic())
        return self._results

    def _begin(self, key: Key, dial: Dial) -> bool:
        """Start a connection attempt. Return False if the attempt has to wait for a free file descriptor."""
        self._flying[key] = time.monotonic() + self._timeout_s, dial
        outcome = dial.start()
        if outcome != FULL:
            self._full_since = None
        self._go_on(key, dial, outcome)
        return self._waiting[-1:] != [(key, dial)]

    def _go_on(self, key: Key, dial: Dial, outcome: OutcomeAndReason | None) -> None:
        if outcome is None and dial.sock is not None:
            self._selector.register(dial.sock, selectors.EVENT_READ, (key, dial))
            return
        dial.end()
        del self._flying[key]
        now = time.monotonic()
        if outcome == FULL:  # all wait for a file together, since the first found none
            self._full_since = self._full_since or now
            if now < self._full_since + self._timeout_s:
                self._waiting.append((key, dial))
                return
        self._results[key] = (*(outcome or TIMED_OUT), round(now - dial.began, 4), dial.source_port)

    def _end_late(self, now: float) -> None:
        """End the connection attempts that have timed out.

        All attempts have the same time limit and are stored in the order in which they started.
        """
        late = list(itertools.takewhile(lambda item: item[1][0] <= now, self._flying.items()))
        for key, (_, dial) in late:
            outcome = dial.late()
            if outcome is None:
                del self._flying[key]  # at the end of the queue
                self._flying[key] = now + self._timeout_s, dial
                continue
            if dial.sock is not None:
                self._selector.unregister(dial.sock)
            self._go_on(key, dial, outcome)


def _room() -> int:
    """Return half of the number of free file descriptors.

    Half of the free file descriptors are reserved for incoming connections.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return AT_ONCE
    try:
        return max(1, (soft - len(os.listdir("/proc/self/fd"))) // 2)
    except OSError:  # not a single file left
        return 1


def resolved(addresses: set[str], timeout_s: float) -> dict[str, list[SocketAddress] | OutcomeAndReason]:
    """Return the socket addresses of each host name or IP address, with port 0. Host names are resolved in parallel."""
    results: dict[str, list[SocketAddress] | OutcomeAndReason] = {}
    names = []
    for address in addresses:
        try:
            results[address] = endpoints(address, 0)
        except (socket.gaierror, UnicodeError):
            names.append(address)
    deadline = time.monotonic() + timeout_s
    answers = side_by_side(lambda name: _look_up(name, deadline), names, deadline)
    late = TIMED_OUT if len(answers) == len(names) or _may_open(SPARE) else FULL
    return {**results, **dict.fromkeys(names, late), **answers}


def _look_up(name: str, deadline: float) -> list[SocketAddress] | OutcomeAndReason:
    """Return the socket addresses of a host name, or the outcome if the lookup failed.

    A failed lookup is reported only if file descriptors were free before and after the lookup.
    """
    while True:
        spare = _may_open(SPARE)
        try:
            return endpoints(name, 0, flags=0)
        except (OSError, UnicodeError) as error:
            if spare and _may_open(SPARE):
                return "failed", getattr(error, "strerror", None) or str(error)
        if time.monotonic() >= deadline:
            return FULL
        time.sleep(FULL_S)


def _may_open(count: int) -> bool:
    with contextlib.ExitStack() as opened:
        try:
            for _ in range(count):
                opened.callback(os.close, os.dup(0))
        except OSError:
            return False
    return True


def endpoints(address: str, port: int, flags: int = socket.AI_NUMERICHOST) -> list[SocketAddress]:
    """Return a list of pairs (address family, socket address) for an IP address or host name.

    If ``address`` is a host name, ``flags`` must be 0.
    """
    # bytes, as torch passes them: Python's own IDNA is a module that may have to be opened
    answers = socket.getaddrinfo(address.encode(), port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, place) for family, _type, _protocol, _name, place in answers]
