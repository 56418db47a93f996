"""Connects with the ``ssh`` program, which is slower than paramiko but supports all options.

The module interprets the messages that ``ssh -v`` from OpenSSH 7.4 to 10 prints in the C locale.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shlex
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from nccl_doctor.model.engines.ssh import SshOptions
from nccl_doctor.snapshot.access import Reason
from nccl_doctor.transport.base import LOGIN_TIMES, AccessError, Greeting, close_all, pause
from nccl_doctor.transport.process import ProcessChannel, english
from nccl_doctor.transport.ssh import failures, identities
from nccl_doctor.transport.ssh.failures import Login, SshDestination
from nccl_doctor.transport.ssh.settings import QUEUE, HostSettings, Places, arguments, split_jump

_SERVER_KEY = re.compile(r"Server host key: (\S+) (SHA256:\S+)")
_OFFENDING = re.compile(r"Offending (?:\S+ )?key(?: for IP)? in (.+?):(\d+)")
_REVOKED = re.compile(r"REVOKED HOST KEY|was revoked and you have requested")
_CONTINUE = re.compile(r"Authentications that can continue: (\S+)")
_ACCEPTED = re.compile(r"Server accepts key: (/\S+)")  # without a login: nobody could enter its passphrase
_PARTIAL = "with partial success"
_EXPOSED = re.compile(r"Permissions 0\d+ for '([^']+)' are too open")
_OFFERED = re.compile(r"Offering public key: (.+)")
_AGENT = "get_agent_identities: agent returned"
_OWN = re.compile(
    r"debug\d: |(?:\S+@)?\S+: Permission denied|Connection (?:closed|reset) |Received disconnect |Disconnected from "
)
_GREETED = re.compile(r"Remote protocol version|Remote software version")
_HANDSHAKEN = re.compile(r"SSH2_MSG_NEWKEYS received|master session id")
_SAID = re.compile(r"banner line \d+: (.*)")
_HUNG_UP = re.compile(r"exchange_identification|Connection (closed|reset)|closed by remote host|banner line")
_NO_COMMON = re.compile(r"no matching (\w[\w ]{1,40}) found\. Their offer: (\S+)")
_LET_IN = re.compile(r"^Authenticated to ", re.MULTILINE)
_NO_GREETING = re.compile(rf"timed out during banner exchange|{_HUNG_UP.pattern}")
_RESOLVED = re.compile(r"debug1: Connecting to (\S+) \[([^\]]*)\] port (\d+)")

_SORTS = {"key exchange method": "key exchange", "host key type": "host key algorithm"}
"""Names of algorithm kinds for use in nccl-doctor's messages, keyed by ssh's names.

For kinds that are not listed, nccl-doctor's messages use ssh's names.
"""


@dataclass(frozen=True)
class FailedSsh:
    """A failed run of ssh, with ssh's own messages in ``log``, and messages of servers and jump hosts in ``stderr``.

    ``late`` is true if nccl-doctor ended ssh at the deadline.
    """

    settings: HostSettings
    log: str
    stderr: str
    seconds: float
    late: bool


def classify(attempt: FailedSsh, jump: SshDestination | None = None) -> AccessError:
    """Return the failure that the messages of an ssh run describe.

    A failure at the last jump host is attributed to ``jump``.
    """
    if jump is not None and not _GREETED.search(attempt.log):
        through = re.search(r"open failed: (.*)", attempt.stderr)
        # each jump host behind another one reports its proxy command
        inside = len(_LET_IN.findall(attempt.stderr)) > attempt.stderr.count("debug1: Executing proxy command")
        if through is None and inside and (attempt.late or _NO_GREETING.search(attempt.log)):
            return _greeting(attempt, attempt.settings.target(), attempt.log, _last_words(attempt.log))
        if through is None:
            match = _RESOLVED.search(attempt.stderr)
            jump = replace(jump, address=match[1], port=int(match[3])) if match else jump
            return _of_log(replace(attempt, log=attempt.stderr, stderr=""), jump)
        reason = failures.reason_of(through[0]) or "failed"
        return failures.not_forwarded(attempt.settings.target(), reason, through[1])
    return _of_log(attempt, attempt.settings.target())


def logs_in(log: str) -> bool:
    """Return whether the log shows a completed handshake, which is always the case with an open ControlMaster."""
    return _HANDSHAKEN.search(log) is not None


def _of_log(attempt: FailedSsh, target: SshDestination) -> AccessError:
    details = attempt, target, attempt.log
    return _host_key(*details) or _login(*details) or _session(*details) or _connection(*details)


def _host_key(attempt: FailedSsh, target: SshDestination, log: str) -> AccessError | None:
    if "Host key verification failed" not in log:
        return None
    server = _SERVER_KEY.findall(log)
    key_type, fingerprint = server[-1] if server else ("", "")
    offending = _OFFENDING.search(log)
    if offending or _REVOKED.search(log):
        file, line = (offending[1], int(offending[2])) if offending else (str(attempt.settings.own_known_hosts), 0)
        return failures.key_mismatch(
            target, where=(file, line), new=(key_type, fingerprint), old=None, revoked=bool(_REVOKED.search(log))
        )
    return failures.host_key_unknown(target, key_type, fingerprint, attempt.settings.own_known_hosts)


def _login(attempt: FailedSsh, target: SshDestination, log: str) -> AccessError | None:
    # the server's messages during the login, which ssh prints among its own
    message = "\n".join(line for line in attempt.stderr.splitlines() if not _OWN.match(line))
    # the server accepted a key and then disconnected, as it does if PAM's account rules say no
    _, key, after = log.rpartition("Server accepts key: ")
    hung_up = re.search(r"^Connection (closed|reset) ", after, re.MULTILINE)
    if not attempt.late and key and hung_up is not None and "Authenticated" not in after:
        return failures.auth_failed(target, Login(barred=True, message=message, agent=_AGENT in log))
    methods, accepted = _CONTINUE.findall(log), tuple(_ACCEPTED.findall(log))
    if attempt.late or not ("Permission denied" in log or "Too many authentication failures" in log):
        return None
    partial, exposed = _PARTIAL in log, tuple(dict.fromkeys(_EXPOSED.findall(log)))
    files = attempt.settings.identity_files
    existing = [path for path in files if path.exists()]
    expired, early = identities.out_of_time(existing)
    login = Login(
        offered=tuple(key for key in _OFFERED.findall(log) if key.split()[0] not in accepted),
        encrypted=() if partial else tuple(key for key in accepted if key not in exposed),
        methods=tuple(methods[-1].split(",")) if methods else (),
        notes=tuple(f"{path} does not exist" for path in files if attempt.settings.chosen_keys and not path.exists()),
        identity_file=next(map(str, existing), None),
        agent=_AGENT in log,
        message=message,
        aborted="Too many authentication failures" in log,
        partial=partial,
        exposed=exposed,
        out_of_time=expired,
        early=early,
    )
    return failures.auth_failed(target, login)


def _session(attempt: FailedSsh, target: SshDestination, log: str) -> AccessError | None:
    if not _GREETED.search(log):
        return None
    if attempt.late:
        return failures.stalled(target, "the login", attempt.seconds)
    refused = re.search(r"Session open refused by peer|channel \d+: open failed: (.*)", log)
    if refused:
        return failures.unreachable(target, "no-session", evidence=(f"it said: {refused[0]}",))
    words = _last_words(log)
    nothing = _NO_COMMON.search(words)
    if nothing:
        return failures.no_common(target, _SORTS.get(nothing[1], nothing[1]), nothing[2])
    return failures.broken(target, "the SSH session", words)


def _connection(attempt: FailedSsh, target: SshDestination, log: str) -> AccessError:
    words = _last_words(log)
    if "Connection established" in log:
        return _greeting(attempt, target, log, words)
    if attempt.settings.proxy_command and not target.hop:
        message = (attempt.stderr.strip() or words)[-2048:]
        cause: Reason = "timed-out" if attempt.late else failures.reason_of(message) or "proxy"
        return failures.unreachable(target, cause, "was not reached: its ProxyCommand failed", (message,))
    reason = failures.reason_of(words)
    if attempt.late or reason == "timed-out":
        return failures.timed_out(target, attempt.seconds)
    if reason is None:
        return failures.unreachable(target, "failed", "could not be reached with ssh", (words,) if words else ())
    return failures.unreachable(target, reason, evidence=(words,))


def _greeting(attempt: FailedSsh, target: SshDestination, log: str, words: str) -> AccessError:
    """Return the failure for a connection that was established but on which no SSH greeting arrived."""
    if attempt.late or "timed out during banner exchange" in log:
        return failures.silent(target, attempt.seconds)
    if not _HUNG_UP.search(log):  # ssh itself gave up, for example because of an unset variable in the configuration
        return failures.unreachable(
            target, "ssh-config", "is not asked: ssh ended by itself", (words,) if words else ()
        )
    message = "; ".join(_SAID.findall(log))
    if (message or "Bad remote protocol" in log) and not failures.says_dropped(message):
        return failures.unreachable(target, "not-ssh", evidence=(f'it said "{message or words}"',))
    return failures.dropped(target, message)


def _last_words(log: str) -> str:
    lines = [line.strip() for line in log.splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("debug")), "")


_STRICT = ("BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no")
"""Options that prevent ssh from prompting the user and from adding keys to known_hosts files."""
_PLAIN = (
    "ControlMaster=no", "ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no",
    "RemoteCommand=none", "RequestTTY=no", "ConnectionAttempts=1", "ServerAliveInterval=15", "ServerAliveCountMax=3",
)  # fmt: skip

_LOG, _LONGEST_LOG = 1 << 20, 16 << 20
"""Maximum number of bytes to read from each end of ssh's log, and maximum size of the log file in bytes.

Without a limit, a server could cause ssh to write any number of messages.
"""


class OpensshTransport:
    """A transport that starts one ``ssh`` process per host."""

    def __init__(self, config: Path | None = None) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._jumps: dict[str, Places] = {}
        self._entering: set[ProcessChannel] = set()

    def open(
        self, settings: HostSettings, options: SshOptions, command: str, deadline: float, latest: float = math.inf
    ) -> ProcessChannel:
        """Start ``command`` on the host, or raise AccessError if the host can't be reached."""
        started, target = time.monotonic(), settings.target()
        bound = deadline - started
        with self._places(settings.proxy_jump).place(target, QUEUE * bound):
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

    def close(self) -> None:
        """End the unfinished logins of callers that were interrupted."""
        with self._lock:
            entering, self._entering = [*self._entering], set()
        for channel in entering:
            channel.grace_s = 0.0  # the end of its input means nothing to a login shell
        close_all(login.close for login in entering)

    def _places(self, jump: str | None) -> Places:
        """Return the handshake slots that hosts behind a jump host share.

        A host without a jump host gets separate slots.
        """
        if jump is None:
            return Places()
        with self._lock:
            return self._jumps.setdefault(jump, Places())

    def _open(
        self, settings: HostSettings, options: SshOptions, command: str, span: tuple[float, float, float]
    ) -> ProcessChannel:
        started, deadline, login = span
        mark = f"ncdoctor-{secrets.token_hex(8)}"
        # The login shell prints the mark once we are logged in: without it, ssh's end counts as a failed login.
        command = f"echo {mark}; {command}"
        with _log() as log:
            try:
                argv = [*self._argv(settings, options, deadline, log.path), "--", settings.name, command]
                # in English for classify(), and without a window that asks for a password
                channel = ProcessChannel(argv, english() | {"SSH_ASKPASS_REQUIRE": "never"})
                channel.bound_files(_LONGEST_LOG)
                with self._lock:
                    self._entering.add(channel)
            except BlockingIOError:  # fork(2) failed: no more processes for this user, a fault of this machine
                raise
            except OSError as error:
                detail = f"was not reached: ssh did not start: {error.strerror}"
                raise failures.unreachable(settings.target(), "failed", detail) from error
            greeting, late = Greeting(channel.read_line, mark), False
            while not late:
                try:
                    if greeting.ends(deadline):
                        self._entered(channel)
                        return channel
                    # a login shell that runs no command: its output is visible
                    if channel.exit_status(deadline) != 255:
                        channel.unread([*greeting.lines])
                        self._entered(channel)
                        return channel
                    break
                except TimeoutError:
                    late = deadline == login or not logs_in(log.text())
                    deadline = deadline if late else login
                except BaseException:
                    channel.close()
                    self._entered(channel)
                    raise
            seconds = (deadline if late else time.monotonic()) - started  # the limit, which is the same for all hosts
            stderr = channel.stderr_tail()
            channel.close()
            self._entered(channel)
            attempt, jump = FailedSsh(settings, log.text(), stderr, seconds, late), None
            if settings.proxy_jump:
                _, name, hop = split_jump(settings.proxy_jump)
                jump = SshDestination(name, name, hop.port or 22, hop.user or settings.user, hop=True)
            raise classify(attempt, jump)

    def _entered(self, channel: ProcessChannel) -> None:
        """Stop tracking a channel that its owner will close."""
        with self._lock:
            self._entering.discard(channel)

    def _argv(self, settings: HostSettings, options: SshOptions, deadline: float, log: str) -> list[str]:
        seconds = (
            math.ceil(max(0.0, deadline - time.monotonic())) + 1
        )  # ours comes first, and names what was waited for
        argv = ["ssh", "-T", "-v", "-E", log, *(["-F", str(self._config)] if self._config else [])]
        for option in (*_STRICT, *_PLAIN, f"ConnectTimeout={seconds}", _unwritten(settings)):
            argv += ["-o", option]
        if settings.proxy_jump:
            argv += ["-o", f"ProxyCommand={self._through(settings.proxy_jump, seconds)}"]
        return argv + arguments(options)

    def _through(self, jumps: str, seconds: int) -> str:
        """Return the proxy command that ssh uses for ProxyJump, but with strict checking of the jump host's key."""
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
    """The log file for ssh's own messages, which are kept separate from the host's output."""

    file: IO[bytes]
    path: str

    def text(self) -> str:
        """Return the messages so far, without the middle part if the log is too long."""
        size = self.file.seek(0, os.SEEK_END)
        self.file.seek(0)
        head = self.file.read(_LOG)
        self.file.seek(max(len(head), size - _LOG))
        return (head + self.file.read(_LOG)).decode(errors="replace")


@contextmanager
def _log() -> Iterator[_Log]:
    """Yield a log in an unnamed file, which disappears with this process.

    On systems without /proc, such as macOS, the log is a named file.
    """
    with tempfile.TemporaryFile() as file:
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        if Path(path).exists():
            yield _Log(file, path)
            return
    with tempfile.NamedTemporaryFile(prefix="nccl-doctor-ssh-") as file:
        yield _Log(file, file.name)


def _unwritten(settings: HostSettings) -> str:
    """Return an option that prevents ssh from adding addresses to the user's first known_hosts file (CheckHostIP)."""
    if "userknownhostsfile" in settings.beyond:
        return "CheckHostIP=no"
    files = " ".join(f'"{path}"' for path in (os.devnull, *settings.user_known_hosts))
    return f"UserKnownHostsFile={files.replace('%', '%%')}"
