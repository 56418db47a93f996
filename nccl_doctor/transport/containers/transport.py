"""Runs commands in a node's container, on the host that another transport reaches.

The host's shell says a word once it is through its start-up files, and the container's shell another one: what comes
to nothing before the first is the login's fault, between the two that of the container or its runtime.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator
from itertools import islice

from nccl_doctor.model.cluster import Node
from nccl_doctor.snapshot import AnyAccessFailure, EngineFailure, ProbeFacts, ProbeFailed
from nccl_doctor.snapshot.values import CONTAINER_NAME
from nccl_doctor.transport.base import LOGIN_TIMES, AccessError, Channel, Greeting, LostError, Transport
from nccl_doctor.transport.containers import failures as inside_failures
from nccl_doctor.transport.containers.failures import Entry
from nccl_doctor.transport.containers.options import InsideOptions

_LISTED, _LINE = 200, 300
"""Containers that run on a host, and characters of the line of one."""
_LISTING_S = 5.0
_AGAIN_S, _MOMENT_S = 10.0, 20.0
_TRIES, _PAUSE_S = 4, 1.0
"""Where the runtime says what nobody knows: while it stops or starts a container, its words are of all kinds."""
_WORDS = 5
"""Of what a host says on stderr before it lets us in: the last lines."""


class InsideTransport:
    """Wraps the transport that reaches the hosts."""

    def __init__(self, outside: Transport) -> None:
        self._outside = outside

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> Channel:
        """Starts ``command`` in the node's container; on the node itself where it names none.

        Raises:
            AccessError: the host was not reached, or the container not entered.
        """
        if node.options(InsideOptions).runtime is None:
            return self._outside.open(node, command, deadline, latest)
        first: AccessError | None = None
        for left in reversed(range(_TRIES)):
            began = time.monotonic()
            try:
                return self._enter(node, command, deadline, latest)
            except AccessError as error:
                if inside_failures.explains(error.failure):
                    raise
                first = first or error
                if not (left and inside_failures.puzzles(error.failure) and _as_long_again(began, deadline, latest)):
                    raise first from None
            time.sleep(_PAUSE_S)
        raise AssertionError("the last try enters or raises")

    def _enter(self, node: Node, command: str, deadline: float, latest: float) -> Channel:
        options = node.options(InsideOptions)
        seconds = LOGIN_TIMES * (deadline - time.monotonic())
        there, inside = (f"ncdoctor-{word}-{secrets.token_hex(8)}" for word in ("host", "inside"))
        line = f"echo {there}; {options.line(f'echo {inside}; {command}')}"
        channel = self._outside.open(node, line, deadline, latest)
        try:
            _await_login(channel, there, options, min(latest, time.monotonic() + seconds))
            self._await_entry(channel, inside, node, (time.monotonic(), min(latest, time.monotonic() + seconds)))
        except (OSError, EOFError, ValueError) as error:
            channel.close()
            facts = ProbeFacts(stage="connect")
            raise AccessError(ProbeFailed(detail=f"the connection broke: {error}", facts=facts)) from error
        except BaseException:
            channel.close()
            raise
        return _InsideChannel(channel, lambda deadline: self._why_ended(node, deadline))

    def connect_timeout(self, node: Node) -> float | None:
        """As the transport outside has it."""
        return self._outside.connect_timeout(node)

    def close(self) -> None:
        """Closes the transport outside."""
        self._outside.close()

    def _why_ended(self, node: Node, deadline: float) -> AnyAccessFailure | None:
        """Why the container can't be entered any more; None where it can. Past the deadline it has a moment still."""
        now = time.monotonic()
        try:
            self.open(node, "exit", now + _AGAIN_S, max(deadline, now + _MOMENT_S)).close()
        except AccessError as error:
            return error.failure if isinstance(error.failure, EngineFailure) else None
        return None

    def _await_entry(self, channel: Channel, mark: str, node: Node, span: tuple[float, float]) -> None:
        options, (began, deadline) = node.options(InsideOptions), span
        try:
            arrived, said = _read_to(channel, mark, deadline)
        except TimeoutError:
            raise AccessError(inside_failures.late(options, deadline - began)) from None
        if arrived:
            return
        entry = Entry(options, said, channel.exit_status(time.monotonic() + 1))
        if inside_failures.problem(entry) in ("missing", "stopped"):
            entry = entry._replace(running=self._running(node))
        raise AccessError(inside_failures.failure(entry))

    def _running(self, node: Node) -> list[str] | None:
        """The containers that run on the host; None where it does not tell."""
        listing = node.options(InsideOptions).listing()
        if listing is None:
            return None
        deadline = time.monotonic() + _LISTING_S
        try:
            channel = self._outside.open(node, listing, deadline)
        except AccessError:
            return None
        try:
            words = [line.split()[0] for line in islice(_lines(channel, deadline), _LISTED)]
            ended_well = channel.exit_status(deadline) == 0
        except (OSError, ValueError):
            return None
        finally:
            channel.close()
        return [word for word in words if CONTAINER_NAME.fullmatch(word)] if ended_well else None


class _InsideChannel:
    """A channel into a container: an end that nobody asked for is looked into, for the container may have ended."""

    def __init__(self, channel: Channel, why: Callable[[float], AnyAccessFailure | None]) -> None:
        self._channel, self._why, self._closing = channel, why, False
        self.send, self.pulse = channel.send, channel.pulse
        self.stderr_tail, self.exit_status = channel.stderr_tail, channel.exit_status

    def read_line(self, deadline: float) -> bytes | None:
        """The next line; None at the end of output.

        Raises:
            LostError: the container has ended.
        """
        line = self._channel.read_line(deadline)
        if line is None and not self._closing and (failure := self._why(deadline)) is not None:
            raise LostError(failure)
        return line

    def close(self) -> None:
        """Ends the command."""
        self._closing = True
        self._channel.close()


def _as_long_again(began: float, deadline: float, latest: float) -> bool:
    """Whether after a pause there is as much time as a try took that began then: a shorter one only ends too late."""
    now = time.monotonic()
    left = min(LOGIN_TIMES * (deadline - now - _PAUSE_S), latest - now - _PAUSE_S)
    return left >= max(now - began, _PAUSE_S)


def _await_login(channel: Channel, mark: str, options: InsideOptions, deadline: float) -> None:
    """Waits until the host's shell is through its start-up files.

    Raises:
        AccessError: it never is.
    """
    late = f"{options.program} did not start in time: the login waits or runs something else"
    try:
        arrived, said = _read_to(channel, mark, deadline)
    except TimeoutError:
        raise AccessError(ProbeFailed(detail=late, facts=ProbeFacts(stage="login", late=True))) from None
    if not arrived:
        words = f', and said "{said[-1][:120]}"' if said else ""
        detail = f"its login ended without starting {options.program}{words}"
        raise AccessError(ProbeFailed(detail=detail, evidence=said, facts=ProbeFacts(stage="login")))


def _read_to(channel: Channel, mark: str, deadline: float) -> tuple[bool, tuple[str, ...]]:
    """Whether a line ends with the mark, and where the output ended without it, the last words."""
    greeting = Greeting(channel.read_line, mark)
    if greeting.ends(deadline):
        return True, ()
    return False, (*greeting.words, *[line for line in channel.stderr_tail().splitlines() if line.strip()][-_WORDS:])


def _lines(channel: Channel, deadline: float) -> Iterator[str]:
    """What comes until the end of output, without empty lines."""
    while (line := channel.read_line(deadline)) is not None:
        text = line.decode(errors="replace").strip()
        if text:
            yield text[:_LINE]
