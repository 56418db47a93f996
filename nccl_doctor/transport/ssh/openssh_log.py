"""What ``ssh -v`` says of an attempt that failed. Its words are OpenSSH 7.4 to 10 in the C locale."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from nccl_doctor.snapshot import Reason
from nccl_doctor.transport.base import AccessError
from nccl_doctor.transport.ssh import certificates, failures, host_key_failures, login_failures
from nccl_doctor.transport.ssh.login_failures import Login
from nccl_doctor.transport.ssh.settings import HostSettings
from nccl_doctor.transport.ssh.target import Target

_SERVER_KEY = re.compile(r"Server host key: (\S+) (SHA256:\S+)")
_OFFENDING = re.compile(r"Offending (?:\S+ )?key(?: for IP)? in (.+?):(\d+)")
_REVOKED = re.compile(r"REVOKED HOST KEY|was revoked and you have requested")
_CONTINUE = re.compile(r"Authentications that can continue: (\S+)")
_ACCEPTED = re.compile(r"Server accepts key: (/\S+)")  # and yet no login: nobody could type its passphrase
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
"""ssh's words for a sort of algorithms, where ours differ (handshake.py)."""


@dataclass(frozen=True)
class Attempt:
    """One run of ssh that came to nothing.

    Attributes:
        log: what ssh itself said.
        stderr: what else came: of jump hosts' ssh, or a proxy command.
        late: we ended it at the deadline, after ``seconds``.
    """

    settings: HostSettings
    log: str
    stderr: str
    seconds: float
    late: bool


def classify(attempt: Attempt, jump: Target | None = None) -> AccessError:
    """The failure that the attempt shows; that of ``jump``, the last jump host, where the way ended there."""
    if jump is not None and not _GREETED.search(attempt.log):
        through = re.search(r"open failed: (.*)", attempt.stderr)
        if through is None and _let_in(attempt.stderr) and (attempt.late or _NO_GREETING.search(attempt.log)):
            return _greeting(attempt, attempt.settings.target(), attempt.log, _last_words(attempt.log))
        if through is None:
            inner = replace(attempt, log=attempt.stderr, stderr="")
            return _of_log(inner, _addressed(jump, inner.log))
        reason = failures.reason_of(through[0]) or "failed"
        return failures.not_forwarded(attempt.settings.target(), reason, through[1])
    return _of_log(attempt, attempt.settings.target())


def logs_in(log: str) -> bool:
    """Whether the handshake is over; an open ControlMaster has had its own."""
    return _HANDSHAKEN.search(log) is not None


def _let_in(hops: str) -> bool:
    """Whether all jump hosts on the way let us in; each that is itself behind one tells of its proxy command."""
    return len(_LET_IN.findall(hops)) > hops.count("debug1: Executing proxy command")


def _of_log(attempt: Attempt, target: Target) -> AccessError:
    log = attempt.log
    for judge in (_host_key, _login, _session):
        failure = judge(attempt, target, log)
        if failure is not None:
            return failure
    return _connection(attempt, target, log)


def _host_key(attempt: Attempt, target: Target, log: str) -> AccessError | None:
    if "Host key verification failed" not in log:
        return None
    server = _SERVER_KEY.findall(log)
    key_type, fingerprint = server[-1] if server else ("", "")
    offending = _OFFENDING.search(log)
    if offending or _REVOKED.search(log):
        file, line = (offending[1], int(offending[2])) if offending else (str(attempt.settings.own_known_hosts), 0)
        return host_key_failures.key_mismatch(
            target, where=(file, line), new=(key_type, fingerprint), old=None, revoked=bool(_REVOKED.search(log))
        )
    return host_key_failures.host_key_unknown(target, key_type, fingerprint, attempt.settings.own_known_hosts)


def _login(attempt: Attempt, target: Target, log: str) -> AccessError | None:
    if not attempt.late and _barred(log):
        return login_failures.auth_failed(target, Login(barred=True, said=_said(attempt.stderr), agent=_AGENT in log))
    methods, accepted = _CONTINUE.findall(log), tuple(_ACCEPTED.findall(log))
    if attempt.late or not ("Permission denied" in log or "Too many authentication failures" in log):
        return None
    partial, exposed = _PARTIAL in log, tuple(dict.fromkeys(_EXPOSED.findall(log)))
    files = attempt.settings.identity_files
    existing = [path for path in files if path.exists()]
    expired, early = certificates.out_of_time(existing)
    login = Login(
        offered=tuple(key for key in _OFFERED.findall(log) if key.split()[0] not in accepted),
        encrypted=() if partial else tuple(key for key in accepted if key not in exposed),
        methods=tuple(methods[-1].split(",")) if methods else (),
        notes=tuple(f"{path} does not exist" for path in files if attempt.settings.chosen_keys and not path.exists()),
        identity_file=next(map(str, existing), None),
        agent=_AGENT in log,
        said=_said(attempt.stderr),
        aborted="Too many authentication failures" in log,
        partial=partial,
        exposed=exposed,
        out_of_time=expired,
        early=early,
    )
    return login_failures.auth_failed(target, login)


def _barred(log: str) -> bool:
    """The server took a key and then hung up, as it does where PAM's account rules say no."""
    _, taken, after = log.rpartition("Server accepts key: ")
    hung_up = re.search(r"^Connection (closed|reset) ", after, re.MULTILINE)
    return bool(taken) and hung_up is not None and "Authenticated" not in after


def _said(stderr: str) -> str:
    """What the server showed during the login: ssh hands it on among its own words."""
    return "\n".join(line for line in stderr.splitlines() if not _OWN.match(line))


def _session(attempt: Attempt, target: Target, log: str) -> AccessError | None:
    """The server greeted, and what came of it was no session."""
    if not _GREETED.search(log):
        return None
    if attempt.late:
        return failures.stalled(target, "the login", attempt.seconds)
    refused = re.search(r"Session open refused by peer|channel \d+: open failed: (.*)", log)
    if refused:
        return failures.no_session(target, refused[0])
    words = _last_words(log)
    nothing = _NO_COMMON.search(words)
    if nothing:
        return failures.no_common(target, _SORTS.get(nothing[1], nothing[1]), nothing[2])
    return failures.broken(target, "the SSH session", words)


def _connection(attempt: Attempt, target: Target, log: str) -> AccessError:
    """The server did not greet."""
    words = _last_words(log)
    if "Connection established" in log:
        return _greeting(attempt, target, log, words)
    if attempt.settings.proxy_command and not target.hop:
        said = (attempt.stderr.strip() or words)[-2048:]
        cause: Reason = "timed-out" if attempt.late else failures.reason_of(said) or "proxy"
        return failures.unreachable(target, cause, "was not reached: its ProxyCommand failed", (said,))
    reason = failures.reason_of(words)
    if attempt.late or reason == "timed-out":
        return failures.timed_out(target, attempt.seconds)
    if reason is None:
        return failures.unreachable(target, "failed", "could not be connected to with ssh", (words,) if words else ())
    return failures.unreachable(target, reason, evidence=(words,))


def _greeting(attempt: Attempt, target: Target, log: str, words: str) -> AccessError:
    """The connection stood, and no SSH greeting came."""
    if attempt.late or "timed out during banner exchange" in log:
        return failures.silent(target, attempt.seconds)
    if not _HUNG_UP.search(log):  # ssh itself gave up, as for a variable in the configuration that is not set
        return failures.unreachable(
            target, "ssh-config", "is not asked: ssh ended by itself", (words,) if words else ()
        )
    said = "; ".join(_SAID.findall(log))
    if (said or "Bad remote protocol" in log) and not failures.says_dropped(said):
        return failures.unreachable(target, "not-ssh", evidence=(f'it said "{said or words}"',))
    return failures.dropped(target, said)


def _last_words(log: str) -> str:
    """The last line that is no debugging."""
    lines = [line.strip() for line in log.splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("debug")), "")


def _addressed(jump: Target, log: str) -> Target:
    """The jump host with the address that its ssh connected to."""
    found = _RESOLVED.search(log)
    return replace(jump, address=found[1], port=int(found[3])) if found else jump
