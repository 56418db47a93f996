"""Implements the handshake by which a node joins a check. Each message of the handshake is a line of JSON.

Each side proves that it has the job's token.

1. Node 0 sends its version and a nonce.
2. The node sends its :class:`Introduction`, a nonce, and an HMAC of both nonces and the introduction.
3. Node 0 answers with an HMAC of both nonces, or with the reason for refusing the node.

The token itself is never sent, and new nonces for each connection prevent replay attacks. The connection is not
encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import socket
from dataclasses import asdict, dataclass
from typing import Any, Literal

MOST_LINE = 4096  # bytes of a line of the handshake
MOST_NODES = 65536
MOST_PROCESSES = 1024  # of one node
_NONCE = re.compile(r"[0-9a-f]{32}")
_PROOF = re.compile(r"[0-9a-f]{64}")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
_LABEL = b"nccl-doctor join 1"
_WORDS = 300

ProofSide = Literal["node", "node 0"]


GONE_S = 20  # seconds without an acknowledgement after which the other side counts as gone
SMALL_MSS = 1200
"""Segment size in bytes that fits into IPv6's minimum MTU of 1,280 bytes (RFC 8200, section 5).

With larger segments, a path that loses large packets would break the connection before the check finds the problem.
"""


def prepare(connection: socket.socket) -> None:
    """Set the options of a socket before it connects or listens."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_MSS)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # node 0 sends something every second, so this shows a node that vanished (tcp(7); connections inherit it)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * GONE_S)


class HandshakeError(Exception):
    """Error raised if the other side sends an invalid message or does not have the job's token."""


@dataclass(frozen=True)
class Introduction:
    """The data with which a node introduces itself to node 0.

    Attributes:
        rank: the node's rank.
        nodes: the number of nodes in the job.
        host: the node's host name.
        python: the interpreter that training uses on the node.
        release: the release of nccl-doctor, and a digest of the probe.
        waits: whether this process only waits for the end of the check, because another process on its node takes part.
        wants_report: whether the process requests the complete report at the end.
        processes: the number of processes on the node that will take part or wait, including this process.
        master_port: the master port of the job, which distinguishes two jobs with the same token.
    """

    rank: int
    nodes: int
    host: str
    python: str
    release: str
    waits: bool = False
    wants_report: bool = False
    processes: int = 1
    master_port: int = 0


def proof(token: bytes, side: ProofSide, nonces: tuple[str, str], statement: str = "") -> str:
    """Return the HMAC-SHA256 by which a side proves that it has the token.

    ``nonces`` contains the nonce of node 0 and the nonce of the joining node.
    """
    parts = (_LABEL, side.encode(), nonces[0].encode(), nonces[1].encode(), statement.encode())
    return hmac.new(token, b"\0".join(parts), hashlib.sha256).hexdigest()


def greeting(release: str, nonce: str) -> bytes:
    return _line({"nccl-doctor": release, "nonce": nonce})


def read_greeting(line: bytes) -> tuple[str, str]:
    """Return node 0's release and nonce; raise HandshakeError if another program sent the line."""
    message = _parsed(line)
    release, nonce = message.get("nccl-doctor"), message.get("nonce")
    if not isinstance(release, str) or not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise HandshakeError("it is not a check with --join")
    return release[:_WORDS], nonce


def introduce(token: bytes, who: Introduction, nonces: tuple[str, str]) -> bytes:
    statement = json.dumps(asdict(who), sort_keys=True)
    shown = proof(token, "node", nonces, statement)
    return _line({"statement": statement, "nonce": nonces[1], "proof": shown})


def read_introduction(line: bytes, token: bytes, nonce: str) -> tuple[Introduction, str]:
    """Return a node's introduction and nonce.

    Raise HandshakeError if the proof is wrong or the introduction is malformed.
    """
    message = _parsed(line)
    statement, node_nonce, shown = (message.get(key) for key in ("statement", "nonce", "proof"))
    if not (isinstance(statement, str) and isinstance(node_nonce, str) and isinstance(shown, str)):
        raise HandshakeError("malformed")
    if not (statement.isascii() and _NONCE.fullmatch(node_nonce) and _PROOF.fullmatch(shown)):
        raise HandshakeError("malformed")
    if not hmac.compare_digest(shown.encode(), proof(token, "node", (nonce, node_nonce), statement).encode()):
        raise HandshakeError("wrong token")
    fields = _parsed(statement.encode())
    keys = ("rank", "nodes", "host", "python", "release", "waits", "wants_report", "processes", "master_port")
    rank, nodes, host, python, release, waits, wants_report, processes, master_port = (fields.get(key) for key in keys)
    if (
        type(rank) is int
        and type(nodes) is int
        and 0 <= rank < nodes <= MOST_NODES
        and isinstance(host, str)
        and _HOST.fullmatch(host)
        and isinstance(python, str)
        and 0 < len(python) < _WORDS
        and python.isprintable()
        and isinstance(release, str)
        and isinstance(waits, bool)
        and isinstance(wants_report, bool)
        and type(processes) is int
        and 0 < processes <= MOST_PROCESSES
        and type(master_port) is int
    ):
        release = release[:_WORDS]
        return Introduction(rank, nodes, host, python, release, waits, wants_report, processes, master_port), node_nonce
    raise HandshakeError("malformed")


def accept(token: bytes, nonces: tuple[str, str]) -> bytes:
    return _line({"proof": proof(token, "node 0", nonces)})


def refuse(reason: str) -> bytes:
    return _line({"refused": reason})


def read_answer(line: bytes, token: bytes, nonces: tuple[str, str]) -> str | None:
    """Return the reason why node 0 refuses this node, or None on success.

    Raise HandshakeError if node 0 lacks the token.
    """
    message = _parsed(line)
    if isinstance(refused := message.get("refused"), str):
        return "".join(letter if letter.isprintable() else " " for letter in refused[:_WORDS])
    shown = message.get("proof")
    if (
        not isinstance(shown, str)
        or not _PROOF.fullmatch(shown)
        or not hmac.compare_digest(shown.encode(), proof(token, "node 0", nonces).encode())
    ):
        raise HandshakeError("it does not have this job's token")
    return None


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise HandshakeError("malformed") from error
    if not isinstance(message, dict):
        raise HandshakeError("malformed")
    return message


CONTROL = b"!"
"""First byte of control lines, which node 0 and a node exchange during the check.

All other lines come from the probe or go to the probe.
"""


def control(word: Literal["start", "stop", "end", "exit"], **fields: object) -> bytes:
    """Return a control line.

    Node 0 sends ``start`` and ``stop`` for the probe, and ``end`` when the check ends. A node sends ``exit`` when its
    probe has exited.
    """
    return CONTROL + _line({"word": word, **fields})


def read_control(line: bytes) -> dict[str, Any]:
    return _parsed(line[len(CONTROL) :])
