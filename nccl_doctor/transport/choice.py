"""Which way to which host."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nccl_doctor.model import Node, SshOptions
from nccl_doctor.transport import failures, known_hosts
from nccl_doctor.transport.base import AccessError, Channel, Kind
from nccl_doctor.transport.jumps import split_jump
from nccl_doctor.transport.local import LocalTransport
from nccl_doctor.transport.openssh import OpensshTransport
from nccl_doctor.transport.settings import HostSettings, resolve

if TYPE_CHECKING:
    from nccl_doctor.transport.paramiko_transport import ParamikoTransport


class ChoosingTransport:
    """Local for this machine; else paramiko, or the ``ssh`` program where it is asked for or needed.

    Args:
        kind: "paramiko" and "openssh" leave no choice.
        ssh_config: in place of the user's and the system's.
    """

    def __init__(self, kind: Kind, ssh_config: Path | None = None) -> None:
        self._kind, self._config = kind, ssh_config
        self._settings: dict[tuple[str, SshOptions], HostSettings] = {}
        self._local, self._openssh = LocalTransport(), OpensshTransport(ssh_config)
        self._paramiko = None if kind == "openssh" else _paramiko(self._resolve_jump)

    def open(self, node: Node, command: str, deadline: float) -> Channel:
        """Starts ``command`` on ``node``.

        Raises:
            AccessError: the host was not reached.
        """
        if node.local:
            return self._local.open(node, command, deadline)
        settings = self._resolve(node.address, node.ssh, deadline)
        self._refuse_circle(settings, deadline)
        if self._paramiko is None or (self._kind == "auto" and _beyond_paramiko(settings)):
            return self._openssh.open(settings, node.ssh, command, deadline)
        try:
            return self._paramiko.open(settings, command, deadline)
        except AccessError as error:
            if self._kind != "auto" or not _worth_openssh(error):
                raise
            try:
                return self._openssh.open(settings, node.ssh, command, deadline)
            except AccessError as second:
                if second.failure.kind == error.failure.kind:
                    raise error from None  # it knows more: which keys were passed over, and why
                raise

    def close(self) -> None:
        """Closes the shared connections."""
        if self._paramiko is not None:
            self._paramiko.close()

    def _resolve(self, name: str, options: SshOptions, deadline: float) -> HostSettings:
        key = (name, options)
        if key not in self._settings:
            self._settings[key] = resolve(name, options, deadline, self._config)
        return self._settings[key]

    def _resolve_jump(self, jumps: str, deadline: float) -> HostSettings:
        before, name, options = split_jump(jumps)
        settings = self._resolve(name, options, deadline)
        return replace(settings, proxy_jump=before, proxy_command=None) if before else settings

    def _refuse_circle(self, settings: HostSettings, deadline: float) -> None:
        """Jump hosts that lead back to themselves would have us wait, and ssh start processes, without end."""
        seen: set[str] = set()
        way = settings
        while way.proxy_jump:
            if way.proxy_jump in seen:
                detail = f"is not reached: in the SSH configuration the jump host {way.proxy_jump} leads to itself"
                raise failures.unreachable(settings.target(), "ssh-config", detail)
            seen.add(way.proxy_jump)
            way = self._resolve_jump(way.proxy_jump, deadline)


def _paramiko(resolve_jump: Callable[[str, float], HostSettings]) -> ParamikoTransport:
    from nccl_doctor.transport.paramiko_transport import ParamikoTransport

    return ParamikoTransport(resolve_jump)


def _beyond_paramiko(settings: HostSettings) -> bool:
    """The host is known by its CA alone, or the user logs in by a certificate file."""
    if shutil.which("ssh") is None:
        return False
    if settings.certificate_files:
        return True
    name = known_hosts.entry_name(settings.hostname, settings.port, settings.host_key_alias)
    known = known_hosts.matching(known_hosts.read(settings.user_known_hosts + settings.global_known_hosts), name)
    markers = {entry.marker for entry in known}
    return "@cert-authority" in markers and "" not in markers


def _worth_openssh(error: AccessError) -> bool:
    """The server takes Kerberos, a hardware key was passed over, or the two share no algorithm."""
    facts = error.failure.facts
    if shutil.which("ssh") is None:
        return False
    if error.failure.kind == "ssh-auth-failed":
        return bool(facts["hardware"]) or "gssapi-with-mic" in facts["methods"]
    return facts.get("reason") == "handshake"
