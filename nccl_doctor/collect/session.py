"""One probe on one host: starts it over a transport's channel and exchanges requests and answers."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import TypeAdapter

from nccl_doctor.collect import answers, bundle, pulse
from nccl_doctor.collect.answers import (
    GoneError,
    Hello,
    MalformedError,
    NoAnswerError,
    OwnFaultError,
    ProbeError,
    RankEvent,
    StoodStillError,
)
from nccl_doctor.collect.messages import Messages
from nccl_doctor.collect.start_failure import SILENT, Start, start_failure
from nccl_doctor.model.cluster import Node
from nccl_doctor.snapshot import ProbeFailed, PythonMissing
from nccl_doctor.transport.base import LOGIN_TIMES, AccessError, Channel, KnowsItsPath, Transport
from nccl_doctor.transport.containers.options import InsideOptions

T = TypeVar("T")


class ProbeSession:
    """A probe that answers.

    Attributes:
        hello: what it said of itself.
        lost: why nothing that it says counts any more: the connection ended, or it said what the probe never says.
    """

    def __init__(self, node: Node, channel: Channel, nonce: str, silence_s: float = pulse.SILENCE_S) -> None:
        self.node = node
        self.hello: Hello
        self.lost: GoneError | None = None
        self._channel, self._silence_s, self._since = channel, silence_s, pulse.begin()
        self._messages = Messages(channel, nonce, silence_s)
        self._last_id = 0
        self._awaited: dict[int, float] = {}  # by number, when it was asked
        self._late: dict[tuple[str, str], int] = {}
        self._early: dict[int, dict[str, Any]] = {}
        self._ready = False

    @classmethod
    def open(
        cls,
        transport: Transport,
        node: Node,
        deadline: float,
        lifetime_s: float,
        latest: float = math.inf,
        silence_s: float = pulse.SILENCE_S,
    ) -> ProbeSession:
        """Connects before the deadline, and starts the probe in as much time again, but before ``latest``.

        The probe ends when it hears nothing from this machine for ``silence_s``.
        A login, and the start-up files of its shell, have :data:`~nccl_doctor.transport.base.LOGIN_TIMES` as much.

        Raises:
            AccessError: with one of the six kinds of :class:`~nccl_doctor.snapshot.AccessFailure`.
        """
        nonce, bound = secrets.token_hex(16), deadline - time.monotonic()
        channel = transport.open(node, bundle.command(node.python, nonce, silence_s), deadline, latest)
        session = cls(node, channel, nonce, silence_s)
        try:
            header = {"nonce": nonce, "lifetime_s": lifetime_s, "silence_s": silence_s}
            session._greet(header, bound, latest)
        except (OSError, EOFError, ValueError, ProbeError) as error:
            broke = isinstance(error, (OSError, EOFError))
            seen = GoneError(f"the connection broke: {error}") if broke else error
            why = session.gone(seen) if isinstance(seen, GoneError) else seen
            failure = getattr(error, "failure", None) or session._start_failure(why)
            session.close()
            raise AccessError(failure) from error
        except BaseException:
            session.close()
            raise
        return session

    def send(self, do: str, deadline: float, **arguments: Any) -> int:  # noqa: ANN401 - JSON
        """Sends a request and returns its number."""
        self._last_id += 1
        self._awaited[self._last_id] = pulse.now()
        self._messages.requested()
        request = {"id": self._last_id, "do": do, **arguments}
        try:
            self._channel.send(json.dumps(request).encode() + b"\n", deadline)
        except (OSError, EOFError) as error:
            raise self.gone(self._messages.last_word(deadline, f"the connection broke before {do}: {error}")) from error
        return self._last_id

    def wait(
        self, kind: TypeAdapter[T], number: int, deadline: float, on_event: Callable[[RankEvent], None] | None = None
    ) -> T:
        """The answer to a request; events that come before it go to ``on_event``.

        Raises:
            NoAnswerError: the deadline came first; the answer can still be waited for.
            GoneError: the connection ended, or this is no answer of the probe's.
            ProbeError: the probe answered with an error.
        """
        try:
            return self._answer(kind, number, deadline, on_event)
        except GoneError as error:
            raise self.gone(error) from error

    def ask(self, kind: TypeAdapter[T], do: str, deadline: float, **arguments: Any) -> T:  # noqa: ANN401 - JSON
        """Sends a request and waits for its answer; raises as :meth:`wait`.

        One whose answer did not come in time is not sent again: asking the same is to go on waiting.
        """
        request = do, json.dumps(arguments)
        number = self._late.pop(request, None) or self.send(do, deadline, **arguments)
        try:
            return self.wait(kind, number, deadline)
        except NoAnswerError:
            self._late[request] = number
            raise

    def large_packets_vanish(self, by: float) -> bool:
        """Whether it is proven that an answer does not come because its packets are large."""
        return isinstance(self._channel, KnowsItsPath) and self._channel.large_packets_vanish(by)

    def gone(self, error: GoneError) -> GoneError:
        """Takes note that the host is not listened to any more; the error, to be raised.

        A host that heard nothing from us for too long has let go: whatever it looks like, that was not its fault.
        """
        still = pulse.longest_standstill(self._since)
        ours = still >= self._silence_s - pulse.MARGIN_S and not isinstance(error, (MalformedError, OwnFaultError))
        self.lost = StoodStillError(still) if ours else error
        return self.lost

    def close(self) -> None:
        """Ends the probe and everything it started; idempotent and bounded."""
        pulse.leave(self._channel)
        self._channel.close()

    def _answer(
        self, kind: TypeAdapter[T], number: int, deadline: float, on_event: Callable[[RankEvent], None] | None
    ) -> T:
        if self.lost is not None:
            raise self.lost
        while True:
            message = self._early.pop(number, None) or self._messages.next(deadline)
            if "event" in message:
                event = answers.typed(answers.RANK_EVENT, "event", message["event"])
                if on_event is None or message.get("id") != number:
                    raise MalformedError("an event of nothing that runs")
                on_event(event)
                continue
            its = message.get("id")
            if type(its) is not int or its not in self._awaited or its in self._early:
                raise MalformedError("the answer to a request that nobody made")
            if its != number:
                self._early[its] = message
                continue
            self._since = max(self._since, self._awaited.pop(number))  # it outlived what stood still before
            if "error" in message:
                words = answers.typed(answers.WORDS, "error", message["error"])
                raise ProbeError(words, answers.typed(answers.TRACEBACK, "traceback", message.get("traceback")))
            if "ok" not in message:
                raise MalformedError("neither an answer nor an error")
            return answers.typed(kind, "answer", message["ok"])

    def _greet(self, header: dict[str, Any], bound: float, latest: float) -> None:
        if self._messages.next(min(time.monotonic() + LOGIN_TIMES * bound, latest), bound):
            raise MalformedError("a word before the probe was sent")
        self._ready = True
        deadline = min(time.monotonic() + bound, latest)
        try:
            self._channel.send(bundle.bundle(), deadline)  # by itself: it is the same for all hosts
            self._channel.send(json.dumps(header).encode() + b"\n", deadline)
        except TimeoutError:  # an interpreter that reads nothing, and the bundle is more than a pipe holds
            raise NoAnswerError("no answer in time") from None
        pulse.keep(self._channel)
        message = self._messages.next(deadline)
        if "refused" in message:
            raise ProbeError(answers.typed(answers.WORDS, "refusal", message["refused"]))
        self.hello = answers.typed(answers.HELLO, "greeting", message.get("hello"))

    def _start_failure(self, error: Exception) -> PythonMissing | ProbeFailed:
        """Why the probe did not come up."""
        ours = isinstance(error, StoodStillError)  # it says why the loader heard nothing
        stderr = [] if ours else [line for line in self._channel.stderr_tail().splitlines() if line.strip()]
        silent = isinstance(error, GoneError) and any(SILENT in line for line in stderr)
        late = isinstance(error, NoAnswerError) or ours or silent
        return start_failure(
            Start(
                python=self.node.python,
                place=self.node.options(InsideOptions).place,
                error=str(error),
                came=self._messages.came,
                ready=self._ready,
                late=late,
                lied=isinstance(error, MalformedError),
                status=None if late else self._channel.exit_status(time.monotonic() + 1),
                stderr=stderr[-5:],
                chatter=self._messages.chatter,
            )
        )
