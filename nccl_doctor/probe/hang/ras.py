"""NCCL's RAS service of a job: asked as ncclras asks it, and handed on as it answered.

The protocol (src/ras/client_support.cc, NCCL 2.24 and later): lines over TCP; "CLIENT PROTOCOL 2" is answered with
"SERVER PROTOCOL n", "TIMEOUT s" and "SET FORMAT json" with "OK", and "VERBOSE STATUS" with a report, after which the
server closes. Lost peers stand in the text alone, so both forms are asked for.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from nccl_doctor.probe.tools import Unavailable

PORT = 28028
LOCALHOST = "localhost"
COLLECT_S = 5
MOST_BYTES = 8 << 20


def address(told: dict[str, str]) -> tuple[str, int] | None:
    """Where a job's service listens, by its variables; None where it is switched off."""
    if told.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        return None
    named = told.get("NCCL_RAS_ADDR", "").strip()
    host, _, port = named.rpartition(":")
    if named and port.isdigit() and 0 < int(port) < 65536:
        return host.strip("[]") or LOCALHOST, int(port)
    return LOCALHOST, PORT


def ask(host: str, port: int, *, json_form: bool, deadline: float) -> dict[str, Any]:
    """One report: ``{"protocol", "form", "text", "whole"}``; ``form`` is what the server agreed to.

    Raises:
        Unavailable: nobody listens, it is no RAS service, or it does not answer in time.
    """
    try:
        with socket.create_connection((host, port), max(0.1, deadline - time.monotonic())) as server:
            return _talk(_Line(server, deadline), json_form)
    except OSError as error:
        raise Unavailable(f"NCCL's RAS at {host}:{port}: {error}") from error


class _Line:
    """A conversation by lines."""

    def __init__(self, server: socket.socket, deadline: float) -> None:
        self._server, self._deadline = server, deadline
        self._data = b""

    def say(self, text: str) -> str:
        """Sends a line and returns the next one that comes."""
        self._server.sendall(text.encode() + b"\n")
        while b"\n" not in self._data:
            if len(self._data) > 4096 or not self._more():
                raise Unavailable(f"NCCL's RAS did not answer to {text!r}")
        line, _, self._data = self._data.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def rest(self, text: str) -> tuple[str, bool]:
        """Sends a line and returns all that comes then, and whether the server ended it."""
        self._server.sendall(text.encode() + b"\n")
        whole = False
        try:
            while len(self._data) < MOST_BYTES:
                if not self._more():
                    whole = True
                    break
        except (socket.timeout, ConnectionError):  # what came is still worth reading
            whole = False
        return self._data.decode("utf-8", "replace"), whole

    def _more(self) -> bool:
        self._server.settimeout(max(0.05, self._deadline - time.monotonic()))
        block = self._server.recv(1 << 16)
        self._data += block
        return bool(block)


def _talk(line: _Line, json_form: bool) -> dict[str, Any]:
    greeting = line.say("CLIENT PROTOCOL 2")
    words = greeting.split()
    if words[:2] != ["SERVER", "PROTOCOL"] or len(words) != 3 or not words[2].isdigit():
        raise Unavailable(f"no NCCL RAS service: it greeted with {greeting[:60]!r}")
    line.say(f"TIMEOUT {COLLECT_S}")  # an old one that knows no time-out says ERROR, and goes on
    form = "json" if json_form and line.say("SET FORMAT json") == "OK" else "text"
    text, whole = line.rest("VERBOSE STATUS")
    return {"protocol": int(words[2]), "form": form, "text": text, "whole": whole}
