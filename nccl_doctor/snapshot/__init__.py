"""The facts, typed: one document that holds all that was seen, and that checks judge.

Every fact is a value or :class:`Unknown`, which says why nobody could look. ``bool(Unknown)`` raises, so that
"could not look" can't slip through an ``if`` as "no". JSON of an unknown fact: ``{"$unknown": "reason"}``.

One module a subject; everything is imported from here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from nccl_doctor.measured import Load
from nccl_doctor.model import Cluster
from nccl_doctor.snapshot.access import (
    AccessFailure,
    AnyAccessFailure,
    ChangedKeyFacts,
    EngineFacts,
    EngineFailure,
    HostKeyChanged,
    HostKeyUnknown,
    LoginFacts,
    ProbeFacts,
    ProbeFailed,
    PythonFacts,
    PythonMissing,
    PythonProblem,
    Reason,
    SshAuthFailed,
    SshTarget,
    SshUnreachable,
    UnknownKeyFacts,
    UnreachableFacts,
)
from nccl_doctor.snapshot.firewall import Firewalld, FirewallFacts, IptablesSave
from nccl_doctor.snapshot.hosts import Host, HostFacts
from nccl_doctor.snapshot.mesh import Dial, DialOutcome, Mesh, Rail, Sample, Stall
from nccl_doctor.snapshot.names import Answer, Names, Resolution, Resolver, deviations, told_of
from nccl_doctor.snapshot.network import InterfaceAddress, Interfaces, Link, Route, Way
from nccl_doctor.snapshot.ports import PortRange, PortTrial, Process, TcpSocket
from nccl_doctor.snapshot.processes import GpuProcess, TrainingJob
from nccl_doctor.snapshot.smoke import Isolation, RankResult, SizeResult, Smoke, Trial
from nccl_doctor.snapshot.system import (
    Clock,
    ConfigFile,
    Gpu,
    Identity,
    LibncclAnswer,
    PythonInfo,
    ResourceLimits,
    Shm,
    TorchInfo,
)
from nccl_doctor.snapshot.unknown import MALFORMED, PENDING, Fact, Phased, Skipped, Unknown, known, skipped, unknown
from nccl_doctor.snapshot.values import Count, HostAddress, IpAddress, Observed, Seconds

__all__ = [
    "MALFORMED",
    "PENDING",
    "AccessFailure",
    "Answer",
    "AnyAccessFailure",
    "ChangedKeyFacts",
    "Clock",
    "ConfigFile",
    "Dial",
    "DialOutcome",
    "EngineFacts",
    "EngineFailure",
    "Fact",
    "FirewallFacts",
    "Firewalld",
    "Gpu",
    "GpuProcess",
    "Host",
    "HostFacts",
    "HostKeyChanged",
    "HostKeyUnknown",
    "Identity",
    "InterfaceAddress",
    "Interfaces",
    "IptablesSave",
    "Isolation",
    "LibncclAnswer",
    "Link",
    "LoginFacts",
    "Mesh",
    "Names",
    "Phased",
    "PortRange",
    "PortTrial",
    "ProbeFacts",
    "ProbeFailed",
    "Process",
    "PythonFacts",
    "PythonInfo",
    "PythonMissing",
    "PythonProblem",
    "Rail",
    "RankResult",
    "Reason",
    "Resolution",
    "Resolver",
    "ResourceLimits",
    "Route",
    "Sample",
    "Shm",
    "SizeResult",
    "Skipped",
    "Smoke",
    "Snapshot",
    "SshAuthFailed",
    "SshTarget",
    "SshUnreachable",
    "Stall",
    "TcpSocket",
    "TorchInfo",
    "TrainingJob",
    "Trial",
    "Unknown",
    "UnknownKeyFacts",
    "UnreachableFacts",
    "Way",
    "deviations",
    "known",
    "skipped",
    "told_of",
    "unknown",
]


HOST_ADDRESS: TypeAdapter[str] = TypeAdapter(HostAddress)


def _time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


class Snapshot(Observed):
    """All that was seen in one run; judged now, or again by a later release.

    What stands in it fits together, also where it comes out of a file: one host a node, in the cluster's order, and
    dials, ranks and outputs of these hosts alone.

    Attributes:
        resolved: addresses by name of the hosts file, as the machine resolves them that nccl-doctor ran on; asked only
            where a dial failed or a host lacks a name, for what is to be done about that.
        spent: by host and phase, the seconds of the run from which until which the host was busy with it.
        names: what the hosts make of the cluster's names, where a host's own facts say nothing else.
    """

    schema_: Count = Field(default=1, alias="schema", serialization_alias="schema")
    version: str
    taken_at: Annotated[str, AfterValidator(_time)]
    cluster: Cluster
    hosts: tuple[Host, ...]
    mesh: Phased[Mesh]
    smoke: Phased[Smoke]
    timings: dict[str, float] = Field(default_factory=dict)
    resolved: dict[str, tuple[IpAddress, ...]] = Field(default_factory=dict)
    names: dict[str, Answer] = Field(default_factory=dict)
    load: Load | None = None
    spent: dict[str, dict[str, tuple[Seconds, Seconds]]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Snapshot:
        names = [node.name for node in self.cluster.nodes]
        if not names or len(set(names)) != len(names) or [host.name for host in self.hosts] != names:
            raise ValueError("the hosts are not the cluster's nodes")
        for text in (self.cluster.master_addr, *(node.address for node in self.cluster.nodes)):
            HOST_ADDRESS.validate_python(text)
        mesh = self.mesh.names if isinstance(self.mesh, Mesh) else set()
        smoke = self.smoke.names if isinstance(self.smoke, Smoke) else set()
        load = {*self.load.hosts, *self.load.second_try} if self.load else set()
        if not mesh | smoke | load | self.spent.keys() <= set(names):
            raise ValueError("the mesh, the all-reduce, the load or the times name hosts that are not there")
        for host in self.hosts:
            if host.facts is not None and isinstance(host.facts.resolution, Names):
                host.facts.resolution.share(self.names)
        return self

    @property
    def reached(self) -> tuple[Host, ...]:
        """The hosts that answered."""
        return tuple(host for host in self.hosts if host.facts is not None)
