"""NCCL's RAS service as its versions speak it (src/ras/client_support.cc), on a port of this machine."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle


@dataclass
class Service:
    """One service.

    Attributes:
        text: its report.
        diagnostics: its comparison of the ranks, from 2.31 on; the others answer that they don't know the command.
        json: its report in JSON; None for a version before 2.28.7, which knows no SET FORMAT.
        protocol: 1 in NCCL 2.24, 2 from 2.26 on.
        greeting: what it says instead of "SERVER PROTOCOL n", as a stranger on the port would.
        slow_s: before each block of the report.
        cut: bytes of the report after which the connection is reset.
        endless: it never stops talking.
    """

    text: str = ""
    json: str | None = None
    diagnostics: str = ""
    protocol: int = 2
    greeting: str | None = None
    slow_s: float = 0
    cut: int | None = None
    endless: bool = False
    heard: list[str] = field(default_factory=list)

    def serve(self, client: socket.socket) -> None:
        form = "text"
        with client, client.makefile("rw", encoding="utf-8", newline="\n") as stream:
            for line in stream:
                self.heard.append(line.strip())
                words = line.split()
                if words[:2] == ["CLIENT", "PROTOCOL"]:
                    stream.write(self.greeting or f"SERVER PROTOCOL {self.protocol}\n")
                elif words[:1] == ["TIMEOUT"]:
                    stream.write("OK\n")
                elif words == ["SET", "FORMAT", "json"]:
                    form = "json" if self.json is not None else "text"
                    stream.write("OK\n" if self.json is not None else "ERROR: Unknown command\n")
                elif words[-1:] == ["STATUS"]:
                    self._report(client, stream, self.json if form == "json" and self.json is not None else self.text)
                    return
                elif words == ["DIAGNOSTICS"] and self.diagnostics:
                    self._report(client, stream, self.diagnostics)
                    return
                else:
                    stream.write("ERROR: Unknown command\n")
                stream.flush()

    def _report(self, client: socket.socket, stream: object, report: str) -> None:
        for at in range(0, len(report[: self.cut]), 512):
            time.sleep(self.slow_s)
            stream.write(report[: self.cut][at : at + 512])  # type: ignore[attr-defined]  # a text stream
            stream.flush()  # type: ignore[attr-defined]
        if self.cut is not None:
            # no time to linger: what follows is a reset (socket(7))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        while self.endless:
            stream.write("never ends\n" * 1000)  # type: ignore[attr-defined]
            stream.flush()  # type: ignore[attr-defined]


@contextmanager
def serving(*services: Service, port: int = 0) -> Iterator[int]:
    """The services take turns on one port, as processes that share it (SO_REUSEPORT) do; the port."""
    turns = cycle(services)
    with socket.create_server(("127.0.0.1", port)) as server:

        def accept() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=_one, args=(next(turns), client), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def _one(service: Service, client: socket.socket) -> None:
    try:
        service.serve(client)
    except OSError:  # the other end had enough
        client.close()
