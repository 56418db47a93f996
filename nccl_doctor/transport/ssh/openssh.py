"""Runs commands with the ``ssh`` program: slower by far, but it can all that OpenSSH can."""

from __future__ import annotations

import math
import os
import secrets
import shlex
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nccl_doctor.transport.backoff import pause
from nccl_doctor.transport.base import LOGIN_TIMES, AccessError, Greeting
from nccl_doctor.transport.process import ProcessChannel
from nccl_doctor.transport.ssh import failures
from nccl_doctor.transport.ssh.jumps import QUEUE, Places, split_jump
from nccl_doctor.transport.ssh.openssh_log import Attempt, classify, logs_in
from nccl_doctor.transport.ssh.options import SshOptions
from nccl_doctor.transport.ssh.settings import HostSettings, arguments
from nccl_doctor.transport.ssh.target import Target

_STRICT = ("BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no")
"""Nothing is asked, and no key is added to a known_hosts file."""

_PLAIN = (
    "ControlMaster=no", "ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no",
    "RemoteCommand=none", "RequestTTY=no", "ConnectionAttempts=1", "ServerAliveInterval=15", "ServerAliveCountMax=3",
)  # fmt: skip

_LOG, _LONGEST_LOG = 1 << 20, 16 << 20
"""Bytes that count of what ssh says, from its begin and from its end; a server can have it say more without end."""


class OpensshTransport:
    """Starts one ``ssh`` a host.

    Args:
        config: handed on as ``-F``.
    """

    def __init__(self, config: Path | None = None) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._jumps: dict[str, Places] = {}

    def open(
        self, settings: HostSettings, options: SshOptions, command: str, deadline: float, latest: float = math.inf
    ) -> ProcessChannel:
        """Starts ``command`` on the host that ``settings`` describe.

        Raises:
            AccessError: the host was not reached.
        """
        started, target = time.monotonic(), settings.target()
        bound = deadline - started
        with self._places(settings.proxy_jump).place(QUEUE * bound) as held:
            if not held:
                raise failures.stalled(target, "waiting for its turn at the jump host", QUEUE * bound)
            started = time.monotonic()  # a host's time begins with its turn
            deadline = started + bound
            login = min(latest, started + LOGIN_TIMES * bound)
            attempt = 0
            while True:
                attempt += 1
                try:
                    return self._open(settings, options, command, (started, deadline, login))
                except AccessError as error:
                    if not failures.is_dropped(error) or not pause(attempt, deadline):
                        raise

    def _places(self, jump: str | None) -> Places:
        """Handshakes through one jump host share its places; a host reached directly has its own."""
        if jump is None:
            return Places()
        with self._lock:
            return self._jumps.setdefault(jump, Places())

    def _open(
        self, settings: HostSettings, options: SshOptions, command: str, span: tuple[float, float, float]
    ) -> ProcessChannel:
        started, deadline, login = span
        mark = f"ncdoctor-{secrets.token_hex(8)}"
        # The login shell prints the mark once we are in: without it, ssh's end is a failure to get in.
        command = f"echo {mark}; {command}"
        with _log() as log:
            try:
                argv = [*self._argv(settings, options, deadline, log.path), "--", settings.name, command]
                channel = ProcessChannel(argv, _environment())
                channel.bound_files(_LONGEST_LOG)
            except BlockingIOError:  # fork(2): no further process for us, a fault of this machine's
                raise
            except OSError as error:
                detail = f"was not reached: ssh did not start: {error.strerror}"
                raise failures.unreachable(settings.target(), "failed", detail) from error
            greeting, late = Greeting(channel.read_line, mark), False
            while not late:
                try:
                    if greeting.ends(deadline):
                        return channel
                    if channel.exit_status(deadline) != 255:  # a login shell that runs no command: its words are seen
                        channel.unread([*greeting.lines])
                        return channel
                    break
                except TimeoutError:
                    late = deadline == login or not logs_in(log.text())
                    deadline = deadline if late else login
                except BaseException:
                    channel.close()
                    raise
            seconds = (deadline if late else time.monotonic()) - started  # the bound, which is the same for all hosts
            stderr = channel.stderr_tail()
            channel.close()
            raise classify(Attempt(settings, log.text(), stderr, seconds, late), _last_jump(settings))

    def _argv(self, settings: HostSettings, options: SshOptions, deadline: float, log: str) -> list[str]:
        seconds = (
            math.ceil(max(0.0, deadline - time.monotonic())) + 1
        )  # ours comes first, and knows what was waited for
        argv = ["ssh", "-T", "-v", "-E", log, *(["-F", str(self._config)] if self._config else [])]
        for option in (*_STRICT, *_PLAIN, f"ConnectTimeout={seconds}", _unwritten(settings)):
            argv += ["-o", option]
        if settings.proxy_jump:
            argv += ["-o", f"ProxyCommand={self._through(settings.proxy_jump, seconds)}"]
        return argv + arguments(options)

    def _through(self, jumps: str, seconds: int) -> str:
        """The proxy command that ssh itself makes of ProxyJump, but strict about the jump host's key."""
        before, name, options = split_jump(jumps)
        argv = ["ssh", "-v", *(["-F", str(self._config)] if self._config else [])]
        for option in (*_STRICT, "CheckHostIP=no", f"ConnectTimeout={seconds}"):
            argv += ["-o", option]
        if before:
            argv += ["-o", f"ProxyCommand={self._through(before, seconds)}"]
        line = shlex.join([*argv, *arguments(options)]).replace("%", "%%")
        return f"{line} -W [%h]:%p -- {shlex.quote(name)}"


@dataclass(frozen=True)
class _Log:
    """What ssh says of the connection, apart from what the host's programs say; ``path`` is where it writes it."""

    file: IO[bytes]
    path: str

    def text(self) -> str:
        """All of it so far; without its middle where a host has it grow without end."""
        size = self.file.seek(0, os.SEEK_END)
        self.file.seek(0)
        head = self.file.read(_LOG)
        self.file.seek(max(len(head), size - _LOG))
        return (head + self.file.read(_LOG)).decode(errors="replace")


@contextmanager
def _log() -> Iterator[_Log]:
    """A file without a name, which nothing that ends us leaves behind; a named one where there is no /proc (macOS)."""
    with tempfile.TemporaryFile() as file:
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        if Path(path).exists():
            yield _Log(file, path)
            return
    with tempfile.NamedTemporaryFile(prefix="nccl-doctor-ssh-") as file:
        yield _Log(file, file.name)


def _last_jump(settings: HostSettings) -> Target | None:
    if not settings.proxy_jump:
        return None
    _, name, hop = split_jump(settings.proxy_jump)
    return Target(name, name, hop.port or 22, hop.user or settings.user, hop=True)


def _unwritten(settings: HostSettings) -> str:
    """CheckHostIP has ssh add addresses to the first file of the user's; where that can't be led aside it is off."""
    if "userknownhostsfile" in settings.beyond:
        return "CheckHostIP=no"
    files = " ".join(f'"{path}"' for path in (os.devnull, *settings.user_known_hosts))
    return f"UserKnownHostsFile={files.replace('%', '%%')}"


def _environment() -> dict[str, str]:
    """Ours, in English for :mod:`~nccl_doctor.transport.ssh.openssh_log`, and without a window that asks for a password."""
    return os.environ | {"LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"}
