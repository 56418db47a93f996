"""Messages of the kernel's netlink sockets (netlink(7), rtnetlink(7)): their heads, attributes and dumps."""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import Iterator

NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLM_F_DUMP_INTR = 0x10
NLMSG_ERROR, NLMSG_DONE = 2, 3
HEADER = struct.Struct("=IHHII")
NUMBER = struct.Struct("=I")

ATTEMPTS = 8
"""To read a table that changes meanwhile."""

_ATTRIBUTE = struct.Struct("=HH")


class InterruptedDumpError(OSError):
    """The table changed while the kernel told it, so that lines may be missing or come twice."""


def request(kind: int, flags: int, number: int, body: bytes) -> bytes:
    """A message to the kernel, which repeats ``number`` in its answers."""
    return HEADER.pack(HEADER.size + len(body), kind, NLM_F_REQUEST | flags, number, 0) + body


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute of a request, its value a multiple of four bytes."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value


def attributes(rest: bytes) -> dict[int, bytes]:
    """By type, the attributes that a message ends with; the first where a type comes twice."""
    found: dict[int, bytes] = {}
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if length < _ATTRIBUTE.size:
            break
        found.setdefault(kind, rest[_ATTRIBUTE.size : length])
        rest = rest[length + 3 & ~3 :]
    return found


def dump(kernel: socket.socket, kind: int, body: bytes) -> Iterator[bytes]:
    """The bodies of all messages that answer a request for everything.

    Raises:
        InterruptedDumpError: what was told is no state that the table was ever in.
        OSError: the kernel refuses, or does not answer within the socket's time-out.
    """
    kernel.send(request(kind, NLM_F_DUMP, 1, body))
    while True:
        data, at = kernel.recv(1 << 16), 0
        while at + HEADER.size <= len(data):
            length, told, flags, *_ = HEADER.unpack_from(data, at)
            if flags & NLM_F_DUMP_INTR:
                raise InterruptedDumpError("the table changes while it is read")
            answer = data[at + HEADER.size : at + length]
            # The end of a dump that the kernel gave up has an error, too.
            if told == NLMSG_ERROR or (told == NLMSG_DONE and any(answer[:4])):
                raise refusal(answer)
            if told == NLMSG_DONE:
                return
            yield answer
            at += max((length + 3) & ~3, HEADER.size)


def read_tables(wanted: list[tuple[int, bytes]], deadline: float) -> list[list[bytes]]:
    """Dumps routing tables one after the other, each as it was at one moment.

    Args:
        wanted: of each the message that asks for it and its body, as ``RTM_GETLINK``.
        deadline: on the clock of ``time.monotonic``.

    Raises:
        OSError: as for :func:`dump`; a table that changes again and again, too.
    """
    attempts = 0
    while True:
        attempts += 1
        # A socket of its own for each attempt: what is left of an interrupted dump would come first.
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
            try:
                return [list(_until(deadline, kernel, kind, body)) for kind, body in wanted]
            except InterruptedDumpError:
                if attempts == ATTEMPTS:
                    raise


def _until(deadline: float, kernel: socket.socket, kind: int, body: bytes) -> Iterator[bytes]:
    kernel.settimeout(_left(deadline))
    for one in dump(kernel, kind, body):
        yield one
        kernel.settimeout(_left(deadline))


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def refusal(body: bytes) -> OSError:
    """What the body of an NLMSG_ERROR means."""
    code = -struct.unpack_from("=i", body)[0]
    return OSError(code, os.strerror(code))
