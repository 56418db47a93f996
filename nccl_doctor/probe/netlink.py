"""Messages of the kernel's netlink sockets (netlink(7), rtnetlink(7)): their heads, attributes and dumps."""

from __future__ import annotations

import os
import socket
import struct
from typing import Iterator

NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
HEADER = struct.Struct("=IHHII")
NUMBER = struct.Struct("=I")

_ATTRIBUTE = struct.Struct("=HH")


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
        OSError: the kernel refuses, or does not answer within the socket's time-out.
    """
    kernel.send(request(kind, NLM_F_DUMP, 1, body))
    while True:
        data, at = kernel.recv(1 << 16), 0
        while at + HEADER.size <= len(data):
            length, told, *_ = HEADER.unpack_from(data, at)
            if told == NLMSG_DONE:
                return
            answer = data[at + HEADER.size : at + length]
            if told == NLMSG_ERROR:
                raise refusal(answer)
            yield answer
            at += max((length + 3) & ~3, HEADER.size)


def refusal(body: bytes) -> OSError:
    """What the body of an NLMSG_ERROR means."""
    code = -struct.unpack_from("=i", body)[0]
    return OSError(code, os.strerror(code))
