"""Starts a probe on a host over a transport's channel, and exchanges requests and answers with the probe.

Every second, a heartbeat is sent to every host. A probe that receives no heartbeat for several seconds ends everything
that it started, because the machine that runs nccl-doctor might be unreachable. An unplugged cable, a sleeping laptop
or a suspended process does not close the connection. One thread sends all heartbeats, so
:meth:`~nccl_doctor.transport.base.Channel.pulse` must not block. A pause of this machine delays all heartbeats and is
not reported as a failure of a host.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from nccl_doctor.crew import answers
from nccl_doctor.crew import start as bundle
from nccl_doctor.crew.start import SILENT, ProbeStart, start_failure
from nccl_doctor.model.cluster import Node
from nccl_doctor.model.engine import engines_of, place_of
from nccl_doctor.snapshot.access import ProbeFailed, PythonMissing
from nccl_doctor.transport import base

MAX_REQUEST = 64 << 20  # bytes that a host may send for one request, with chatter and events


class Messages:
    """The stream of messages from a probe.

    Attributes:
        chatter: the last lines of output from programs other than the probe.
        shell_ready: whether the login shell has run the command that starts the probe.
    """

    def __init__(self, channel: base.Channel, nonce: str, silence_s: float) -> None:
        self._channel, self._silence_s = channel, silence_s
        self._nonce = nonce.encode()
        self._mark = bundle.login_mark(nonce).encode()
        self._allowance = base.Allowance(base.MAX_GREETING)
        self.chatter: deque[str] = deque(maxlen=5)
        self.shell_ready = False

    def requested(self) -> None:
        """Reset the limit on received bytes for a new request."""
        self._allowance = base.Allowance(MAX_REQUEST)

    def next(self, deadline: float, after_login: float = math.inf) -> dict[str, Any]:
        """Return the next message, which must arrive by ``deadline`` and within ``after_login`` seconds of the login.

        Raise NoAnswerError if no message arrives in time, or ConnectionLostError if the connection ends.
        """
        while True:
            line = self._line(deadline)
            if line.endswith(self._mark):
                self.shell_ready = True
                deadline = min(deadline, time.monotonic() + after_login)
                continue
            chatter, framed, text = line.partition(self._nonce)
            if framed:
                message = answers.parsed(text)
                if "silent" in message:
                    raise answers.HeartbeatLostError(self._silence_s)
                return message
            if chatter.strip():
                self.chatter.append(chatter[:300].decode(errors="replace"))

    def last_word(self, deadline: float, otherwise: str) -> answers.ConnectionLostError:
        """Return the reason why writing to the connection failed.

        The reason is the probe's last message if possible, or else ``otherwise``.
        """
        try:
            while True:
                self.next(deadline)
        except answers.HeartbeatLostError as told:
            return told
        except answers.ProbeError:
            return answers.ConnectionLostError(otherwise)

    def _line(self, deadline: float) -> bytes:
        try:
            line = self._channel.read_line(deadline)
            self._allowance.spend(line or b"")
        except TimeoutError:
            raise answers.NoAnswerError("no answer in time") from None
        except base.FloodError as error:
            raise answers.MalformedError(str(error)) from error
        except (OSError, ValueError) as error:
            lost = answers.ConnectionLostError(f"the connection broke: {error}")
            lost.failure = error.failure if isinstance(error, base.LostError) else None
            raise lost from error
        if line is None:
            raise answers.ConnectionLostError("the connection to the host ended")
        return line


PULSE_S = 1.0
SILENCE_S = 8.0  # of silence; with the time for ending everything, nothing is left after ten seconds
PATIENT_S = 60.0  # the same for a run that begins again because this machine was suspended: it may only be overloaded
MARGIN_S = 2.0  # pauses between our messages may be this much shorter here than a host tolerates
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that keeps running while the system sleeps.

The clock is CLOCK_BOOTTIME on Linux and CLOCK_MONOTONIC on macOS; see clock_gettime(2).
"""


class Heartbeat:
    """The sender of heartbeats to all hosts.

    Long gaps between heartbeats are recorded, because a long gap means that this machine was paused.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: set[base.Channel] = set()
        self._gaps: deque[tuple[float, float]] = deque(maxlen=100)
        self._last: float | None = None  # None until a message is due

    def begin(self) -> float:
        """Start sending heartbeats if necessary, and return the current time, to be passed to :meth:`longest_gap`."""
        with self._lock:
            if self._last is None:
                self._last = now()
                threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
            return now()

    def add(self, channel: base.Channel) -> None:
        with self._lock:
            self._channels.add(channel)

    def remove(self, channel: base.Channel) -> None:
        with self._lock:
            self._channels.discard(channel)

    def longest_gap(self, since: float) -> float:
        """Return the longest gap between heartbeats in seconds, not counting gaps that ended before ``since``."""
        with self._lock:
            gaps = [seconds for end, seconds in self._gaps if end > since]
            return max([*gaps, now() - (self._last or now())])

    def _beat(self) -> None:
        while True:
            time.sleep(PULSE_S)
            with self._lock:
                channels, at = tuple(self._channels), now()
                if self._last is not None and at - self._last > 2 * PULSE_S:
                    self._gaps.append((at, at - self._last))
                self._last = at
            for channel in channels:
                channel.pulse()


def now() -> float:
    """Return the time in seconds on a clock that keeps running while this machine sleeps."""
    return time.clock_gettime(_CLOCK)


heartbeat = Heartbeat()


T = TypeVar("T")


class ProbeSession:
    """A session with a running probe.

    ``lost`` is the error after which the probe's answers are no longer read, or None.
    """

    def __init__(self, node: Node, channel: base.Channel, nonce: str, silence_s: float = SILENCE_S) -> None:
        self.node = node
        self.hello: answers.Hello
        self.lost: answers.ConnectionLostError | None = None
        self._channel, self._silence_s, self._since = channel, silence_s, heartbeat.begin()
        self._messages = Messages(channel, nonce, silence_s)
        self._last_id = 0
        self._awaited: dict[int, float] = {}  # by number, the time of the request
        self._late: dict[tuple[str, str], int] = {}
        self._early: dict[int, dict[str, Any]] = {}
        self._ready = False

    @classmethod
    def open(
        cls,
        transport: base.Transport,
        node: Node,
        deadline: float,
        lifetime_s: float,
        latest: float = math.inf,
        silence_s: float = SILENCE_S,
    ) -> ProbeSession:
        """Connect to a host by ``deadline`` and start a probe.

        Logging in and starting the probe get additional time, but must end by ``latest``.

        Raise AccessError if connecting or starting the probe fails.
        """
        nonce, bound = secrets.token_hex(16), deadline - time.monotonic()
        channel = transport.open(node, bundle.command(node.python, nonce, silence_s), deadline, latest)
        session = cls(node, channel, nonce, silence_s)
        try:
            header = {"nonce": nonce, "lifetime_s": lifetime_s, "silence_s": silence_s}
            session._greet(header, bound, latest)
        except (OSError, EOFError, ValueError, answers.ProbeError) as error:
            broke = isinstance(error, (OSError, EOFError))
            cause = answers.ConnectionLostError(f"the connection broke: {error}") if broke else error
            why = session.gone(cause) if isinstance(cause, answers.ConnectionLostError) else cause
            failure = getattr(error, "failure", None) or session._start_failure(why)
            session.close()
            raise base.AccessError(failure) from error
        except BaseException:
            session.close()
            raise
        return session

    def send(self, contract: answers.Contract[Any], deadline: float, **arguments: object) -> int:
        self._last_id += 1
        self._awaited[self._last_id] = now()
        self._messages.requested()
        request = {"id": self._last_id, "do": contract.name, **arguments}
        try:
            self._channel.send(json.dumps(request).encode() + b"\n", deadline)
        except (OSError, EOFError) as error:
            raise self.gone(
                self._messages.last_word(deadline, f"the connection broke before {contract.name}: {error}")
            ) from error
        return self._last_id

    def wait(
        self,
        contract: answers.Contract[T],
        number: int,
        deadline: float,
        on_event: Callable[[answers.RankEvent], None] | None = None,
    ) -> T:
        """Wait for the answer to a request and return the answer.

        The caller can wait for the same answer again only after a NoAnswerError.
        """
        try:
            return self._answer(contract, number, deadline, on_event)
        except answers.ConnectionLostError as error:
            raise self.gone(error) from error

    def ask(self, contract: answers.Contract[T], deadline: float, **arguments: object) -> T:
        """Send a request and return the answer.

        If a late answer to the same request is still pending, the request is not sent again.
        """
        request = contract.name, json.dumps(arguments)
        number = self._late.pop(request, None) or self.send(contract, deadline, **arguments)
        try:
            return self.wait(contract, number, deadline)
        except answers.NoAnswerError:
            self._late[request] = number
            raise

    def large_packets_vanish(self, by: float) -> bool:
        """Return whether it is certain that answers are missing because large packets are lost.

        The check ends at the deadline ``by``.
        """
        return isinstance(self._channel, base.KnowsItsPath) and self._channel.large_packets_vanish(by)

    def gone(self, error: answers.ConnectionLostError) -> answers.ConnectionLostError:
        """Mark the session as lost and return the error to raise.

        The error is a :class:`~nccl_doctor.crew.answers.ControllerPausedError` if this machine stopped sending
        heartbeats.
        """
        still = heartbeat.longest_gap(self._since)
        ours = still >= self._silence_s - MARGIN_S and not isinstance(
            error, (answers.MalformedError, answers.OwnFaultError)
        )
        self.lost = answers.ControllerPausedError(still) if ours else error
        return self.lost

    def close(self) -> None:
        """End the probe and everything that it started, within limited time. Repeated calls are allowed."""
        heartbeat.remove(self._channel)
        self._channel.close()

    def _answer(
        self,
        contract: answers.Contract[T],
        number: int,
        deadline: float,
        on_event: Callable[[answers.RankEvent], None] | None,
    ) -> T:
        if self.lost is not None:
            raise self.lost
        while True:
            message = self._early.pop(number, None) or self._messages.next(deadline)
            if "event" in message:
                event = answers.typed(answers.RANK_EVENT, "event", message["event"])
                if on_event is None or message.get("id") != number:
                    raise answers.MalformedError("an event of nothing that runs")
                on_event(event)
                continue
            request_id = message.get("id")
            if type(request_id) is not int or request_id not in self._awaited or request_id in self._early:
                raise answers.MalformedError("the answer to a request that nobody made")
            if request_id != number:
                self._early[request_id] = message
                continue
            self._since = max(self._since, self._awaited.pop(number))  # it survived the earlier pause
            if "error" in message:
                words = answers.typed(answers.WORDS, "error", message["error"])
                raise answers.ProbeError(words, answers.typed(answers.TRACEBACK, "traceback", message.get("traceback")))
            if "ok" not in message:
                raise answers.MalformedError("neither an answer nor an error")
            return answers.typed(contract.answer, "answer", message["ok"])

    def _greet(self, header: dict[str, Any], bound: float, latest: float) -> None:
        installed = self._channel if isinstance(self._channel, base.StartsProbe) else None
        if installed is not None:
            installed.start_installed(header, min(time.monotonic() + bound, latest))
        if self._messages.next(min(time.monotonic() + base.LOGIN_TIMES * bound, latest), bound):
            raise answers.MalformedError("a word before the probe was sent")
        self._ready = True
        deadline = min(time.monotonic() + bound, latest)
        try:
            if installed is None:
                self._channel.send(bundle.bundle(), deadline)  # sent separately: it is the same for all hosts
                self._channel.send(json.dumps(header).encode() + b"\n", deadline)
        except TimeoutError:  # an interpreter that reads nothing; the bundle is larger than a pipe's buffer
            raise answers.NoAnswerError("no answer in time") from None
        heartbeat.add(self._channel)
        message = self._messages.next(deadline)
        if "refused" in message:
            raise answers.ProbeError(answers.typed(answers.WORDS, "refusal", message["refused"]))
        self.hello = answers.typed(answers.HELLO, "greeting", message.get("hello"))

    def _start_failure(self, error: Exception) -> PythonMissing | ProbeFailed:
        ours = isinstance(error, answers.ControllerPausedError)  # explains why the loader received nothing
        stderr = [] if ours else [line for line in self._channel.stderr_tail().splitlines() if line.strip()]
        silent = isinstance(error, answers.ConnectionLostError) and any(SILENT in line for line in stderr)
        late = isinstance(error, answers.NoAnswerError) or ours or silent
        return start_failure(
            ProbeStart(
                python=self.node.python,
                place=place_of(self.node),
                error=str(error),
                login=any(engine.logs_in for engine in engines_of(self.node)),
                shell_ready=self._messages.shell_ready,
                ready=self._ready,
                late=late,
                lied=isinstance(error, answers.MalformedError),
                status=None if late else self._channel.exit_status(time.monotonic() + 1),
                stderr=stderr[-5:],
                chatter=self._messages.chatter,
            )
        )
