"""Implements ``check --join`` on node 0, which waits for the job's nodes and sends them the result.

One thread accepts connections and reads introductions. A connection without a valid introduction is closed within
:data:`PATIENCE_S` seconds. If more than :data:`MOST_PENDING` connections are pending, the oldest connection from the
address with the most connections is closed. A node of the job introduces itself within milliseconds.
"""

from __future__ import annotations

import contextlib
import errno
import math
import resource
import secrets
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nccl_doctor.errors import UsageError
from nccl_doctor.model.cluster import Node
from nccl_doctor.model.engines.joined import JoinedOptions
from nccl_doctor.snapshot.access import EngineFacts, EngineFailure
from nccl_doctor.text.inet import is_loopback
from nccl_doctor.transport.base import AccessError, Channel, Transport, close_all
from nccl_doctor.transport.joined import handshake
from nccl_doctor.transport.joined.handshake import MOST_LINE, HandshakeError
from nccl_doctor.transport.joined.member import JoinedChannel, JoinedNode
from nccl_doctor.transport.process import LocalTransport

PATIENCE_S = 1.0  # for a node's introduction
MOST_PENDING = 256
BACKLOG = 1024
_PULSE_S = 1.0
_AGAIN_S = 1.0  # until a port that another check has is tried again
_END_S = 3.0
LATE_S = 30.0  # for a node's other processes to start, which only wait for the result
_MOST_REFUSALS = 20


@dataclass
class _Pending:
    connection: socket.socket
    address: str
    nonce: str
    until: float
    read: bytearray = field(default_factory=bytearray)


class Meeting:
    """A listener that accepts connections from the nodes of a job.

    Args:
        listener: the listening socket.
        token: the job's secret; empty only if the listener is bound to a loopback address.
        nodes: the number of nodes in the job, including node 0.
        master_port: the job's master port.
        release: node 0's release of nccl-doctor, with a digest of the probe.

    Attributes:
        members: the nodes that joined, by rank, excluding node 0.
        left: the nodes that joined but disconnected before the check began, by rank.
        refused: the number of refused connections, counted separately for each combination of an address and a reason.
    """

    def __init__(self, listener: socket.socket, token: bytes, nodes: int, release: str, master_port: int = 0) -> None:
        self._listener, self._token, self._nodes, self._release = listener, token, nodes, release
        self._master_port = master_port
        self.members: dict[int, JoinedNode] = {}
        self.left: dict[int, JoinedNode] = {}
        self.refused: Counter[str] = Counter()
        self._waiting: list[JoinedNode] = []  # processes that only wait for the end
        self._came = threading.Condition()
        self._closing = threading.Event()
        self._begun = False
        self._selector = selectors.DefaultSelector()
        self._pending: dict[int, _Pending] = {}
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="join", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def gather(self, deadline: float, on_change: Callable[[int], None]) -> None:
        """Wait until all nodes have joined or the deadline passes.

        Whenever the number of connected nodes changes, ``on_change`` is called with the new number.
        """
        count = 0
        with self._came:
            while True:
                for rank in [rank for rank, member in self.members.items() if not member.is_there()]:
                    self.left[rank] = self.members.pop(rank)
                    self.left[rank].close()
                if len(self.members) + 1 != count:
                    count = len(self.members) + 1
                    on_change(count)
                left = deadline - time.monotonic()
                if count == self._nodes or left <= 0:
                    self._begun = True
                    return
                self._came.wait(min(left, _PULSE_S))

    def end(
        self, code: int, lines: Mapping[int, str], otherwise: str, report: str = "", processes: int | None = 1
    ) -> None:
        """Send every process the exit code and the entry of its node in ``lines``, and close all connections.

        Processes that requested the report receive the report as JSON. The method waits at most :data:`LATE_S` seconds
        for further processes of the nodes that have joined. A node without an entry in ``lines`` gets ``otherwise``.
        ``processes`` is the number of processes on node 0. If it is None, the method does not wait for them.
        """
        nodes = [node.who.processes for node in self.members.values()]
        awaited, count, until = (processes or 0) + sum(nodes) - len(nodes) - 1, 0, time.monotonic() + LATE_S
        leaving = list(self.members.values())
        while True:
            with self._came:
                leaving += self._waiting
                count += len(self._waiting)
                self._waiting.clear()
            close_all([self._leaving(node, code, lines.get(node.who.rank, otherwise), report) for node in leaving])
            leaving.clear()
            if processes is None or count >= awaited or time.monotonic() >= until:
                break
            with self._came:
                self._came.wait(_PULSE_S)
        self._closing.set()
        self._thread.join()
        self._listener.close()

    @staticmethod
    def _leaving(node: JoinedNode, code: int, words: str, report: str) -> Callable[[], None]:
        text = report if node.who.wants_report else ""
        last_word, deadline = handshake.control("end", code=code, words=words, report=text), time.monotonic() + _END_S
        return lambda: node.leave(last_word, deadline)

    def _serve(self) -> None:
        pulse = time.monotonic()
        while not self._closing.is_set():
            for key, _ in self._selector.select(0.2):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fd in self._pending:
                    self._read_safely(self._pending[key.fd])
            now = time.monotonic()
            for connection in [connection for connection in self._pending.values() if connection.until < now]:
                self._refuse(connection, "said nothing")
            if now >= pulse:
                pulse = now + _PULSE_S
                with self._came:
                    everyone = (*self.members.values(), *self._waiting)
                for member in everyone:
                    member.pulse()
        for connection in list(self._pending.values()):
            self._forget(connection).close()
        self._selector.close()

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                connection, (host, *_rest) = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # reset before it was accepted, or no descriptor is left
                self._make_room()
                return
            connection.setblocking(False)
            if len(self._pending) >= MOST_PENDING:
                self._make_room()
            address = host.removeprefix("::ffff:") if "." in host else host
            entry = _Pending(connection, address, secrets.token_hex(16), time.monotonic() + PATIENCE_S)
            try:
                connection.send(handshake.greeting(self._release, entry.nonce))
            except OSError:
                connection.close()
                continue
            self._pending[connection.fileno()] = entry
            self._selector.register(connection, selectors.EVENT_READ)

    def _make_room(self) -> None:
        """Close the oldest pending connection from the address with the most pending connections."""
        if self._pending:
            crowd = Counter(connection.address for connection in self._pending.values()).most_common(1)[0][0]
            oldest = next(connection for connection in self._pending.values() if connection.address == crowd)
            self._refuse(oldest, "too many connections at once")

    def _read_safely(self, stranger: _Pending) -> None:
        try:
            self._read(stranger)
        except Exception as error:  # noqa: BLE001 - whatever a stranger sends, the others can still join
            if stranger.connection.fileno() in self._pending:
                self._refuse(stranger, f"could not be read ({type(error).__name__})")

    def _read(self, stranger: _Pending) -> None:
        try:
            chunk = stranger.connection.recv(MOST_LINE)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        stranger.read += chunk
        line, ended, _ = stranger.read.partition(b"\n")
        if not ended:
            if not chunk or len(stranger.read) > MOST_LINE:
                self._refuse(stranger, "is not nccl-doctor")
            return
        try:
            who, nonce = handshake.read_introduction(bytes(line), self._token, stranger.nonce)
        except HandshakeError as error:
            self._refuse(stranger, f"{error}")
            return
        with self._came:
            reason = self._why_not(who, stranger)
            if reason is None:
                connection = self._forget(stranger)
                member = JoinedNode(connection, who, stranger.address)
                with contextlib.suppress(OSError):  # if it went away again, gather notices
                    connection.send(handshake.accept(self._token, (stranger.nonce, nonce)))
                if who.waits:
                    self._waiting.append(member)
                else:
                    if who.rank in self.members:
                        self.members[who.rank].close()
                    self.left.pop(who.rank, None)
                    self.members[who.rank] = member
                self._came.notify_all()
                return
        self._refuse(stranger, reason)

    def _why_not(self, who: handshake.Introduction, stranger: _Pending) -> str | None:
        if not self._token and not is_loopback(stranger.address):
            return "no token, and not this machine"
        if other := self._of_another_job(who):
            return other
        if who.waits:
            return self._too_many()
        first = self.members.get(who.rank)
        if who.rank == 0 or (first is not None and first.is_there()):
            there = f"{first.who.host} at {first.address}" if first is not None else "this one"
            return f"{who.host} has node rank {who.rank}, as {there} does"
        return f"{who.host} came after the check had begun" if self._begun else None

    def _of_another_job(self, who: handshake.Introduction) -> str | None:
        if who.release != self._release:
            return f"{who.host} has nccl-doctor {who.release}, and node 0 has {self._release}: install the same on both"
        if who.nodes != self._nodes:
            return f"{who.host} was started with {who.nodes} nodes, and node 0 with {self._nodes}"
        if who.master_port != self._master_port:
            return f"{who.host} belongs to a job with master port {who.master_port}, and node 0 to {self._master_port}"
        return None

    def _too_many(self) -> str | None:
        """Return a reason for refusal if waiting processes use half of the available file descriptors, or else None."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        if len(self._waiting) < most:
            return None
        for gone in [process for process in self._waiting if not process.is_there()]:
            gone.close()
            self._waiting.remove(gone)
        return "too many processes wait already" if len(self._waiting) >= most else None

    def _forget(self, stranger: _Pending) -> socket.socket:
        del self._pending[stranger.connection.fileno()]
        self._selector.unregister(stranger.connection)
        return stranger.connection

    def _refuse(self, stranger: _Pending, reason: str) -> None:
        words = f"{stranger.address}: {reason}"
        self.refused[words if words in self.refused or len(self.refused) < _MOST_REFUSALS else "others"] += 1
        connection = self._forget(stranger)
        with contextlib.suppress(OSError):  # it need not know why
            connection.send(handshake.refuse(reason))
        connection.close()


def listen(address: str, port: int, deadline: float, on_wait: Callable[[], None]) -> socket.socket:
    """Return a listening socket.

    If ``address`` is "", the socket listens on all addresses of this machine.

    If the port is in use, possibly by another check on this machine, binding is retried until the deadline. Raise
    UsageError if listening on the port fails.
    """
    is_waiting = False
    while True:
        try:
            return _listener(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() + _AGAIN_S > deadline:
                raise UsageError(f"--join-port: port {port} can't be listened on: {error.strerror}") from error
        if not is_waiting:
            on_wait()
            is_waiting = True
        time.sleep(_AGAIN_S)


def _listener(address: str, port: int) -> socket.socket:
    both = not address and socket.has_dualstack_ipv6()
    listener = socket.socket(socket.AF_INET6 if both or ":" in address else socket.AF_INET)
    try:
        if both:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        handshake.prepare(listener)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


class JoinedTransport(Transport):
    """A transport to the nodes that joined a check. The probe of node 0 runs on this machine.

    ``waited_s`` is the time in seconds that node 0 waited for other nodes. ``output_of`` returns a phrase that says
    where to find the output of the node with a given rank.
    """

    def __init__(self, meeting: Meeting, waited_s: float, output_of: Callable[[int], str]) -> None:
        self._meeting, self._waited_s, self._output_of = meeting, waited_s, output_of
        self._local = LocalTransport()

    def to(self, _cluster: object) -> JoinedTransport:
        """Return this transport; the method exists for compatibility with :class:`~nccl_doctor.transport.Connections`.

        Closing this transport does nothing, because the meeting closes the connections.
        """
        return self

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> Channel:
        """Return a channel to the node's own probe, or run ``command`` if the node is node 0."""
        rank = node.options(JoinedOptions).rank
        if not rank:
            return self._local.open(node, command, deadline, latest)
        member = self._meeting.members.get(rank) or self._meeting.left.get(rank)
        if member is None:
            raise AccessError(self._missing(node, rank))
        if not member.is_there():
            detail = "joined the check and went away again"
            raise AccessError(_failure(detail, (), "See on that node why it ended.", reason="gone", rank=rank))
        return JoinedChannel(member)

    def _missing(self, node: Node, rank: int) -> EngineFailure:
        port, counted = node.options(JoinedOptions).port, self._meeting.refused.most_common(5)
        refused = (f"refused: {words}{f' ({count} times)' if count > 1 else ''}" for words, count in counted)
        where = f"why the node could not reach node 0 on port {port}"
        remedy = f"Check whether the node was started. If so, {self._output_of(rank)} shows {where}."
        detail = f"did not join the check within {self._waited_s:.0f} s"
        return _failure(detail, tuple(refused), remedy, reason="missing", rank=rank, port=port)


def _failure(detail: str, evidence: tuple[str, ...], remedy: str, **facts: str | int | None) -> EngineFailure:
    return EngineFailure(
        kind="node-missing", detail=detail, evidence=evidence, remedy=remedy, facts=EngineFacts(**facts)
    )
