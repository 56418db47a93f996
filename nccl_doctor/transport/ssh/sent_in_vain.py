"""Whether the large packets of a host vanish on their way to us: the host's own kernel knows.

An MTU black hole lets small packets through, so the host hears us and its acknowledgements come, while what it answers
is sent again and again. A host that is merely slow has sent nothing yet, a path that is cut lets no acknowledgement
through, and a connection that a firewall forgot neither. The kernel is asked over a second connection, on which the
host sends small packets only, for we tell it so in our SYN. No time is compared.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable

import paramiko

from nccl_doctor.transport.base import AccessError, remaining
from nccl_doctor.transport.ssh.config import BeyondError
from nccl_doctor.transport.ssh.session import SshSession, ends_at

SMALL_MSS = 1200
"""Bytes of a segment that pass wherever IPv6's smallest MTU (1280; RFC 8200, section 5) does."""

TIMES = 3
"""Retransmissions of one segment in a row, none of them acknowledged; after so many Linux suspects the path itself
(tcp_retries1 in ip-sysctl)."""

_ROW = re.compile(
    r"^ *\d+: [0-9A-F]+:[0-9A-F]{4} (?P<address>[0-9A-F]+):(?P<port>[0-9A-F]{4}) 0[18] "
    r"(?P<queued>[0-9A-F]{8}):[0-9A-F]{8} 01:[0-9A-F]{8} (?P<times>[0-9A-F]{8}) "
)
"""Of /proc/net/tcp (proc(5)), in a state in which the host may send, and with its retransmission timer running."""

_ACKED = slice(120, 128)
"""tcpi_bytes_acked in struct tcp_info (linux/tcp.h), since Linux 4.1."""
_MOST = 64 * 1024


def sent_in_vain(session: SshSession, speak: Callable[[], None], again: Callable[[], SshSession], by: float) -> bool:
    """Whether the host sends us on this session what does not come, while what is small comes.

    Args:
        session: one that waits for an answer.
        speak: says something on it that needs no answer.
        again: another session with the host, on which it sends small packets.
        by: when all this must have ended; what is not known by then is false.
    """
    held = session.connection()
    if held is None or not hasattr(socket, "TCP_INFO"):
        return False
    try:
        ours, before = held.getsockname(), _acknowledged(held)
        speak()
        small = again()
        try:
            with ends_at(by, small):
                rows = _ask(small, f"grep -h ':{ours[1]:04X} 0' /proc/net/tcp /proc/net/tcp6", by)
        finally:
            small.close()
        return any(is_in_vain(row, ours[0], ours[1]) for row in rows) and _acknowledged(held) > before
    except (AccessError, BeyondError, paramiko.SSHException, EOFError, OSError):
        return False  # nothing is proven, and the session's own failure is told


def is_in_vain(row: str, address: str, port: int) -> bool:
    """Whether a row of the host's /proc/net/tcp or tcp6 tells of something sent to us again and again.

    Its addresses are words of 32 bits in the host's byte order, which is little-endian wherever NCCL runs.
    """
    found = _ROW.match(row)
    if found is None:
        return False
    packed = ipaddress.ip_address(address.partition("%")[0]).packed
    words = b"".join(packed[place : place + 4][::-1] for place in range(0, len(packed), 4))
    to_us = found["address"].endswith(words.hex().upper()) and int(found["port"], 16) == port
    return to_us and int(found["queued"], 16) > 0 and int(found["times"], 16) >= TIMES


def _acknowledged(connection: socket.socket) -> int:
    """The bytes of ours that the host's kernel has acknowledged."""
    return int.from_bytes(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.stop)[_ACKED], "little")


def _ask(session: SshSession, command: str, by: float) -> list[str]:
    channel = session.open_session(timeout=remaining(by))
    channel.settimeout(remaining(by))
    channel.exec_command(command)
    said = b""
    while len(said) < _MOST and (chunk := channel.recv(_MOST)):
        said += chunk
    return said.decode(errors="replace").splitlines()
