"""One host's end of the port mesh: listeners that prove they are ours, and dials to everybody else's.

A listener writes its host's own nonce to whoever connects, so that "connected" means "to that host": not to whatever
else listens there, nor to the dialling host itself, which may have the same address on a bridge.
All dials of a host are one asyncio round.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
import threading
from typing import Any, Coroutine, TypeVar

T = TypeVar("T")

AT_ONCE = 256
"""Dials in flight on one host: below the usual 1,024 open files, above what a round trip needs."""

PATIENCE_S = 60.0
"""How long a listener waits for the other side to hang up; a busy host that looks later is told of a reset."""

PAUSE_S = 0.05
"""After an accept that failed."""

BACKLOG = 1024
"""Connections that wait to be accepted: of every host of a large cluster at once."""

CHUNK = 65536
"""Bytes that a listener takes at once."""

OUTCOMES = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timed-out",
    errno.EHOSTUNREACH: "no-route",
    errno.ENETUNREACH: "unreachable",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.EADDRNOTAVAIL: "no-source-address",
}


class MeshEnd:
    """Listeners and dials of one host, on an event loop in a thread of its own."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce.encode()
        self._loop = asyncio.new_event_loop()
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._answered: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mesh", daemon=True)
        self._thread.start()

    def listen(self, sockets: list[dict[str, Any]]) -> dict[str, Any]:
        """Opens listeners.

        Args:
            sockets: ``{"address": "" or a local address, "port", "step", "tries"}`` each; a port that is held is left
                for the next one in direction ``step``, up to ``tries`` of them.

        Returns:
            ``{"ports": [the port or None, in the same order], "errors": {index: errno name}}``.
        """
        ports: list[int | None] = []
        errors: dict[str, str] = {}
        for index, wanted in enumerate(sockets):
            try:
                ports.append(self._run(self._serve(_bound_near(wanted))))
            except OSError as error:
                ports.append(None)
                errors[str(index)] = errno.errorcode.get(error.errno or 0, str(error))
        return {"ports": ports, "errors": errors}

    def dial(self, targets: list[list[Any]], timeout_s: float) -> dict[str, Any]:
        """Dials every target at once.

        Args:
            targets: ``[address, [port, …], the listener's nonce]`` each.
            timeout_s: seconds for one connection, the nonce included.

        Returns:
            ``{"connected": count, "failed": [[target's index, port, outcome, error], …]}``.
        """
        results = self._run(self._dial_all(targets, timeout_s))
        failed = [row for row in results if row[2] != "connected"]
        return {"connected": len(results) - len(failed), "failed": failed}

    def close(self) -> None:
        """Closes every listener and ends the loop."""
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _close(self) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for sock in self._listeners:
            sock.close()
        for sock in tuple(self._answered):
            self._hang_up(sock)

    async def _serve(self, sock: socket.socket) -> int:
        self._listeners.append(sock)
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._accepting.append(self._loop.create_task(self._accept(sock)))
        return int(sock.getsockname()[1])

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = await self._loop.sock_accept(listener)
            except OSError:
                # The other side hung up first, or no file is left: the dial tells.
                await asyncio.sleep(PAUSE_S)
                continue
            self._answered.add(sock)
            _end_with_reset(sock)
            with contextlib.suppress(OSError):  # it hung up: the reader sees that too
                sock.send(self._nonce)
            # The dialling side ends the connection; what it sends (probe/pmtu.py) is taken.
            self._loop.add_reader(sock, self._drain, sock)
            self._loop.call_later(PATIENCE_S, self._hang_up, sock)

    def _drain(self, sock: socket.socket) -> None:
        try:
            more = sock.recv(CHUNK)
        except OSError:
            more = b""
        if not more:
            self._hang_up(sock)

    def _hang_up(self, sock: socket.socket) -> None:
        if sock in self._answered:
            self._answered.remove(sock)
            self._loop.remove_reader(sock)
            sock.close()

    async def _dial_all(self, targets: list[list[Any]], timeout_s: float) -> list[list[Any]]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(index: int, port: int) -> list[Any]:
            address, _ports, nonce = targets[index]
            async with gate:
                outcome, error = await self._dial(address, port, nonce.encode(), timeout_s)
            return [index, port, outcome, error]

        return await asyncio.gather(
            *(one(index, port) for index, (_, ports, _) in enumerate(targets) for port in ports)
        )

    async def _dial(self, address: str, port: int, nonce: bytes, timeout_s: float) -> tuple[str, str | None]:
        try:
            return await asyncio.wait_for(self._meet(address, port, nonce), timeout_s)
        except (asyncio.TimeoutError, TimeoutError):
            return "timed-out", "ETIMEDOUT"
        except socket.gaierror as error:
            return "failed", str(error.strerror)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, str(error))
            return OUTCOMES.get(error.errno or 0, "failed"), name

    async def _meet(self, address: str, port: int, nonce: bytes) -> tuple[str, str | None]:
        """Connects to a name's first address that takes it, as torch's TCPStore does, and listens for the nonce."""
        try:
            places = _endpoints(address, port)
        except socket.gaierror:
            places = await self._loop.run_in_executor(None, _endpoints, address, port, 0)
        *others, last = places
        for family, place in others:
            with contextlib.suppress(OSError):
                return await self._heard(family, place, nonce)
        return await self._heard(*last, nonce)

    async def _heard(self, family: int, place: Any, nonce: bytes) -> tuple[str, str | None]:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            _end_with_reset(sock)
            await self._loop.sock_connect(sock, place)
            heard = await self._loop.sock_recv(sock, len(nonce))
        return ("connected", None) if heard == nonce else ("stranger", None)


def _endpoints(address: str, port: int, flags: int = socket.AI_NUMERICHOST) -> list[tuple[int, Any]]:
    """Address families, and addresses as their sockets take them; a name takes a resolver, and flags 0."""
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, place) for family, _type, _protocol, _name, place in found]


def _end_with_reset(sock: socket.socket) -> None:
    """Lets close(2) reset the connection, so that no TIME_WAIT stays on a port that was tested."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


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
    """A bound socket: the address given, or as torch's TCPStore: both families, or where that fails, IPv4 alone.

    It fails without IPv6, and where somebody listens on one of its addresses, as ``ssh -L`` does on [::1].
    """
    if address:
        ((family, place),) = _endpoints(address, port)
        return _bound_to(family, place)
    try:
        return _bound_to(socket.AF_INET6, ("::", port))
    except OSError:
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
