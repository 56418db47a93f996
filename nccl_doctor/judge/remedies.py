"""Selects the actions of ``nccl-doctor fix``: operations on hosts and job variables in the hosts file."""

from __future__ import annotations

from collections.abc import Mapping

from nccl_doctor.model.engine import ClusterSource, reaching
from nccl_doctor.model.finding import Command, Diagnosis
from nccl_doctor.nccl.gloo import GLOO_SOCKET_IFNAME, gloo_devices_of
from nccl_doctor.snapshot.hosts import Host, Snapshot


def operations(diagnosis: Diagnosis, snapshot: Snapshot) -> tuple[Command, ...]:
    """Return the commands of a diagnosis if ``fix`` can run all of them, or else an empty tuple."""
    fix = diagnosis.fix
    pods = reaching(snapshot.cluster.nodes).name == "kube"
    if fix.variables or not fix.can_be_run or (pods and any(command.host is not None for command in fix.commands)):
        return ()
    return fix.commands


def settings(diagnosis: Diagnosis, snapshot: Snapshot) -> Mapping[str, str]:
    """Return the job variables that fix a diagnosed fault, or an empty mapping if the hosts need different values.

    The result is also empty if the finding concerns only one of several hosts, because variables in the hosts file
    apply to all hosts.
    """
    wanted = diagnosis.fix.variables
    first, *others = wanted.values() or ({},)
    alike = all(each == first for each in others) and (bool(others) or len(snapshot.hosts) == 1)
    if ClusterSource(snapshot.cluster).file is None or not alike:
        return {}
    return first if all(host.name in wanted or _idle(first, host) for host in snapshot.hosts) else {}


def can_be_run(diagnosis: Diagnosis, snapshot: Snapshot) -> bool:
    """Return whether ``fix`` has an action for a diagnosis."""
    return bool(operations(diagnosis, snapshot) or settings(diagnosis, snapshot))


def _idle(variables: Mapping[str, str], host: Host) -> bool:
    """Return whether the variables name only the interface that Gloo would choose on the host by default."""
    devices = gloo_devices_of(host)
    if variables.keys() != {GLOO_SOCKET_IFNAME} or not isinstance(devices, tuple):
        return False
    return [device.name for device in devices] == [variables[GLOO_SOCKET_IFNAME]]
