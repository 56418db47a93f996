"""One probe on one host: starts it over a transport's channel and exchanges requests and answers."""

from __future__ import annotations

import json
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from nccl_doctor.collect import bundle, psutil_bundle
from nccl_doctor.model import Node
from nccl_doctor.snapshot import AccessFailure
from nccl_doctor.transport.base import AccessError, Channel, Transport

NOT_FOUND = 127
"""A shell's exit status for a command it does not find (POSIX, 2.8.2)."""


OLDEST_PSUTIL = (5, 9, 3)


class ProbeError(Exception):
    """The probe ended, gave no answer in time, or answered with an error; says what it was asked for."""

    def __init__(self, message: str, traceback: str | None = None) -> None:
        self.traceback = traceback
        super().__init__(message)


class NoAnswerError(ProbeError):
    """The deadline came before the answer."""


class Session:
    """A probe that answers.

    Attributes:
        hello: what it said of itself: python, psutil (version or None), machine, pid.
        round_trip_s: seconds that the last answered request took.
    """

    def __init__(self, node: Node, channel: Channel, nonce: str) -> None:
        self.node = node
        self.hello: dict[str, Any] = {}
        self._channel = channel
        self._nonce = nonce.encode()
        self._last_id = 0
        self._chatter: deque[str] = deque(maxlen=5)
        self._early: dict[int, dict[str, Any]] = {}

    @classmethod
    def open(cls, transport: Transport, node: Node, deadline: float, lifetime_s: float) -> Session:
        """Connects and starts the probe.

        Raises:
            AccessError: with one of the six kinds of :class:`~nccl_doctor.snapshot.AccessFailure`.
        """
        nonce = secrets.token_hex(16)
        channel = transport.open(node, bundle.command(node.python), deadline)
        session = cls(node, channel, nonce)
        try:
            session._greet({"nonce": nonce, "lifetime_s": lifetime_s}, deadline)
        except (OSError, EOFError, ValueError, ProbeError) as error:
            failure = session._start_failure(error)
            channel.close()
            raise AccessError(failure) from error
        return session

    def send(self, do: str, deadline: float, **arguments: Any) -> int:  # noqa: ANN401 - JSON
        """Sends a request and returns its number."""
        self._last_id += 1
        request = {"id": self._last_id, "do": do, **arguments}
        try:
            self._channel.send(json.dumps(request).encode() + b"\n", deadline)
        except (OSError, EOFError) as error:
            raise ProbeError(f"the connection broke before {do}: {error}") from error
        return self._last_id

    def wait(self, number: int, deadline: float, on_event: Callable[[dict[str, Any]], None] | None = None) -> Any:  # noqa: ANN401 - JSON
        """The answer to a request; events that come before it go to ``on_event``.

        Raises:
            NoAnswerError: the deadline came first; the answer can still be waited for.
            ProbeError: the connection ended, or the probe answered with an error.
        """
        while True:
            message = self._early.pop(number, None) or self._next(deadline)
            if message.get("id") != number:
                self._early[message.get("id", 0)] = message
            elif "event" in message:
                if on_event is not None:
                    on_event(message["event"])
            elif "error" in message:
                raise ProbeError(message["error"], message.get("traceback"))
            else:
                return message["ok"]

    def ask(self, do: str, deadline: float, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
        """Sends a request and waits for its answer."""
        return self.wait(self.send(do, deadline, **arguments), deadline)

    def close(self) -> None:
        """Ends the probe and everything it started; idempotent and bounded."""
        self._channel.close()

    def _greet(self, header: dict[str, Any], deadline: float) -> None:
        self._channel.send(bundle.bundle() + json.dumps(header).encode() + b"\n", deadline)
        message = self._next(deadline)
        if "refused" in message:
            raise ProbeError(message["refused"])
        self.hello = message["hello"]
        if _too_old(self.hello["psutil"]):
            self._ship_psutil(deadline)

    def _ship_psutil(self, deadline: float) -> None:
        try:
            self.ask("psutil", deadline, bundle=psutil_bundle.pack())
        except ProbeError:
            # No fault of the host's: exactly the facts that need psutil come back unknown, with this reason.
            return

    def _next(self, deadline: float) -> dict[str, Any]:
        while True:
            try:
                line = self._channel.read_line(deadline)
            except TimeoutError:
                raise NoAnswerError("no answer in time") from None
            except (OSError, ValueError) as error:
                raise ProbeError(f"the connection broke: {error}") from error
            if line is None:
                raise ProbeError("the connection ended")
            chatter, framed, text = line.partition(self._nonce)
            if framed:
                return _parsed(text)
            if chatter.strip():
                self._chatter.append(chatter.decode(errors="replace")[:300])

    def _start_failure(self, error: Exception) -> AccessFailure:
        """Why the probe did not come up: no such interpreter, or whatever it said instead."""
        ended = not isinstance(error, NoAnswerError)
        status = self._channel.exit_status(time.monotonic() + 1) if ended else None
        said = [line for line in self._channel.stderr_tail().splitlines() if line.strip()][-5:]
        facts = {"python": self.node.python}
        missing = any(words in line.lower() for line in said for words in ("not found", "no such file"))
        if status == NOT_FOUND or (missing and status not in (0, None)):
            detail = f'there is no interpreter "{self.node.python}"'
            return AccessFailure(kind="python-missing", detail=detail, evidence=tuple(said), facts=facts)
        detail = f"{self.node.python} did not start the probe: {error}"
        evidence = (*said, *self._chatter)
        return AccessFailure(kind="probe-failed", detail=detail, evidence=evidence, facts={**facts, "stage": "start"})


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        message: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ProbeError(f"the probe's answer is damaged: {error}") from error
    return message


def _too_old(version: str | None) -> bool:
    """Whether the host has no psutil, or one before 5.9.3, the first that tells an interface's flags."""
    return version is None or tuple(map(int, version.split(".")[:3])) < OLDEST_PSUTIL
