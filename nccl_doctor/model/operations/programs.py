"""Operations on services, containers, Kubernetes objects, processes, and the job's own settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nccl_doctor.model.operation import SLOW_S, UNKNOWN, Operation, StateLines, all_of, in_turn
from nccl_doctor.text.shell import Line, line, script


@dataclass(frozen=True)
class ServiceStart(Operation):
    """An operation that starts a systemd service immediately and enables it for each boot."""

    unit: str
    survives_reboot: ClassVar[bool | None] = True

    @property
    def line(self) -> Line | None:
        return line("systemctl enable --now {unit}", unit=self.unit)

    @property
    def look(self) -> Line | None:
        """The command that prints whether the service is enabled and active. A failed service counts as inactive."""
        there = script("command -v systemctl >/dev/null || exit {unknown}", unknown=UNKNOWN)
        enabled = line("systemctl is-enabled {unit}", unit=self.unit)
        # the undo stops a service, which leaves it inactive even if it had failed before
        active = line("systemctl is-active {unit} | sed 's/^failed$/inactive/'", unit=self.unit)
        return in_turn([there, enabled, active, script(":")])

    @property
    def expected(self) -> StateLines:
        return ("enabled", "active")

    def undo(self, before: StateLines) -> Line | None:
        """Return the lines that restore the service's previous state: stopped, disabled, or both."""
        verbs = [("disable", before[:1] == ("disabled",)), ("stop", before[1:2] == ("inactive",))]
        return all_of([line("systemctl {verb} {unit}", verb=verb, unit=self.unit) for verb, was in verbs if was])


@dataclass(frozen=True)
class ContainerStart(Operation):
    """An operation that starts or unpauses a container, depending on ``verb``.

    The operation does not check the program that runs in the container.
    """

    runtime: str
    verb: str
    name: str
    root: ClassVar[bool] = False

    @property
    def line(self) -> Line | None:
        return line("{runtime} {verb} {name}", runtime=self.runtime, verb=self.verb, name=self.name)


@dataclass(frozen=True)
class KubeApply(Operation):
    """An operation that creates or changes a Kubernetes object. ``text`` is the object as JSON."""

    text: str
    root: ClassVar[bool] = False
    survives_reboot: ClassVar[bool | None] = True

    @property
    def line(self) -> Line | None:
        return line("printf %s {text} | kubectl apply -f -", text=self.text)


@dataclass(frozen=True)
class ServicePatch(Operation):
    """An operation that makes a Kubernetes Service publish the DNS names of pods before the pods are ready."""

    name: str
    namespace: str
    root: ClassVar[bool] = False
    survives_reboot: ClassVar[bool | None] = True

    @property
    def line(self) -> Line | None:
        early = '{"spec":{"publishNotReadyAddresses":true}}'
        patch = "kubectl patch service {name} -n {namespace} -p {early}"
        return line(patch, name=self.name, namespace=self.namespace, early=early)


@dataclass(frozen=True)
class EndJob(Operation):
    """An operation that ends the user's leftover job with ``fix-port --kill``, but never with ``--force``.

    Attributes:
        text: the fix-port command that ends the job.
        pid: PID of a process of the job. ``ticks`` is the start time of this process in clock ticks since boot.
        port: the port that the job occupies, or None if the port does not matter.
    """

    text: Line
    host: str
    pid: int
    ticks: int
    port: int | None = None
    root: ClassVar[bool] = False
    survives_reboot: ClassVar[bool | None] = None
    ends_process: ClassVar[bool] = True
    deadline_s: ClassVar[float] = SLOW_S

    @property
    def line(self) -> Line | None:
        """``nccl-doctor fix-port … --kill --yes``."""
        return self.text
