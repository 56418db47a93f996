"""The keys to log in with, in the order in which they are tried. Nothing is ever asked of a person."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentSSH
from paramiko.pkey import UnknownKeyType

from nccl_doctor.transport import known_hosts
from nccl_doctor.transport.base import remaining
from nccl_doctor.transport.settings import HostSettings, expand


@dataclass(frozen=True)
class Identity:
    """A key, and how to call it: where it is from, its type and fingerprint."""

    key: paramiko.PKey
    source: str

    def __str__(self) -> str:
        return f"{self.source} ({self.key.get_name()} {known_hosts.fingerprint(self.key.asbytes())})"


@dataclass(frozen=True)
class Identities:
    """What there is to try.

    Attributes:
        encrypted: files that need a passphrase and whose public part no agent key matches.
        notes: other files that are passed over, with the reason.
        hardware: a file of a hardware key (sk-…), which only the ssh program can use.
        public: the file to install on a host; None where there is none.
        agent: an agent answered.
    """

    keys: tuple[Identity, ...] = ()
    encrypted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    hardware: bool = False
    public: str | None = None
    agent: bool = False


class _Agent(AgentSSH):
    """An agent at a given socket; paramiko's own takes $SSH_AUTH_SOCK alone and waits for it without end."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connect(connection)  # type: ignore[attr-defined]  # not in the stubs


@contextmanager
def gather(settings: HostSettings, deadline: float) -> Iterator[Identities]:
    """The keys for a host: files that the user named, then the agent's, then the default files.

    A file whose key the agent holds is left to the agent; the agent's connection lives as long as the context.
    """
    connection = _agent_socket(settings, deadline)
    try:
        agent = [] if connection is None else _agent_keys(connection)
        yield _order(settings, agent, answered=connection is not None)
    finally:
        if connection is not None:
            connection.close()


def _agent_socket(settings: HostSettings, deadline: float) -> socket.socket | None:
    where = settings.identity_agent or "SSH_AUTH_SOCK"
    if where == "SSH_AUTH_SOCK":
        where = "$SSH_AUTH_SOCK"
    path = os.environ.get(where[1:].strip("{}"), "") if where.startswith("$") else where
    if path in ("", "none"):
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(remaining(deadline))
        connection.connect(str(expand(path)))
    except OSError:  # a variable left over from an agent that is gone
        connection.close()
        return None
    return connection


def _agent_keys(connection: socket.socket) -> list[Identity]:
    try:
        keys = _Agent(connection).get_keys()
    except (OSError, paramiko.SSHException):
        return []
    return [Identity(key, f"agent: {key.comment or 'key'}") for key in keys]


def _order(settings: HostSettings, agent: list[Identity], *, answered: bool) -> Identities:
    held = {identity.key.asbytes(): identity for identity in agent}
    files: list[Identity] = []
    encrypted: list[str] = []
    notes: list[str] = []
    hardware = False
    public: list[str] = []
    for path in settings.identity_files:
        if not path.exists():
            if settings.chosen_keys:
                notes.append(f"{path} does not exist")
            continue
        public.append(str(path))
        blob = _public_blob(path)
        if blob in held:
            files.append(held[blob])
            continue
        if known_hosts.key_type(blob).startswith("sk-"):
            hardware = True
            notes.append(f"{path} is a hardware key")
            continue
        key = _load(path)
        if isinstance(key, paramiko.PKey):
            files.append(held.get(key.asbytes(), Identity(key, str(path))))
        elif key is None:
            encrypted.append(str(path))
        else:
            notes.append(f"{path}: {key}")
    rest = [] if settings.identities_only and settings.chosen_keys else [key for key in agent if key not in files]
    keys = (*files, *rest) if settings.chosen_keys else (*agent, *(key for key in files if key not in agent))
    return Identities(keys, tuple(encrypted), tuple(notes), hardware, next(iter(public), None), answered)


def _public_blob(path: Path) -> bytes:
    """The key of the ``.pub`` file beside; empty where there is none."""
    try:
        text = Path(f"{path}.pub").read_text("utf-8", errors="replace")
    except OSError:
        return b""
    entry = next(known_hosts.parse(path, f"- {text}"), None)
    return entry.key if entry else b""


def _load(path: Path) -> paramiko.PKey | str | None:
    """The key of a file; None where it needs a passphrase; else what is wrong with it."""
    try:
        return paramiko.PKey.from_path(path)
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography's word for "needs a password"
        return None
    except OSError as error:
        return error.strerror or "unreadable"
    except (ValueError, paramiko.SSHException, UnknownKeyType, UnsupportedAlgorithm):
        return "no private key of a kind that can be used here"
