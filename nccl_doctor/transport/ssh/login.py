"""The login with paramiko: one key after another, and what to say where none of them opened."""

from __future__ import annotations

import time
from dataclasses import replace

import paramiko

from nccl_doctor.transport.base import remaining
from nccl_doctor.transport.ssh import certificates, failures, login_failures
from nccl_doctor.transport.ssh.config import BeyondError
from nccl_doctor.transport.ssh.identities import Identities, gather
from nccl_doctor.transport.ssh.login_failures import Login
from nccl_doctor.transport.ssh.session import SshSession
from nccl_doctor.transport.ssh.settings import HostSettings
from nccl_doctor.transport.ssh.target import Target


def log_in(
    transport: SshSession, settings: HostSettings, target: Target, span: tuple[float, float], *, alone: bool
) -> None:
    """Logs in with a key.

    Args:
        transport: after the handshake.
        settings: the host's.
        target: how the host is named in what is said of it.
        span: when all began, and when the login must have ended.
        alone: there is no ssh program to leave to it what paramiko can't do.

    Raises:
        AccessError: no key opened, or not in time.
        BeyondError: a key of the agent is beyond paramiko, unless ``alone``.
    """
    started, deadline = span
    try:
        transport.auth_timeout = remaining(deadline) + 1
        with gather(settings, deadline) as identities:
            if identities.beyond and not alone:
                raise BeyondError("a key of the agent")
            login = _try_keys(transport, settings.user, identities)
    except TimeoutError:
        login = None
    if transport.is_authenticated():
        return
    if login is None or time.monotonic() >= deadline:
        raise failures.stalled(target, "the login", deadline - started)
    expired, early = certificates.out_of_time(settings.identity_files)
    raise login_failures.auth_failed(target, replace(login, out_of_time=expired, early=early))


def _try_keys(transport: SshSession, user: str, identities: Identities) -> Login:
    """Offers one key after another; what is left where none opened is what to say about it."""
    offered: list[str] = []
    notes = list(identities.notes)
    methods: list[str] = []
    partial = False
    for identity in identities.keys:
        try:
            methods = transport.auth_publickey(user, identity.key)
        except paramiko.BadAuthenticationType as error:
            methods = error.allowed_types
            break
        except paramiko.AuthenticationException as error:
            if "agree on a pubkey algorithm" in str(error):
                notes.append(f"{identity}: {error}")
                continue
            offered.append(str(identity))
        except (paramiko.SSHException, OSError) as error:
            notes.append(f"{identity} could not be used: {error}")
            if isinstance(error, TimeoutError):
                break
        else:
            partial = bool(methods)
            if partial:
                notes.append(f"accepted, but the server asks for more: {identity}")
            break
        if not transport.is_active():
            break
    aborted = not transport.is_active()
    barred = aborted and bool(offered) and not transport.farewell
    return Login(
        offered=tuple(offered[:-1] if barred else offered),
        encrypted=identities.encrypted,
        notes=tuple(notes),
        methods=tuple(methods or _methods(transport, user)),
        identity_file=identities.public,
        agent=identities.agent,
        aborted=aborted and not barred,
        barred=barred,
        partial=partial,
        exposed=identities.exposed,
        said=transport.said(),
        beyond=identities.beyond,
    )


def _methods(transport: paramiko.Transport, user: str) -> list[str]:
    """What the server would take, which it says when asked for nothing (RFC 4252, section 5.2)."""
    if transport.is_authenticated() or not transport.is_active():
        return []
    try:
        transport.auth_none(user)
    except paramiko.BadAuthenticationType as error:
        return error.allowed_types
    except (paramiko.SSHException, EOFError, OSError):
        return []
    return []
