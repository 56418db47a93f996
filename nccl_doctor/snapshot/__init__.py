"""The facts, typed: one document that holds all that was seen, and that checks judge.

Every fact is a value or :class:`Unknown`, which says why nobody could look. ``bool(Unknown)`` raises, so that
"could not look" can't slip through an ``if`` as "no". JSON of an unknown fact: ``{"$unknown": "reason"}``.

One module a subject; everything is imported from here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationInfo, field_validator, model_validator

from nccl_doctor.model.base import HostAddress, IpAddress, Observed, Seconds
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.report import Load
from nccl_doctor.snapshot.access import AccessFailure as AccessFailure
from nccl_doctor.snapshot.access import AnyAccessFailure as AnyAccessFailure
from nccl_doctor.snapshot.access import ChangedKeyFacts as ChangedKeyFacts
from nccl_doctor.snapshot.access import EngineFacts as EngineFacts
from nccl_doctor.snapshot.access import EngineFailure as EngineFailure
from nccl_doctor.snapshot.access import HostKeyChanged as HostKeyChanged
from nccl_doctor.snapshot.access import HostKeyUnknown as HostKeyUnknown
from nccl_doctor.snapshot.access import LoginFacts as LoginFacts
from nccl_doctor.snapshot.access import ProbeFacts as ProbeFacts
from nccl_doctor.snapshot.access import ProbeFailed as ProbeFailed
from nccl_doctor.snapshot.access import PythonFacts as PythonFacts
from nccl_doctor.snapshot.access import PythonMissing as PythonMissing
from nccl_doctor.snapshot.access import PythonProblem as PythonProblem
from nccl_doctor.snapshot.access import Reason as Reason
from nccl_doctor.snapshot.access import SshAuthFailed as SshAuthFailed
from nccl_doctor.snapshot.access import SshTarget as SshTarget
from nccl_doctor.snapshot.access import SshUnreachable as SshUnreachable
from nccl_doctor.snapshot.access import UnknownKeyFacts as UnknownKeyFacts
from nccl_doctor.snapshot.access import UnreachableFacts as UnreachableFacts
from nccl_doctor.snapshot.container import Outside as Outside
from nccl_doctor.snapshot.container import Surroundings as Surroundings
from nccl_doctor.snapshot.hosts import Host as Host
from nccl_doctor.snapshot.hosts import HostFacts as HostFacts
from nccl_doctor.snapshot.mesh import Interception as Interception
from nccl_doctor.snapshot.mesh import Mesh as Mesh
from nccl_doctor.snapshot.mesh import Rail as Rail
from nccl_doctor.snapshot.mesh import Sample as Sample
from nccl_doctor.snapshot.mesh import Stall as Stall
from nccl_doctor.snapshot.names import Names as Names
from nccl_doctor.snapshot.names import Resolution as Resolution
from nccl_doctor.snapshot.names import Resolver as Resolver
from nccl_doctor.snapshot.names import ResolverAnswer as ResolverAnswer
from nccl_doctor.snapshot.names import deviations as deviations
from nccl_doctor.snapshot.names import told_of as told_of
from nccl_doctor.snapshot.network import Firewalld as Firewalld
from nccl_doctor.snapshot.network import FirewallFacts as FirewallFacts
from nccl_doctor.snapshot.network import InterfaceAddress as InterfaceAddress
from nccl_doctor.snapshot.network import Interfaces as Interfaces
from nccl_doctor.snapshot.network import IptablesSave as IptablesSave
from nccl_doctor.snapshot.network import Link as Link
from nccl_doctor.snapshot.network import Route as Route
from nccl_doctor.snapshot.network import Way as Way
from nccl_doctor.snapshot.smoke import Smoke as Smoke
from nccl_doctor.snapshot.system import Clock as Clock
from nccl_doctor.snapshot.system import ConfigFile as ConfigFile
from nccl_doctor.snapshot.system import Gpu as Gpu
from nccl_doctor.snapshot.system import GpuProcess as GpuProcess
from nccl_doctor.snapshot.system import Identity as Identity
from nccl_doctor.snapshot.system import LibncclAnswer as LibncclAnswer
from nccl_doctor.snapshot.system import PortRange as PortRange
from nccl_doctor.snapshot.system import PortTrial as PortTrial
from nccl_doctor.snapshot.system import Process as Process
from nccl_doctor.snapshot.system import PythonInfo as PythonInfo
from nccl_doctor.snapshot.system import ResourceLimits as ResourceLimits
from nccl_doctor.snapshot.system import Shm as Shm
from nccl_doctor.snapshot.system import TcpSocket as TcpSocket
from nccl_doctor.snapshot.system import TorchInfo as TorchInfo
from nccl_doctor.snapshot.system import TrainingJob as TrainingJob
from nccl_doctor.snapshot.unknown import MALFORMED as MALFORMED
from nccl_doctor.snapshot.unknown import NOT_ASKED as NOT_ASKED
from nccl_doctor.snapshot.unknown import PENDING as PENDING
from nccl_doctor.snapshot.unknown import Fact as Fact
from nccl_doctor.snapshot.unknown import Phased as Phased
from nccl_doctor.snapshot.unknown import Skipped as Skipped
from nccl_doctor.snapshot.unknown import Unknown as Unknown
from nccl_doctor.snapshot.unknown import known as known
from nccl_doctor.snapshot.unknown import skipped as skipped
from nccl_doctor.snapshot.unknown import unknown as unknown

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

    schema_: Literal[1] = Field(default=1, alias="schema", serialization_alias="schema")
    version: str
    taken_at: Annotated[str, AfterValidator(_time)]
    cluster: Cluster
    names: dict[str, ResolverAnswer] = Field(default_factory=dict)
    hosts: tuple[Host, ...]
    mesh: Phased[Mesh]
    smoke: Phased[Smoke]
    timings: dict[str, Seconds] = Field(default_factory=dict)
    resolved: dict[str, tuple[IpAddress, ...]] = Field(default_factory=dict)
    load: Load | None = None
    spent: dict[str, dict[str, tuple[Seconds, Seconds]]] = Field(default_factory=dict)

    @field_validator("hosts")
    @classmethod
    def _beside_names(cls, hosts: tuple[Host, ...], info: ValidationInfo) -> tuple[Host, ...]:
        return tuple(host.beside(info.data.get("names", {})) for host in hosts)

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
        return self

    @property
    def reached(self) -> tuple[Host, ...]:
        """The hosts that answered."""
        return tuple(host for host in self.hosts if host.facts is not None)
