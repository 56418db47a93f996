"""The TCP connections of ranks, and queries to a job's NCCL RAS service in the protocol of ncclras.

TCP connections in the probe's network namespace are read with sock_diag(7), which reports byte counters. Connections in
other network namespaces are read from /proc/PID/net/tcp, which contains queue lengths but no byte counters.

The RAS protocol (src/ras/client_support.cc, NCCL 2.24 and later) consists of text lines over TCP. The RAS server
answers "CLIENT PROTOCOL 2" with "SERVER PROTOCOL n". The commands "TIMEOUT s" and "SET FORMAT json" are answered with
"OK". The command "VERBOSE STATUS" is answered with a report, and the server closes the connection. Only RAS reports in
text format list lost peers, so reports are requested in both JSON and text format. Since NCCL 2.31, the command
"DIAGNOSTICS" is answered with "BUSY" or with a comparison of the ranks (GPUs, drivers, ECC, NVLink, variables). To
answer "DIAGNOSTICS", NCCL only reads data and transfers no data between GPUs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any, Iterator

from nccl_doctor.probe import netlink
from nccl_doctor.probe.procs import open_files
from nccl_doctor.probe.tools import Unavailable

CONNECTED = ("ESTABLISHED", "FIN_WAIT1", "FIN_WAIT2", "CLOSE_WAIT", "LAST_ACK", "CLOSING", "SYN_SENT")
MOST = 2048


def by_rank(pids: list[int]) -> dict[int, list[dict[str, Any]]]:
    """Return, for each PID, the TCP connections of the process as a list of ``snapshot.Flow``.

    Raise OSError if the kernel does not report connections.
    """
    own_namespace = _namespace("self")
    at_home = [pid for pid in pids if _namespace(str(pid)) in (own_namespace, None)]
    counted = {flow.socket.inode: _flow(flow) for flow in netlink.flows() if flow.socket.state in CONNECTED}
    flows = {}
    for pid in [*at_home, *pids]:
        if pid not in flows:
            by_inode = counted if pid in at_home else table_of(pid)
            flows[pid] = [by_inode[inode] for inode in sorted(set(inodes_of(pid))) if inode in by_inode][:MOST]
    return flows


def listeners(pids: list[int], port: int) -> list[str]:
    """Return the addresses in the probe's network namespace at which the given processes listen on a port."""
    inodes = {inode for pid in pids for inode in inodes_of(pid)}
    listening = (sock for sock in netlink.sockets_on(port) if sock.state == "LISTEN" and sock.inode in inodes)
    addresses = (netlink.plain(sock.local_address) for sock in listening)
    return [EVERYWHERE.get(address, address) for address in addresses]


def inodes_of(pid: int) -> Iterator[int]:
    return (int(target[8:-1]) for _, _, target in open_files({pid}) if target.startswith("socket:["))


def _flow(flow: netlink.SocketTraffic) -> dict[str, Any]:
    local, remote = netlink.ends(flow.socket)
    return {
        "local": [*local],
        "remote": [*remote],
        "state": flow.socket.state,
        "unread": flow.unread,
        "unsent": flow.unsent,
        "retransmits": flow.retransmits,
        "probes": flow.probes,
        "acked": flow.acked,
        "received": flow.received,
    }


def _namespace(pid: str) -> str | None:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return None


def table_of(pid: int) -> dict[int, dict[str, Any]]:
    """Return the TCP connections in the network namespace of a process. The keys are the sockets' inodes.

    Return an empty dictionary if the process has exited.
    """
    try:
        flows = netlink.read_table(f"/proc/{pid}/net")
    except OSError:
        return {}
    return {flow.socket.inode: _flow(flow) for flow in flows if flow.socket.state in CONNECTED}


PORT = 28028
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where one listens, not where we do
COLLECT_S = 5
MOST_BYTES = 8 << 20


def service_port(variables: dict[str, str]) -> int | None:
    """Return the port of a job's RAS service according to the job's environment variables, or None if RAS is disabled.

    The address in NCCL_RAS_ADDR is not used, because the job can set it to any address. The RAS service is contacted at
    an address on which a rank listens (:func:`listeners`).
    """
    if variables.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        return None
    named = variables.get("NCCL_RAS_ADDR", "").strip().rpartition(":")[2]
    return int(named) if named.isascii() and named.isdigit() and 0 < int(named[:6]) < 65536 else PORT


def ask(host: str, port: int, wanted: str, deadline: float) -> dict[str, Any]:
    """Request a RAS report of the kind ``wanted`` ("text", "json" or "diagnostics").

    Return a dictionary with the keys "protocol", "form", "text" and "whole".

    The value of "form" is the format that the server sent, which is "text" if JSON was requested but the server does
    not support JSON.
    """
    try:
        with socket.create_connection((host, port), max(0.1, deadline - time.monotonic())) as server:
            line = _Line(server, deadline)
            greeting = line.say("CLIENT PROTOCOL 2")
            words = greeting.split()
            if words[:2] != ["SERVER", "PROTOCOL"] or len(words) != 3 or not words[2].isdigit():
                raise Unavailable(f"no NCCL RAS service: it greeted with {greeting[:60]!r}")
            line.say(f"TIMEOUT {COLLECT_S}")  # an older service without this command says ERROR, and goes on
            form = "text" if wanted == "json" and line.say("SET FORMAT json") != "OK" else wanted
            text, whole = line.rest("DIAGNOSTICS" if form == "diagnostics" else "VERBOSE STATUS")
    except OSError as error:
        raise Unavailable(f"NCCL's RAS at {host}:{port}: {error}") from error
    return {"protocol": int(words[2]), "form": form, "text": text, "whole": whole}


class _Line:
    def __init__(self, server: socket.socket, deadline: float) -> None:
        self._server, self._deadline = server, deadline
        self._data = b""

    def say(self, text: str) -> str:
        self._server.sendall(text.encode() + b"\n")
        while b"\n" not in self._data:
            if len(self._data) > 4096 or not self._more():
                raise Unavailable(f"NCCL's RAS did not answer {text!r}")
        line, _, self._data = self._data.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def rest(self, text: str) -> tuple[str, bool]:
        """Send a line, then return the received text and whether the server closed the connection."""
        self._server.sendall(text.encode() + b"\n")
        whole = False
        with contextlib.suppress(socket.timeout, ConnectionError):  # what arrived is still worth reading
            while len(self._data) < MOST_BYTES and not whole:
                whole = not self._more()
        return self._data.decode("utf-8", "replace"), whole

    def _more(self) -> bool:
        self._server.settimeout(max(0.05, self._deadline - time.monotonic()))
        block = self._server.recv(1 << 16)
        self._data += block
        return bool(block)
