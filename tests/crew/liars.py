"""A probe that answers whatever a test wants, well or badly."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from typing import Any

from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.model.cluster import Node
from nccl_doctor.transport.process import LocalTransport, ProcessChannel
from tests.collect.nodes import node

HELLO = {"hello": {"python": "3.11.7", "machine": "x86_64", "pid": 1}}


Say = Callable[[dict[str, Any]], list[bytes | dict[str, Any]]]


class Liar:
    """A channel and its transport: answers each request with the lines that ``say`` gives; objects are framed."""

    def __init__(self, say: Say, hello: Any = HELLO, before: tuple[bytes, ...] = ()) -> None:
        self.closed = False
        self._say, self._hello = say, hello
        self._lines: list[bytes] = list(before)
        self._nonce = b""
        self._greeted = False

    def open(self, _node: Node, command: str, _deadline: float, _latest: float = math.inf) -> Liar:
        self._nonce = re.findall(r"'([0-9a-f]{32})'", command)[0][::-1].encode()
        self._lines.append(self.framed({}))  # that it reads
        return self

    def connect_timeout(self, _node: Node) -> None:
        """As without any configuration."""

    def send(self, data: bytes, _deadline: float) -> None:
        if not data.startswith(b"{"):  # the probe itself, before its header
            return
        told = self._say(json.loads(data)) if self._greeted else [self._hello]
        self._greeted = True
        self._lines += [line if isinstance(line, bytes) else self.framed(line) for line in told]

    def framed(self, message: Any) -> bytes:
        return self._nonce + b" " + json.dumps(message).encode()

    def read_line(self, _deadline: float) -> bytes | None:
        if not self._lines:
            raise TimeoutError
        return self._lines.pop(0).replace(b"NONCE", self._nonce)

    def pulse(self) -> None:
        """It needs none."""

    def stderr_tail(self) -> str:
        return ""

    def exit_status(self, _deadline: float) -> int | None:
        return None

    def close(self) -> None:
        self.closed = True


def opened(liar: Liar) -> ProbeSession:
    return ProbeSession.open(liar, node(), time.monotonic() + 5, 30)


def lying(*said: bytes | dict[str, Any]) -> ProbeSession:
    return opened(Liar(lambda _request: list(said)))


Bend = Callable[[str, dict[str, Any]], dict[str, Any]]
"""By the request's name, the probe's answer, and what comes in its place."""


class Bending(LocalTransport):
    """Real probes on this machine; by host, how answers are changed on their way."""

    def __init__(self, bends: dict[str, Bend]) -> None:
        self._bends = bends

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> ProcessChannel:
        channel = super().open(node, command, deadline, latest)
        if node.name not in self._bends:
            return channel
        nonce = re.findall(r"'([0-9a-f]{32})'", command)[0][::-1].encode()
        asked: dict[int, str] = {}
        send, read_line, changed = channel.send, channel.read_line, self._bends[node.name]

        def noted(data: bytes, deadline: float) -> None:
            if data.startswith(b'{"id"'):
                request = json.loads(data)
                asked[request["id"]] = request.get("what", request["do"])
            send(data, deadline)

        def bent(deadline: float) -> bytes | None:
            line: bytes | None = read_line(deadline)
            before, framed, text = (line or b"").partition(nonce)
            message = json.loads(text) if framed else {}
            if "id" not in message:
                return line
            told = json.dumps(changed(asked[message["id"]], message)).encode()
            return b"%b%b %b" % (before, nonce, told)

        there: Any = channel
        there.send, there.read_line = noted, bent
        return channel
