"""Implements the joining side of ``check --join``: it connects to node 0, runs a probe, and awaits the result.

Node 0 sends no program, because each node runs its own installed probe with its own choice of interpreter. Only the
requests in :data:`ALLOWED` are passed on to the probe, so that node 0 can't end other processes on the node.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccl_doctor import __version__, probe
from nccl_doctor.crew import start as bundle
from nccl_doctor.errors import DoctorError, NotJoinedError
from nccl_doctor.text.inet import endpoint
from nccl_doctor.transport.base import LineBuffer, Tail, remaining
from nccl_doctor.transport.joined import handshake
from nccl_doctor.transport.joined.handshake import CONTROL, HandshakeError, Introduction, control, read_control
from nccl_doctor.transport.process import opened

ALLOWED = frozenset({
    "facts", "clock", "firewall", "named", "resolve", "listen", "dial", "unlisten", "path_mtu", "ways", "rate", "links",
    "turn", "end_turn", "import_torch", "smoke", "free_port", "prepare_trials", "trial", "end_launcher", "stop", "end",
})  # fmt: skip
"""Requests that a check may send to probe/main.py.

An allowed request affects only what the probe itself has started.
"""
VARIABLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "CUDA_VISIBLE_DEVICES"), ()),
    **dict.fromkeys(("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_RUN_DIAGNOSTICS", "NCCL_RUN_RAS_DIAGNOSTICS"), ()),
    **dict.fromkeys(("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"), ()),
    "GROUP_WORLD_SIZE": (),
    "NCCL_DEBUG_FILE": ("/dev/stdout",),
}
"""Variables that node 0 may set for the all-reduce, with the allowed values; an empty tuple allows any value.

Other variables can name programs and libraries, so node 0 may set them only to the values in this node's own command.
"""
SILENCE_S = 30.0  # node 0 sends a byte every second; a node that hears none for this long leaves
ANSWER_S = 10.0  # for node 0's part of the handshake: it may be busy with the other nodes
CONNECT_S = 5.0
AGAIN_S, LATER_S, SOON_S = 0.25, 1.0, 15.0  # between attempts: at first, and after a while; what counts as first
END_S = 4.0  # for the probe to end by itself
LONGEST_S = 86400.0
GRACE_S = 60.0  # for node 0 to start the probe after all have joined, and to end the check after the probe's lifetime
MOST_STARTS = 8  # of the probe; a check starts it once, and again after node 0 was paused
_CHUNK = 1 << 18
_MOST_UNSENT = 1 << 22
_NONCE = re.compile(r"[0-9a-f]{32}")
_WORDS, _NAME = 300, 60


def release() -> str:
    """Return a string with nccl-doctor's release and a digest of the probe, which must be the same on all nodes."""
    digest = hashlib.sha256()
    for path in sorted(Path(probe.__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return f"{__version__} (probe {digest.hexdigest()[:8]})"


class RefusedError(NotJoinedError):
    """Error raised if node 0 refuses this node."""


class WrongReleaseError(DoctorError):
    """Error raised if node 0 has a different release of nccl-doctor."""


@dataclass(frozen=True)
class JoinResult:
    """The result of the check, with node 0's exit code, node 0's message for this node, and the report if requested."""

    code: int
    words: str
    report: str = ""


@dataclass(frozen=True)
class Meets:
    """Node 0's address (or name) and port, and the deadline for joining (monotonic clock)."""

    address: str
    port: int
    until: float


def follow(
    who: Introduction, token: bytes, at: Meets, env: Mapping[str, str], say: Callable[[str], None]
) -> JoinResult:
    """Join the check and take part until the check ends.

    ``env`` contains the job's variables from this node's own command, and ``say`` is called with progress messages.
    Raise NotJoinedError if node 0 can't be reached or disconnects, or WrongReleaseError if node 0 has another release.
    """
    if not who.waits:
        bundle.bundle()  # takes a tenth of a second, in which node 0 may still be starting
    connection = join(who, token, (at.address, at.port), at.until, say)
    try:
        # a process that only waits does not see how far the check is
        limit = at.until + GRACE_S if not who.waits else time.monotonic() + LONGEST_S
        with contextlib.closing(_Relay(connection, Vetting(who.python, env), limit)) as relay:
            return relay.run()
    finally:
        connection.close()


def join(
    who: Introduction, token: bytes, where: tuple[str, int], until: float, say: Callable[[str], None]
) -> socket.socket:
    """Return a connection that node 0 has accepted.

    Failed attempts are repeated until the deadline ``until`` (monotonic clock), because node 0 might start later than
    this node.
    """
    began, last_reason, refused = time.monotonic(), "", ""
    while True:
        try:
            connection = _attempt(who, token, where)
        except (OSError, HandshakeError, RefusedError) as error:
            why = _reason(error, where)
            refused = why if isinstance(error, RefusedError) else refused
        else:
            say(f"joined the check of {who.nodes} nodes at {endpoint(*where)} as node rank {who.rank}")
            return connection
        if why != last_reason:
            last_reason = why
            say(f"waiting for node 0: {why}")
        pause = AGAIN_S if time.monotonic() - began < SOON_S else LATER_S
        if time.monotonic() + pause > until:
            within = f"within {time.monotonic() - began:.0f} s"
            raise NotJoinedError(f"this node could not join {within}: {refused or why}")
        time.sleep(pause)


def _reason(error: Exception, where: tuple[str, int]) -> str:
    place = endpoint(*where)
    if isinstance(error, socket.gaierror):
        return f'the name "{where[0]}" does not resolve here ({error.strerror}); is MASTER_ADDR right?'
    if isinstance(error, RefusedError):
        return f"{place} refused this node: {error}"
    if isinstance(error, HandshakeError):
        return f"what listens at {place} is not this check: {error}"
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {place} (connection refused): node 0 has not started, or MASTER_ADDR is not node 0"
    if isinstance(error, TimeoutError):
        return f"{place} does not answer: a firewall that drops this port, or no such host"
    return f"{place}: {error.strerror if isinstance(error, OSError) and error.strerror else error}"


def _attempt(who: Introduction, token: bytes, where: tuple[str, int]) -> socket.socket:
    connection = _connected(where)
    try:
        _shake_hands(connection, who, token, endpoint(*where))
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(where: tuple[str, int]) -> socket.socket:
    """Return a connection to node 0's first address that answers, or raise the error of the last attempt."""
    last: OSError = OSError("no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(*where, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(CONNECT_S)
            handshake.prepare(connection)
            connection.connect(address)
        except OSError as error:
            connection.close()
            last = error
        else:
            return connection
    raise last


def _shake_hands(connection: socket.socket, who: Introduction, token: bytes, place: str) -> None:
    version, nonce = handshake.read_greeting(_line(connection))
    if version != who.release:
        both = f"node 0 ({place}) has nccl-doctor {version}, and this node has {who.release}"
        raise WrongReleaseError(f"{both}: install the same on both")
    nonces = nonce, os.urandom(16).hex()
    connection.settimeout(ANSWER_S)
    connection.sendall(handshake.introduce(token, who, nonces))
    refused = handshake.read_answer(_line(connection), token, nonces)
    if refused is not None:
        raise RefusedError(refused)


def _line(connection: socket.socket) -> bytes:
    """Return the next line of the handshake. The line must arrive within :data:`ANSWER_S` seconds.

    Nothing beyond the line is read.
    """
    line, until = b"", time.monotonic() + ANSWER_S
    while not line.endswith(b"\n"):
        connection.settimeout(remaining(until))
        if not (byte := connection.recv(1)):
            raise HandshakeError("it closed the connection")
        line += byte
        if len(line) > handshake.MOST_LINE:
            raise HandshakeError("it sent something else")
    return line


@dataclass(frozen=True)
class Vetting:
    """A filter that decides which requests from node 0 are passed on to the probe.

    Attributes:
        python: the interpreter that training uses on this node.
        env: the job's variables, from this node's own command.
    """

    python: str
    env: Mapping[str, str]

    def allowed(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the request, or raise ValueError if the request is not part of a check."""
        if request["do"] not in ALLOWED or request.get("python", self.python) != self.python:
            raise ValueError("a request that is not part of a check")
        for name, value in _variables(request):
            values = VARIABLES.get(name)
            fits = values is not None and (not values or value in values)
            if not isinstance(value, str) or not (fits or self.env.get(name) == value):
                raise ValueError(f"the variable {name[:_NAME]}, which this node's own command does not set so")
        return request


def _variables(value: object) -> Iterator[tuple[str, object]]:
    """Yield the names and values of all environment variables that a request sets at any nesting depth."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        if key in ("env", "variables") and isinstance(inner, dict):
            yield from inner.items()
        else:
            yield from _variables(inner)
    for inner in value if isinstance(value, list) else ():
        yield from _variables(inner)


class _Relay:
    """A relay that passes lines between node 0 and this node's probe in one thread.

    ``limit`` is the time (monotonic clock) at which this node leaves the check if node 0 has not started the probe.
    """

    def __init__(self, connection: socket.socket, vetting: Vetting, limit: float) -> None:
        self._connection, self._vetting, self._limit = connection, vetting, limit
        self._starts = 0
        self._selector = selectors.DefaultSelector()
        self._from_node_0 = LineBuffer()
        self._to_node_0, self._to_probe = bytearray(), bytearray()
        self._probe: _Probe | None = None
        self._heard = time.monotonic()
        self._result: JoinResult | None = None
        connection.setblocking(False)

    def close(self) -> None:
        if self._probe is not None:
            self._probe.end()
        self._selector.close()

    def run(self) -> JoinResult:
        while self._result is None:
            for key, _ in self._wait():
                if key.fileobj is self._connection:
                    self._exchange()
                elif self._probe is not None and key.fileobj in self._probe.files:
                    self._pass_on(key.fileobj)
            if time.monotonic() > self._limit:
                raise NotJoinedError("node 0 neither goes on nor ends the check, so this node has left it")
            if time.monotonic() - self._heard > SILENCE_S:
                raise NotJoinedError(f"node 0 was silent for {SILENCE_S:.0f} s, so this node has left the check")
        return self._result

    def _wait(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait until a file can be read, or until a file with pending output can be written."""
        full = len(self._to_node_0) > _MOST_UNSENT
        wanted: dict[Any, int] = {self._connection: selectors.EVENT_WRITE if self._to_node_0 else 0}
        if len(self._to_probe) <= _MOST_UNSENT:
            wanted[self._connection] |= selectors.EVENT_READ
        if self._probe is not None:
            wanted |= {} if full else dict.fromkeys(self._probe.outputs, selectors.EVENT_READ)
            wanted |= {self._probe.stdin: selectors.EVENT_WRITE} if self._to_probe and self._probe.stdin else {}
        for key in list(self._selector.get_map().values()):
            if not wanted.get(key.fileobj):
                self._selector.unregister(key.fileobj)
        for file, events in wanted.items():
            if events and file not in self._selector.get_map():
                self._selector.register(file, events)
            elif events:
                self._selector.modify(file, events)
        return self._selector.select(1.0)

    def _exchange(self) -> None:
        """Receive data from node 0 and send pending data to node 0."""
        try:
            with contextlib.suppress(BlockingIOError):
                del self._to_node_0[: self._connection.send(self._to_node_0[:_CHUNK]) if self._to_node_0 else 0]
            chunk = self._connection.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            raise NotJoinedError(f"the connection to node 0 broke: {error.strerror}") from error
        if not chunk:
            raise NotJoinedError("node 0 went away before the end of the check")
        self._heard = time.monotonic()
        self._from_node_0.feed(chunk)
        try:
            while (line := self._from_node_0.pop()) is not None:
                self._take(line)
        except Exception as error:  # whatever a node 0 sends, this node ends with one sentence
            why = f" ({error})" if isinstance(error, ValueError) else ""
            raise NotJoinedError(f"node 0 sent what is not part of a check{why}, so this node has left it") from error

    def _take(self, line: bytes) -> None:
        if line.startswith(CONTROL):
            self._control(read_control(line))
        elif self._probe is not None and self._probe.is_ready:
            # written anew, since the probe might read other bytes in another way
            self._to_probe += json.dumps(self._vetting.allowed(json.loads(line.decode()))).encode() if line else b""
            self._to_probe += b"\n"

    def _control(self, message: dict[str, Any]) -> None:
        word = message["word"]
        if word == "end":
            code = int(message["code"])
            words, report = str(message["words"])[:_WORDS], str(message["report"])
            self._result = JoinResult(code if 0 <= code < 256 else 3, words, report)
        elif word == "start" and self._probe is None:
            nonce, lifetime_s, silence_s = (
                str(message["nonce"]),
                float(message["lifetime_s"]),
                float(message["silence_s"]),
            )
            lifetime_s = min(lifetime_s, LONGEST_S)
            if not (_NONCE.fullmatch(nonce) and lifetime_s > 0 and 0 < silence_s <= LONGEST_S):
                raise ValueError("a probe without limits")
            self._starts += 1
            if self._starts > MOST_STARTS:
                raise ValueError("one probe after the other")
            self._limit = max(self._limit, time.monotonic() + lifetime_s + GRACE_S)
            self._probe = _Probe(self._vetting.python, nonce, lifetime_s, silence_s)
            self._to_probe.clear()
        elif word == "stop" and self._probe is not None:
            self._report_end()
        elif word != "stop":
            raise ValueError("an unknown word")

    def _pass_on(self, file: object) -> None:
        assert self._probe is not None, "its files are watched"
        if file is self._probe.stdin:
            try:
                del self._to_probe[: os.write(self._probe.stdin.fileno(), self._to_probe[:_CHUNK])]
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._to_probe.clear()
            return
        chunk, more = self._probe.read(file)
        self._to_node_0 += chunk
        self._to_probe += more
        if self._probe.has_ended:
            self._report_end()

    def _report_end(self) -> None:
        assert self._probe is not None, "it was running"
        status, stderr = self._probe.end()
        self._to_node_0 += b"\n" + control("exit", status=status, stderr=stderr)
        self._probe = None
        self._to_probe.clear()


class _Probe:
    """This node's probe. The program and its header are sent to the loader as soon as the loader is ready."""

    def __init__(self, python: str, nonce: str, lifetime_s: float, silence_s: float) -> None:
        self._header = {"nonce": nonce, "lifetime_s": lifetime_s, "silence_s": silence_s}
        self._ready, self._first = nonce.encode() + b"{}", bytearray()
        self._tail = Tail()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", bundle.command(python, nonce, silence_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        self.stdin, self._stdout, self._stderr = map(
            opened, (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        self.outputs = [self._stdout, self._stderr]
        for pipe in self.files:
            os.set_blocking(pipe.fileno(), False)

    @property
    def files(self) -> list[Any]:
        return [self.stdin, *self.outputs]

    @property
    def is_ready(self) -> bool:
        """True once the loader is ready for the program; data that is sent earlier would corrupt the program."""
        return not self._ready

    @property
    def has_ended(self) -> bool:
        return not self.outputs

    def read(self, file: Any) -> tuple[bytes, bytes]:  # noqa: ANN401 - one of the pipes
        """Return the bytes to send to node 0, and the bytes to send to the probe before any request."""
        chunk = file.read(_CHUNK)
        if chunk is None:
            return b"", b""
        if not chunk:
            self.outputs.remove(file)
        elif file is self._stderr:
            self._tail.feed(chunk)
            return b"", b""
        elif self._ready:
            self._first += chunk
            if self._ready in self._first:
                self._ready = b""
                return chunk, bundle.bundle() + json.dumps(self._header).encode() + b"\n"
            del self._first[: -len(self._ready)]
        return chunk, b""

    def end(self) -> tuple[int | None, str]:
        """Close the probe's stdin, so that the probe ends everything that it started.

        Return the probe's exit status and stderr.
        """
        self.stdin.close()
        until = time.monotonic() + END_S
        while self._process.poll() is None and time.monotonic() < until:
            for pipe in (self._stdout, self._stderr):  # a full pipe would keep it
                chunk = pipe.read(_CHUNK)
                if chunk and pipe is self._stderr:
                    self._tail.feed(chunk)
            time.sleep(0.01)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
        status = self._process.wait()
        rest = self._stderr.read(_CHUNK)
        self._tail.feed(rest or b"")
        self._stdout.close()
        self._stderr.close()
        return (status if status >= 0 else 128 - status), self._tail.text()
