"""The messages of one probe, read from its channel out of whatever else comes there."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

from nccl_doctor.collect import answers, bundle
from nccl_doctor.collect.answers import GoneError, MalformedError, NoAnswerError, ProbeError, UnheardError
from nccl_doctor.transport.base import MAX_GREETING, Allowance, Channel, FloodError, LostError

MAX_REQUEST = 64 << 20
"""Bytes that a host may send for one request, chatter and events included."""


class Messages:
    """What a probe says.

    Args:
        channel: to the probe.
        nonce: marks the probe's words.
        silence_s: after which the probe lets go of us.

    Attributes:
        chatter: the last lines that others said there.
        came: the login shell came to the line that starts the probe.
    """

    def __init__(self, channel: Channel, nonce: str, silence_s: float) -> None:
        self._channel, self._silence_s = channel, silence_s
        self._nonce = nonce.encode()
        self._mark = bundle.login_mark(nonce).encode()
        self._allowance = Allowance(MAX_GREETING)
        self.chatter: deque[str] = deque(maxlen=5)
        self.came = False

    def requested(self) -> None:
        """Takes note of a request: its answer may have all the bytes that one may have."""
        self._allowance = Allowance(MAX_REQUEST)

    def next(self, deadline: float, after_login: float = math.inf) -> dict[str, Any]:
        """The next message; once the login shell is through, before ``after_login`` more seconds are over.

        Raises:
            NoAnswerError: the deadline came first.
            GoneError: the connection ended, or this is nothing that the probe says.
        """
        while True:
            line = self._line(deadline)
            if line.endswith(self._mark):
                self.came = True
                deadline = min(deadline, time.monotonic() + after_login)
                continue
            chatter, framed, text = line.partition(self._nonce)
            if framed:
                message = answers.parsed(text)
                if "silent" in message:
                    raise UnheardError(self._silence_s)
                return message
            if chatter.strip():
                self.chatter.append(chatter[:300].decode(errors="replace"))

    def last_word(self, deadline: float, otherwise: str) -> GoneError:
        """Why a connection takes nothing any more: what the probe said as it ended, if it said so."""
        try:
            while True:
                self.next(deadline)
        except UnheardError as told:
            return told
        except ProbeError:
            return GoneError(otherwise)

    def _line(self, deadline: float) -> bytes:
        try:
            line = self._channel.read_line(deadline)
            self._allowance.spend(line or b"")
        except TimeoutError:
            raise NoAnswerError("no answer in time") from None
        except FloodError as error:
            raise MalformedError(str(error)) from error
        except (OSError, ValueError) as error:
            lost = GoneError(f"the connection broke: {error}")
            lost.failure = error.failure if isinstance(error, LostError) else None
            raise lost from error
        if line is None:
            raise GoneError("the connection ended")
        return line
