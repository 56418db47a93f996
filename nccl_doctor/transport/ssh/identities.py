"""Collects the keys for a login in the order in which they are tried, without prompting the user."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import SSHCertificate, load_ssh_public_identity
from paramiko.agent import AgentSSH
from paramiko.pkey import UnknownKeyType

from nccl_doctor.errors import ControllerError
from nccl_doctor.transport.base import remaining
from nccl_doctor.transport.ssh import known_hosts
from nccl_doctor.transport.ssh.settings import HostSettings

PLAIN_TYPES = frozenset(  # keys that are neither certificates nor in hardware
    ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-dss")
)


@dataclass(frozen=True)
class OfferedKey:
    """A key for a login, and the key's source, which is an agent or a file."""

    key: paramiko.PKey
    source: str

    def __str__(self) -> str:
        return f"{self.source} ({self.key.get_name()} {known_hosts.fingerprint(self.key.asbytes())})"


class _Agent(AgentSSH):
    """A client for an ssh-agent that listens on a given socket.

    paramiko's own agent class supports only $SSH_AUTH_SOCK and has no time limit.
    """

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connect(connection)  # type: ignore[attr-defined]  # not in the stubs


@contextmanager
def gather(settings: HostSettings, deadline: float) -> Iterator[Identities]:
    """Yield the keys for a host in ssh's order (pubkey_prepare in sshconnect2.c), and keep the agent connected.

    The agent's keys that match a configured file come first, followed by the agent's other keys and the keys in other
    files. A key from the hosts file precedes all other keys, so that an agent with many keys does not exhaust the
    server's limit on attempts.
    """
    agent: list[OfferedKey] = []
    answered = False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        if (path := _agent_path(settings)) is not None:
            # otherwise the variable is left over from an agent that has exited
            with contextlib.suppress(OSError, paramiko.SSHException):
                connection.settimeout(remaining(deadline))
                connection.connect(path)
                answered = True
                agent = [OfferedKey(key, f"agent: {key.comment or 'key'}") for key in _Agent(connection).get_keys()]
        yield Identities(settings, agent, answered=answered)


def _agent_path(settings: HostSettings) -> str | None:
    path = settings.identity_agent or os.environ.get("SSH_AUTH_SOCK", "")
    return None if path in ("", "none") else path


AGENT_S = 3.0  # time for an agent to list its keys, which takes milliseconds; longer on a busy machine
_LONGEST_S, _AGAIN_S = 15.0, 0.1
_REQUEST_IDENTITIES = b"\0\0\0\1\x0b"  # SSH_AGENTC_REQUEST_IDENTITIES after its length (OpenSSH's PROTOCOL.agent)


class Agents:
    """The SSH agents whose keys are used for logins.

    Each agent is tested only once, in advance, because ssh would otherwise wait for an unresponsive agent at each
    login.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent: dict[str, float | None] = {}

    def require(self, way: Iterable[HostSettings]) -> None:
        """Raise ControllerError if a login to a host or its jump hosts would wait for an unresponsive agent."""
        for settings in way:
            path = _agent_path(settings)
            if path is None or "controlpath" in settings.beyond:
                continue
            with self._lock:
                if path not in self._silent:
                    self._silent[path] = _silent_for(path)
                waited = self._silent[path]
            if waited is None:
                continue
            where, without = "IdentityAgent of the SSH configuration", "IdentityAgent none there"
            if settings.identity_agent is None:
                where, without = "SSH_AUTH_SOCK", "env -u SSH_AUTH_SOCK nccl-doctor ..."
            raise ControllerError(
                f"the ssh-agent at {path} ({where}) did not answer in {waited:.0f} s, and ssh to any host waits for "
                f"it: unlock it, or end it and start another; or go without it, by key files alone: {without}"
            )


def _silent_for(path: str) -> float | None:
    """Return for how many seconds an agent did not answer, or None if the agent answered or does not exist."""
    bound = min(_LONGEST_S, AGENT_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
    end = time.monotonic() + bound
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            while True:
                connection.settimeout(remaining(end))
                try:
                    connection.connect(path)
                    break
                except BlockingIOError:  # too many connections wait for it already
                    time.sleep(_AGAIN_S)
            connection.sendall(_REQUEST_IDENTITIES)
            connection.settimeout(remaining(end))
            connection.recv(1)
        except TimeoutError:
            return bound
        except OSError:  # a variable left over from an agent that has exited
            return None
    return None


class Identities:
    """The keys from an agent and from files, in the order in which they are tried."""

    def __init__(self, settings: HostSettings, agent: list[OfferedKey], *, answered: bool) -> None:
        self._settings, self._held, self.agent = settings, agent, answered
        public = [_public_blob(path) for path in settings.identity_files]
        self._named = [identity for identity in agent if identity.key.asbytes() in public]
        self._files: list[tuple[Path, OfferedKey]] = []
        self.encrypted: list[str] = []  # files that need a passphrase and match no agent key
        self.exposed: list[str] = []  # files that others may read
        self.notes: list[str] = []  # other skipped files, with the reason
        # some keys only the ssh program can use: hardware keys (sk-…), certificates in the agent
        self.beyond = any(identity.key.get_name() not in PLAIN_TYPES for identity in agent)
        # the file to install on a host
        self.public = next((str(path) for path in settings.identity_files if path.exists()), None)
        for path in settings.identity_files:
            self._add(path)
        rest = [] if settings.identities_only else [key for key in agent if key not in self._named]
        keys = [*self._named, *rest, *(identity for _, identity in self._files)]
        self.keys = [identity for identity in keys if self._allowed(identity)]
        first = settings.identity_file
        if first is not None:
            blob = _public_blob(first)
            ids = {id(identity) for path, identity in self._files if path == first}
            self.keys.sort(key=lambda identity: not (id(identity) in ids or (blob and identity.key.asbytes() == blob)))

    def _add(self, path: Path) -> None:
        if not path.exists():
            self.notes += [f"{path} does not exist"] if self._settings.chosen_keys else []
            return
        blob = _public_blob(path)
        if blob in (identity.key.asbytes() for identity in self._held):
            return
        if known_hosts.key_type(blob).startswith("sk-"):
            self.beyond = True
            self.notes.append(f"{path} is a hardware key")
            return
        if _exposed(path):
            self.exposed.append(str(path))
            return
        key = _load(path)
        if isinstance(key, paramiko.PKey):
            self._add_key(path, key, blob)
        elif key is None:
            self.encrypted.append(str(path))
        else:
            self.notes.append(f"{path}: {key}")

    def _add_key(self, path: Path, key: paramiko.PKey, blob: bytes) -> None:
        if blob and key.asbytes() != blob:
            self.notes.append(f"{path}: {path}.pub holds another key, and ssh goes by that")
            return
        held = next((identity for identity in self._held if identity.key.asbytes() == key.asbytes()), None)
        if held is None:
            self._files.append((path, OfferedKey(key, str(path))))
        elif held not in self._named:
            self._named.append(held)

    def _allowed(self, identity: OfferedKey) -> bool:
        """Return whether PubkeyAcceptedAlgorithms and RequiredRSASize allow the key."""
        kind = identity.key.get_name()
        accepted = self._settings.algorithms.get("pubkeys")
        names = {kind, "rsa-sha2-256", "rsa-sha2-512"} if kind == "ssh-rsa" else {kind}
        short = kind == "ssh-rsa" and identity.key.get_bits() < self._settings.least_rsa_bits
        if short or (accepted is not None and not names & set(accepted)):
            self.notes.append(f"{identity} is of a kind that the SSH configuration does not allow")
            return False
        return True


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _public_blob(path: Path) -> bytes:
    """Return the public key for a key file, or b"" if no public key is found.

    The key is read from the file itself or from its .pub file.

    The search follows ``sshkey_load_public`` in OpenSSH's authfile.c.
    """
    return _public_key(path, _read(path), _read(Path(f"{path}.pub")))


@lru_cache(64)  # all logins read the same few files
def _public_key(path: Path, *texts: str) -> bytes:
    for text in texts:
        entry = next(known_hosts.parse(path, f"- {text}"), None)
        if entry is not None:
            return entry.key
    lines = texts[0].strip().splitlines()
    if not lines or "BEGIN OPENSSH PRIVATE KEY" not in lines[0]:
        return b""
    try:  # the public half in an OpenSSH private key (PROTOCOL.key), which is not encrypted
        message = paramiko.Message(base64.b64decode("".join(lines[1:-1])).removeprefix(b"openssh-key-v1\0"))
    except ValueError:
        return b""
    for _ in ("cipher", "key derivation", "its options"):
        message.get_binary()
    message.get_int()  # the number of keys, always 1
    return message.get_binary()


def _exposed(path: Path) -> bool:
    """Return whether ssh ignores a private key because other users may read the file (sshkey_perm_ok in authfile.c)."""
    try:
        status = path.stat()
    except OSError:  # reported when it is read
        return False
    return status.st_uid == os.getuid() and bool(status.st_mode & 0o077)


def _load(path: Path) -> paramiko.PKey | str | None:
    """Return the key in a file, None if the key needs a passphrase, or a phrase that says why the key can't be used."""
    try:
        return _private_key(path, path.read_bytes())
    except OSError as error:
        return error.strerror or "unreadable"


@lru_cache(64)
def _private_key(path: Path, _content: bytes) -> paramiko.PKey | str | None:
    try:
        return paramiko.PKey.from_path(path)
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography's exception for "needs a password"
        return None
    except (ValueError, paramiko.SSHException, UnknownKeyType, UnsupportedAlgorithm):
        return "no private key of a kind that can be used here"


class OutOfTime(NamedTuple):
    """Phrases for certificates that have expired and for certificates that are not valid yet."""

    expired: tuple[str, ...] = ()
    early: tuple[str, ...] = ()


def out_of_time(keys: Iterable[Path], now: datetime | None = None) -> OutOfTime:
    """Return phrases for those certificates of the keys (FILE-cert.pub) that have expired or are not valid yet."""
    moment = (now or datetime.now(timezone.utc)).timestamp()
    expired: list[str] = []
    early: list[str] = []
    for path in (Path(f"{key}-cert.pub") for key in keys):
        try:
            certificate = load_ssh_public_identity(path.read_bytes())
        except (OSError, ValueError, UnsupportedAlgorithm):  # there is none, or it can't be read
            continue
        if not isinstance(certificate, SSHCertificate):
            continue
        if moment >= certificate.valid_before:
            expired.append(f"the certificate {path} expired on {_shown(certificate.valid_before)}")
        elif moment < certificate.valid_after:
            early.append(f"the certificate {path} is not valid before {_shown(certificate.valid_after)}")
    return OutOfTime(tuple(expired), tuple(early))


def _shown(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"
