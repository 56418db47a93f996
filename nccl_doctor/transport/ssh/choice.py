"""Chooses how to connect to each host: locally, with paramiko, or with the ssh program."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nccl_doctor.model.cluster import Node
from nccl_doctor.model.engines.base import TransportKind
from nccl_doctor.model.engines.ssh import SshOptions
from nccl_doctor.snapshot.access import SshAuthFailed, SshUnreachable
from nccl_doctor.transport.base import AccessError, Channel
from nccl_doctor.transport.process import LocalTransport
from nccl_doctor.transport.ssh import failures, known_hosts
from nccl_doctor.transport.ssh.config import BeyondError, SshConfigs
from nccl_doctor.transport.ssh.identities import Agents
from nccl_doctor.transport.ssh.openssh import OpensshTransport
from nccl_doctor.transport.ssh.settings import HostSettings, resolve, split_jump, unread_configuration

if TYPE_CHECKING:
    from nccl_doctor.transport.ssh.paramiko_transport import ParamikoTransport

_ASKING_S = 10.0  # time for ``ssh -G``; a Match exec may be slow


class ChoosingTransport:
    """A transport that runs commands locally on this machine, and through paramiko or ``ssh`` on other hosts.

    The ``ssh`` program is used if the user selects it or if paramiko does not support the configuration. With
    ``keeps``, paramiko's connections stay open for later commands with the same options.
    """

    def __init__(self, kind: TransportKind, ssh_config: Path | None = None, *, keeps: bool = False) -> None:
        self._kind, self._config = kind, ssh_config
        self._settings: dict[tuple[str, SshOptions], HostSettings] = {}
        self._answers = SshConfigs(ssh_config)
        self._local, self._openssh = LocalTransport(), OpensshTransport(ssh_config)
        self._either = kind == "auto" and shutil.which("ssh") is not None
        self._agents = Agents()
        self._paramiko: ParamikoTransport | None = None
        if kind != "openssh":
            from nccl_doctor.transport.ssh.paramiko_transport import ParamikoTransport

            self._paramiko = ParamikoTransport(self._resolve_jump, alone=not self._either, keeps=keeps)

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> Channel:
        """Start ``command`` on ``node``; raise AccessError on failure, or ControllerError if the fault is local."""
        if node.local:
            return self._local.open(node, command, deadline)
        try:
            return self._open(node, command, deadline, latest)
        except AccessError as error:
            if unread_configuration(self._config):
                note = (
                    "no SSH configuration was read: OpenSSH's client, which knows what it means, is not installed here"
                )
                failure = error.failure.model_copy(update={"evidence": (*error.failure.evidence, note)})
                raise AccessError(failure) from error
            raise

    def connect_timeout(self, node: Node) -> float | None:
        if node.local:
            return None
        try:
            return self._resolve(node.address, node.options(SshOptions), time.monotonic() + _ASKING_S).connect_timeout
        except AccessError:  # reported when the host is connected to
            return None

    def _open(self, node: Node, command: str, deadline: float, latest: float) -> Channel:
        options, bound = node.options(SshOptions), deadline - time.monotonic()
        settings = self._resolve(node.address, options, deadline)
        hops = self._hops(settings, deadline)
        self._agents.require([settings, *hops])
        deadline = time.monotonic() + bound  # time that ssh -G and the agent took here is not counted for the host
        if self._paramiko is None:
            return self._openssh.open(settings, options, command, deadline, latest)
        beyond = _beyond_paramiko(self._paramiko, [settings, *hops])
        if beyond and self._either:
            return self._openssh.open(settings, options, command, deadline, latest)
        if beyond and beyond != "@cert-authority":  # for that one, paramiko's own verdict is at worst a refusal
            detail = f"is not asked: its SSH configuration sets {beyond}, which only the ssh program honours"
            raise failures.unreachable(settings.target(), "ssh-config", detail)
        try:
            return self._paramiko.open(settings, command, deadline, latest)
        except BeyondError:
            return self._openssh.open(settings, options, command, deadline, latest)
        except AccessError as error:
            if not self._either or not _worth_openssh(error):
                raise
            try:
                return self._openssh.open(settings, options, command, deadline, latest)
            except AccessError as second:
                if second.failure.kind == error.failure.kind:
                    raise error from None  # this error knows which keys were skipped, and why
                raise

    def close(self) -> None:
        """Close the shared connections and the connections that interrupted callers have left open."""
        self._openssh.close()
        if self._paramiko is not None:
            self._paramiko.close()

    def _resolve(self, name: str, options: SshOptions, deadline: float) -> HostSettings:
        key = (name, options)
        if key not in self._settings:
            self._settings[key] = resolve(name, options, deadline, self._config, self._answers)
        return self._settings[key]

    def _resolve_jump(self, jumps: str, deadline: float) -> HostSettings:
        before, name, options = split_jump(jumps)
        settings = self._resolve(name, options, deadline)
        return replace(settings, proxy_jump=before, proxy_command=None) if before else settings

    def _hops(self, settings: HostSettings, deadline: float) -> list[HostSettings]:
        """Return the jump hosts for a host, from last to first, or raise AccessError if the jump hosts form a loop."""
        hops: dict[str, HostSettings] = {}
        way = settings
        while jump := way.proxy_jump:
            if jump in hops:  # we would wait, and ssh start processes, forever
                detail = f"is not reached: in the SSH configuration the jump host {jump} leads to itself"
                raise failures.unreachable(settings.target(), "ssh-config", detail)
            way = hops[jump] = self._resolve_jump(jump, deadline)
        return [*hops.values()]


def _beyond_paramiko(paramiko: ParamikoTransport, way: list[HostSettings]) -> str:
    """Return the names of the settings that only OpenSSH supports, or "" if no host uses such a setting."""
    for host in way:
        if host.beyond:
            return ", ".join(host.beyond)
    for host in way:
        name = known_hosts.entry_name(host.hostname, host.port, host.host_key_alias)
        if paramiko.known_keys(host).has_authority(name):
            return "@cert-authority"
    return ""


def _worth_openssh(error: AccessError) -> bool:
    """Return whether ssh, which supports Kerberos and more algorithms than paramiko, might succeed after ``error``."""
    failure = error.failure
    if isinstance(failure, SshAuthFailed):
        return "gssapi-with-mic" in failure.facts.methods
    return isinstance(failure, SshUnreachable) and failure.facts.reason in ("handshake", "no-algorithm")
