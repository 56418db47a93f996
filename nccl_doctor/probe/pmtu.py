"""Whether large packets pass between two addresses, asked without root and without the other side's help.

TCP sends every segment with the DF bit (net.ipv4.ip_no_pmtu_disc=0, ip(7)). Where a link on the way is narrower than
both ends and the router's "fragmentation needed" is lost, the handshake passes and the first full segment vanishes: the
connection stalls for ever. So: connect, send a few full segments, and watch the kernel's count of bytes that the other
kernel has not acknowledged (SIOCOUTQ, tcp(7)); nobody need read them.
"""

from __future__ import annotations

import array
import fcntl
import socket
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

PAYLOAD = bytes(32 * 1024)
"""A few segments of 9,000 bytes, and less than a receive buffer takes unread (net.ipv4.tcp_rmem: 128 KiB)."""

AT_ONCE = 32
STEP_S = 0.01
TCP_MAXSEG = 2  # linux/tcp.h


def try_large(address: str, port: int, deadline_s: float) -> dict[str, Any]:
    """Sends full segments to a listener of ours.

    Args:
        address: IPv4, or IPv6 with its zone where link-local.
        port: of any TCP listener there; it is best one of our own.
        deadline_s: seconds for everything; give it more than a second, the kernel's first retransmission is at 0.2 s.

    Returns:
        ``{"outcome": "passed" | "stalled" | "not-connected" | "reset", "sent": bytes, "unacked": bytes,
        "segment": bytes, "error": errno text or None}``. Only "stalled" is a fault: "reset" means that
        something answered, and "not-connected" is the port mesh's to judge.
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
    if not targets:
        return []
    with ThreadPoolExecutor(min(AT_ONCE, len(targets))) as pool:
        return list(pool.map(lambda target: try_large(target[0], target[1], deadline_s), targets))


def unacked(connection: socket.socket) -> int:
    """Bytes sent or waiting to be sent that the peer's kernel has not acknowledged (SIOCOUTQ is TIOCOUTQ)."""
    count = array.array("i", [0])
    fcntl.ioctl(connection, termios.TIOCOUTQ, count)
    return count[0]


def _result(outcome: str, sent: int, left: int, segment: int, error: str | None) -> dict[str, Any]:
    return {"outcome": outcome, "sent": sent, "unacked": left, "segment": segment, "error": error}
