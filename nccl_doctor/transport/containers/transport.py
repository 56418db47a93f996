"""Runs commands in a container on a host and explains why a command did not start in the container.

The host's shell prints a marker after running its start-up files, and the container's shell prints a second marker. If
the output lacks the marker that the host's shell prints, the login failed. If only the marker of the container's shell
is missing, the container or its runtime failed.
"""

from __future__ import annotations

import base64
import math
import re
import secrets
import shlex
import time
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

from nccl_doctor import probe
from nccl_doctor.model.base import CONTAINER_NAME
from nccl_doctor.model.cluster import Node
from nccl_doctor.model.engines.containers import InsideOptions, Runtime
from nccl_doctor.snapshot.access import AnyAccessFailure, EngineFacts, EngineFailure, ProbeFacts, ProbeFailed
from nccl_doctor.text.hostlist import listed
from nccl_doctor.transport.base import LOGIN_TIMES, AccessError, Channel, Greeting, LostError, Transport

_ENTER: dict[Runtime, str] = {
    "docker": "docker exec -i",
    "podman": "podman exec -i",
    "nerdctl": "nerdctl exec -i",
    "apptainer": "apptainer exec",
}
_LIST: dict[Runtime, str] = {
    "docker": "docker ps --format '{{.Names}}'",
    "podman": "podman ps --format '{{.Names}}'",
    "nerdctl": "nerdctl ps --format '{{.Names}}'",
    "apptainer": "apptainer instance list",
}

KIND = "container-unreachable"
Problem = Literal["missing", "stopped", "paused", "forbidden", "no-runtime", "no-daemon", "no-shell", "late", "failed"]

_MOST = 8
_LAST_WORDS = 200
_SAID: tuple[tuple[Problem, str], ...] = (
    # messages of podman and nerdctl for a missing program contain "not found", too: the specific ones come first
    ("no-shell", r"/bin/sh\W.*(?:not found|no such file)|stat /bin/sh: no such file"),
    ("forbidden", r"permission denied|operation not permitted|must be root|needs? to be run as root"),
    ("missing", r"no such container|no container with name or id|no instance found|/proc/\d+/\S*.* no such file"),
    ("paused", r"is paused|container state paused"),
    ("stopped", r"is not running|is restarting|container state improper|exec sessions on running|in a stopped"),
    ("no-daemon", r"connect to the docker daemon|docker daemon running|containerd not running|connect to podman"),
    ("no-daemon", r"containerd\.sock.*no such file|failed to dial"),
)  # fmt: skip


def program(options: InsideOptions) -> str:
    """Return the name of the host's program that enters the container, such as "docker"."""
    return _prefix(options).partition(" ")[0]


def enter_line(options: InsideOptions, command: str) -> str:
    """Return a line for the host's shell (sh, csh or fish) that runs ``command`` with the container's /bin/sh."""
    return f"exec {_prefix(options)} /bin/sh -c {shlex.quote(command)}"


def listing(options: InsideOptions) -> str | None:
    """Return a shell command that lists running containers, with the name at the beginning of each line.

    The result is None if the runtime can't list containers.
    """
    return None if options.runtime is None or options.runtime not in _LIST else f"exec {_LIST[options.runtime]}"


def _prefix(options: InsideOptions) -> str:
    assert options.runtime is not None, "the host itself needs no way in"
    if options.runtime == "enter":
        return f"{_entering()} {shlex.quote(options.name)}"
    place = f"instance://{shlex.quote(options.name)}" if options.runtime == "apptainer" else shlex.quote(options.name)
    return f"{_ENTER[options.runtime]} {place}"


@cache
def _entering() -> str:
    """Return a command that runs ``probe/enter.py`` with the host's Python.

    The program is encoded in base64, so that no shell changes it.
    """
    packed = base64.b64encode(zlib.compress((files(probe) / "enter.py").read_bytes(), 9)).decode()
    program = f'import base64, zlib; exec(zlib.decompress(base64.b64decode("{packed}")))'
    return f"python3 -I -S -c {shlex.quote(program)}"


class ContainerEntry(NamedTuple):
    """A failed attempt to enter a container, with the output, the program's exit status, and the running containers."""

    options: InsideOptions
    output: Sequence[str]
    status: int | None
    running: Sequence[str] | None = None


def problem(entry: ContainerEntry) -> Problem:
    """Return the reason why the command did not run in the container."""
    enters, text = re.escape(program(entry.options)), "\n".join(entry.output)
    absent = rf"(?:^|[\s:]){enters}: (?:command )?not found|command not found: {enters}|unknown command:? \W*{enters}"
    if re.search(absent, text, re.IGNORECASE | re.MULTILINE):
        return "no-runtime"
    return next((reason for reason, words in _SAID if re.search(words, text, re.IGNORECASE)), "failed")


def failure(entry: ContainerEntry, seconds: float | None = None) -> EngineFailure:
    """Return the failure for an attempt to enter a container.

    ``seconds`` is the time without an answer, or None if the program exited.
    """
    reason = problem(entry) if seconds is None else "late"
    options = entry.options
    facts = EngineFacts.model_validate(
        {"problem": reason, "runtime": options.runtime, "name": options.name, "late": reason == "late"}
    )
    output = next((line.strip()[:_LAST_WORDS] for line in reversed(entry.output) if line.strip()), "")
    names, running = entry.running, ""
    if names is not None:
        running = (
            f" (running containers: {listed(names, _MOST)})"
            if names
            else " (the user who logs in has no running containers)"
        )
    words = {
        "program": program(options),
        "place": options.place,
        "name": options.name,
        "kind": options.place.removeprefix("the "),
        "status": entry.status,
        "seconds": seconds or 0.0,
        "running": running,
        "quoted": f', and said "{output}"' if output else "",
    }
    detail, remedy = (
        (texts.get(f"{reason} {options.runtime}") or texts[reason]).format(**words) for texts in (_DETAIL, _REMEDY)
    )
    return EngineFailure(kind=KIND, detail=detail, evidence=tuple(entry.output), facts=facts, remedy=remedy)


def _problem_of(failure: AnyAccessFailure) -> object:
    """Return the :data:`Problem` of a failure to enter a container, or None if an earlier step failed."""
    return (failure.facts.model_extra or {}).get("problem") if isinstance(failure, EngineFailure) else None


_DETAIL = {
    "missing": "the {kind} does not exist{running}",
    "missing enter": "no process {name} is running on the host",
    "stopped": "{place} is not running{running}",
    "paused": "{place} is paused",
    "forbidden": "the user who logs in may not use {program}{quoted}",
    "forbidden enter": "the user who logs in may not enter {place}",
    "no-runtime": "there is no program {program}",
    "no-daemon": "{program} has no service that answers{quoted}",
    "no-shell": "{place} has no /bin/sh",
    "late": "{program} did not get into {place} in {seconds:.0f} s",
    "failed": "{program} did not get into {place}: it ended with status {status}{quoted}",
}
_REMEDY = {
    "missing": "Give the name of a container that runs on the host, under inside: in the hosts file or with --inside; "
    "podman, nerdctl and apptainer show each user his own alone.",
    "missing enter": "Give the PID of a process of the job, as ps on the host shows it.",
    "stopped": "Start it, on the host:",
    "stopped apptainer": "Start the instance again, on the host (apptainer instance start).",
    "paused": "Let it go on, on the host:",
    "forbidden": "Let that user use {program} on the host, or log in as one who may (ssh: user in the hosts file).",
    "forbidden docker": "Let that user use docker: as root on the host, usermod -aG docker with the user's name, then "
    "log in anew; or log in as one who may (ssh: user in the hosts file).",
    "forbidden enter": "Only root may enter another user's namespaces: log in as root (ssh: user in the hosts file).",
    "no-runtime": "Name what holds the containers on that host (docker, podman, nerdctl, apptainer) under inside: in "
    "the hosts file, or have its folder in the PATH that an SSH command gets.",
    "no-runtime enter": "Install Python 3 on the host itself, which gives up root's rights before a container's shell "
    "runs.",
    "no-daemon": "Start it on the host as root: systemctl start docker; nerdctl wants containerd.",
    "no-shell": "The check needs /bin/sh and Python 3.8 where the job runs: use an image that has them.",
    "late": "See on the host whether {program} answers ({program} ps); restart a service that hangs.",
    "late apptainer": "See on the host whether apptainer answers (apptainer instance list).",
    "late enter": "See on the host whether process {name} hangs in the kernel (state D in ps).",
    "failed": "See on the host what the same command says by hand; -v shows all of its words.",
}


_LISTED, _LINE = 200, 300  # running containers that are listed, and characters per line
_LISTING_S = 5.0
_AGAIN_S, _MOMENT_S = 10.0, 20.0
_TRIES, _PAUSE_S = 4, 1.0
"""Maximum number of attempts if the error message is unknown, and the pause in seconds between attempts.

Unknown messages might occur while a container starts or stops.
"""
_WORDS = 5  # of a host's stderr before the login: the last lines


class InsideTransport:
    """A transport that runs commands in containers on hosts and reaches the hosts through another transport."""

    def __init__(self, outside: Transport) -> None:
        self._outside = outside

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> Channel:
        """Start ``command`` in the node's container, or on the node if no container is set.

        Raise AccessError on failure.
        """
        if node.options(InsideOptions).runtime is None:
            return self._outside.open(node, command, deadline, latest)
        first: AccessError | None = None
        for left in reversed(range(_TRIES)):
            began = time.monotonic()
            try:
                return self._enter(node, command, deadline, latest)
            except AccessError as error:
                why, now = _problem_of(error.failure), time.monotonic()
                if isinstance(error.failure, EngineFailure) and why not in ("failed", "late"):
                    raise
                first = first or error
                # only if as much time is left as this try took: a shorter try would time out again
                rest = min(LOGIN_TIMES * (deadline - now - _PAUSE_S), latest - now - _PAUSE_S)
                if not left or why != "failed" or rest < max(now - began, _PAUSE_S):
                    raise first from None
            time.sleep(_PAUSE_S)
        raise AssertionError("the last try enters or raises")

    def _enter(self, node: Node, command: str, deadline: float, latest: float) -> Channel:
        options = node.options(InsideOptions)
        seconds = LOGIN_TIMES * (deadline - time.monotonic())
        there, inside = (f"ncdoctor-{word}-{secrets.token_hex(8)}" for word in ("host", "inside"))
        line = f"echo {there}; {enter_line(options, f'echo {inside}; {command}')}"
        channel = self._outside.open(node, line, deadline, latest)
        try:
            _await_login(channel, there, options, min(latest, time.monotonic() + seconds))
            self._await_entry(channel, inside, node, min(latest, time.monotonic() + seconds))
        except (OSError, EOFError, ValueError) as error:
            channel.close()
            facts = ProbeFacts(stage="connect")
            raise AccessError(ProbeFailed(detail=f"the connection broke: {error}", facts=facts)) from error
        except BaseException:
            channel.close()
            raise
        return _InsideChannel(channel, lambda deadline: self._why_ended(node, deadline))

    def connect_timeout(self, node: Node) -> float | None:
        return self._outside.connect_timeout(node)

    def close(self) -> None:
        self._outside.close()

    def _why_ended(self, node: Node, deadline: float) -> AnyAccessFailure | None:
        """Return the reason why the container can no longer be entered, or None if the container can be entered.

        The attempt to enter the container might continue after the deadline.
        """
        now = time.monotonic()
        try:
            self.open(node, "exit", now + _AGAIN_S, max(deadline, now + _MOMENT_S)).close()
        except AccessError as error:
            return error.failure if isinstance(error.failure, EngineFailure) else None
        return None

    def _await_entry(self, channel: Channel, mark: str, node: Node, deadline: float) -> None:
        options, seconds = node.options(InsideOptions), deadline - time.monotonic()
        try:
            arrived, output = _read_to(channel, mark, deadline)
        except TimeoutError:
            raise AccessError(failure(ContainerEntry(options, (), None), seconds)) from None
        if arrived:
            return
        entry = ContainerEntry(options, output, channel.exit_status(time.monotonic() + 1))
        if problem(entry) in ("missing", "stopped"):
            entry = entry._replace(running=self._running(node))
        raise AccessError(failure(entry))

    def _running(self, node: Node) -> list[str] | None:
        """Return the names of the running containers on the host, or None if the host can't list its containers."""
        lists = listing(node.options(InsideOptions))
        if lists is None:
            return None
        deadline = time.monotonic() + _LISTING_S
        try:
            channel = self._outside.open(node, lists, deadline)
        except AccessError:
            return None
        try:
            words: list[str] = []
            while len(words) < _LISTED and (line := channel.read_line(deadline)) is not None:
                words += line.decode(errors="replace").strip()[:_LINE].split()[:1]
            ended_well = channel.exit_status(deadline) == 0
        except (OSError, ValueError):
            return None
        finally:
            channel.close()
        return [word for word in words if CONTAINER_NAME.fullmatch(word)] if ended_well else None


class _InsideChannel:
    """A channel to a command in a container.

    After an unexpected end of output, the channel checks whether the container has ended.
    """

    def __init__(self, channel: Channel, why: Callable[[float], AnyAccessFailure | None]) -> None:
        self._channel, self._why, self._closing = channel, why, False
        self.send, self.pulse = channel.send, channel.pulse
        self.stderr_tail, self.exit_status = channel.stderr_tail, channel.exit_status

    def read_line(self, deadline: float) -> bytes | None:
        """Return the next line, or None at the end of the output; raise LostError if the container has ended."""
        line = self._channel.read_line(deadline)
        if line is None and not self._closing and (failure := self._why(deadline)) is not None:
            raise LostError(failure)
        return line

    def close(self) -> None:
        self._closing = True
        self._channel.close()


def _await_login(channel: Channel, mark: str, options: InsideOptions, deadline: float) -> None:
    late = f"{program(options)} did not start in time: the login waits or runs something else"
    try:
        arrived, output = _read_to(channel, mark, deadline)
    except TimeoutError:
        raise AccessError(ProbeFailed(detail=late, facts=ProbeFacts(stage="login", late=True))) from None
    if not arrived:
        words = f', and said "{output[-1][:120]}"' if output else ""
        detail = f"its login ended without starting {program(options)}{words}"
        raise AccessError(ProbeFailed(detail=detail, evidence=output, facts=ProbeFacts(stage="login")))


def _read_to(channel: Channel, mark: str, deadline: float) -> tuple[bool, tuple[str, ...]]:
    """Read output up to the marker. Return whether the marker arrived and, if it did not, the last lines of output."""
    greeting = Greeting(channel.read_line, mark)
    if greeting.ends(deadline):
        return True, ()
    return False, (*greeting.words, *[line for line in channel.stderr_tail().splitlines() if line.strip()][-_WORDS:])
