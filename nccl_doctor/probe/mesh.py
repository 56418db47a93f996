"""One host's end of the port mesh: listeners that prove they are ours, and dials to everybody else's.

A listener writes its host's own nonce to whoever connects, so that "connected" means "to that host": not to whatever
else listens there, nor to the dialling host itself, which may have the same address on a bridge.
"""

from __future__ import annotations

import errno
import socket
from typing import Any

from nccl_doctor.probe.dials import dial_all, endpoints
from nccl_doctor.probe.listeners import Listeners


class MeshEnd:
    """The listeners of one host."""

    def __init__(self, nonce: str) -> None:
        self._listeners = Listeners(nonce.encode())

    def listen(self, sockets: list[dict[str, Any]]) -> dict[str, Any]:
        """Opens listeners, once.

        Args:
            sockets: ``{"address": "" or a local address, "port", "step", "tries"}`` each; a port that is held is left
                for the next one in direction ``step``, up to ``tries`` of them. With "mute" the port is held closed.

        Returns:
            ``{"ports": [the port or None, in the same order], "errors": {index: errno name}}``.
        """
        ports: list[int | None] = []
        errors: dict[str, str] = {}
        for index, wanted in enumerate(sockets):
            try:
                sock = _bound_near(wanted)
                ports.append(self._listeners.hold(sock) if wanted.get("mute") else self._listeners.listen(sock))
            except OSError as error:
                ports.append(None)
                errors[str(index)] = errno.errorcode.get(error.errno or 0, str(error))
        self._listeners.start()
        return {"ports": ports, "errors": errors}

    def close(self) -> None:
        """Closes every listener."""
        self._listeners.close()


def dial(targets: list[list[Any]], timeout_s: float) -> dict[str, Any]:
    """Dials every target at once, as :func:`dial_all`.

    Returns:
        ``{"connected": count, "failed": [[target's index, port, outcome, error, seconds], …]}``.
    """
    results = dial_all(targets, timeout_s)
    failed = [row for row in results if row[2] != "connected"]
    return {"connected": len(results) - len(failed), "failed": failed}


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
        ((family, place),) = endpoints(address, port)
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
