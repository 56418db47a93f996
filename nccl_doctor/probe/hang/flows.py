"""A rank's connections, and NCCL's RAS service of its job, asked as ncclras asks it.

Connections of the probe's own network namespace come by sock_diag(7), which counts bytes; of a container's by
/proc/PID/net/tcp, which tells what waits and does not count.

RAS' protocol (src/ras/client_support.cc, NCCL 2.24 and later): lines over TCP; "CLIENT PROTOCOL 2" is answered with
"SERVER PROTOCOL n", "TIMEOUT s" and "SET FORMAT json" with "OK", and "VERBOSE STATUS" with a report, after which the
server closes. Lost peers stand in the text alone, so both forms are asked for.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Iterator

from nccl_doctor.probe import netlink, tools
from nccl_doctor.probe.tools import Unavailable

CONNECTED = ("ESTABLISHED", "FIN_WAIT1", "FIN_WAIT2", "CLOSE_WAIT", "LAST_ACK", "CLOSING", "SYN_SENT")
MOST = 2048


def by_rank(pids: list[int]) -> dict[int, list[dict[str, Any]]]:
    """snapshot.Flow of each process's connections; OSError where the kernel does not tell."""
    own = _namespace("self")
    at_home = [pid for pid in pids if _namespace(str(pid)) in (own, None)]
    by_inode = {flow.socket.inode: _flow(flow) for flow in netlink.flows() if flow.socket.state in CONNECTED}
    found = {pid: _of(pid, by_inode) for pid in at_home}
    for pid in pids:
        if pid not in found:
            found[pid] = _of(pid, dict(_table(pid)))
    return found


def listens(pids: list[int], port: int) -> bool:
    """True where one of the processes, in the probe's own network namespace, listens on a port."""
    inodes = {one.inode for one in netlink.sockets_on(port) if one.state == "LISTEN"}
    return any(inode in inodes for pid in pids for inode in inodes_of(pid))


def inodes_of(pid: int) -> Iterator[int]:
    """The inodes of the sockets that a process holds."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in numbers:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])


def _of(pid: int, by_inode: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    return [by_inode[inode] for inode in sorted(set(inodes_of(pid))) if inode in by_inode][:MOST]


def _flow(flow: netlink.Flow) -> dict[str, Any]:
    return {
        "local": [netlink.plain(flow.socket.local_address), flow.socket.local_port],
        "remote": [netlink.plain(flow.socket.remote_address), flow.socket.remote_port],
        "state": flow.socket.state,
        "unread": flow.unread,
        "unsent": flow.unsent,
        "retransmits": flow.retransmits,
        "probes": flow.probes,
        "acked": flow.acked,
        "received": flow.received,
    }


def _namespace(pid: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _table(pid: int) -> Iterator[tuple[int, dict[str, Any]]]:
    for name in ("tcp", "tcp6"):
        for line in (tools.read(f"/proc/{pid}/net/{name}") or "").splitlines()[1:]:
            fields = line.split()
            state = netlink.STATES[int(fields[3], 16)] if len(fields) >= netlink.TABLE_FIELDS else ""
            if state in CONNECTED:
                yield int(fields[9]), _row(fields, state)


def _row(fields: list[str], state: str) -> dict[str, Any]:
    unsent, unread = (int(part, 16) for part in fields[4].split(":"))
    timer = int(fields[5].partition(":")[0], 16)
    return {
        "local": _end(fields[1]),
        "remote": _end(fields[2]),
        "state": state,
        "unread": unread,
        "unsent": unsent,
        "retransmits": int(fields[6], 16) if timer == netlink.TIMER_RETRANSMIT else 0,
        "probes": int(fields[8]) if timer == netlink.TIMER_PROBE else 0,
        "acked": None,
        "received": None,
    }


def _end(text: str) -> list[Any]:
    address, port = netlink.parse_endpoint(text)
    return [netlink.plain(address), port]


PORT = 28028
LOCALHOST = "localhost"
COLLECT_S = 5
MOST_BYTES = 8 << 20


def address(variables: dict[str, str]) -> tuple[str, int] | None:
    """Where a job's service listens, by its variables; None where it is switched off."""
    if variables.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        return None
    named = variables.get("NCCL_RAS_ADDR", "").strip()
    host, _, port = named.rpartition(":")
    if named and port.isdigit() and 0 < int(port) < 65536:
        return host.strip("[]") or LOCALHOST, int(port)
    return LOCALHOST, PORT


def ask(host: str, port: int, *, json_form: bool, deadline: float) -> dict[str, Any]:
    """Asks for a report: ``{"protocol", "form", "text", "whole"}``; ``form`` is what the server agreed to."""
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
