"""The facts, typed: one document that holds all that was seen, and that checks judge.

Every fact is a value or :class:`Unknown`, which says why nobody could look. ``bool(Unknown)`` raises, so that
"could not look" can't slip through an ``if`` as "no". JSON of an unknown fact: ``{"$unknown": "reason"}``.

One module a subject; everything is imported from here.
"""

from __future__ import annotations

from pydantic import Field

from nccl_doctor.model import Cluster, Noun
from nccl_doctor.snapshot.firewall import Firewalld, FirewallFacts, IptablesSave
from nccl_doctor.snapshot.hosts import AccessFailure, Host, HostFacts
from nccl_doctor.snapshot.mesh import Dial, DialOutcome, Mesh, Stall
from nccl_doctor.snapshot.network import InterfaceAddress, Interfaces, Link, Resolution, Route
from nccl_doctor.snapshot.ports import PortRange, PortTrial, Process, TcpSocket
from nccl_doctor.snapshot.processes import GpuProcess, TrainingJob
from nccl_doctor.snapshot.smoke import Isolation, RankResult, SizeResult, Smoke, Trial
from nccl_doctor.snapshot.system import (
    Clock,
    ConfigFile,
    Gpu,
    Identity,
    LibncclAnswer,
    Limits,
    PythonInfo,
    Shm,
    TorchInfo,
)
from nccl_doctor.snapshot.unknown import MALFORMED, Fact, Phased, Skipped, Unknown, skipped, unknown

__all__ = [
    "MALFORMED",
    "AccessFailure",
    "Clock",
    "ConfigFile",
    "Dial",
    "DialOutcome",
    "Fact",
    "FirewallFacts",
    "Firewalld",
    "Gpu",
    "GpuProcess",
    "Host",
    "HostFacts",
    "Identity",
    "InterfaceAddress",
    "Interfaces",
    "IptablesSave",
    "Isolation",
    "LibncclAnswer",
    "Limits",
    "Link",
    "Mesh",
    "Phased",
    "PortRange",
    "PortTrial",
    "Process",
    "PythonInfo",
    "RankResult",
    "Resolution",
    "Route",
    "Shm",
    "SizeResult",
    "Skipped",
    "Smoke",
    "Snapshot",
    "Stall",
    "TcpSocket",
    "TorchInfo",
    "TrainingJob",
    "Trial",
    "Unknown",
    "skipped",
    "unknown",
]


class Snapshot(Noun):
    """All that was seen in one run; judged now, or again by a later release."""

    schema_: int = Field(default=1, alias="schema", serialization_alias="schema")
    version: str
    taken_at: str
    cluster: Cluster
    hosts: tuple[Host, ...]
    mesh: Phased[Mesh]
    smoke: Phased[Smoke]
    timings: dict[str, float] = Field(default_factory=dict)

    @property
    def reached(self) -> tuple[Host, ...]:
        """The hosts that answered."""
        return tuple(host for host in self.hosts if host.facts is not None)
