"""The surroundings of a job on a host: a container and its host, a Slurm step, pods and policies of a cluster."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from nccl_doctor.model.base import (
    ContainerName,
    Count,
    Fact,
    FrozenModel,
    IpAddress,
    IpNetwork,
    Observed,
    Path,
    Port,
    unknown,
)
from nccl_doctor.snapshot.system import ResourceLimits


class Surroundings(Observed):
    """Facts about the container in which the probe runs."""

    # the network namespace, "net:[4026531840]"; the same for all processes in it, on the host and not
    network: str | None
    # GPUs' and RDMA's by path; None for one that opens, else why not: "EACCES", "EPERM", "ENXIO", …
    devices: dict[Path, str | None]


class Outside(Observed):
    """Facts about the host itself, if the probe runs in a container."""

    # what holds the container: "docker", …; "enter" for a process' namespaces
    runtime: Literal["docker", "podman", "nerdctl", "apptainer", "enter"]
    name: ContainerName  # the container's, or the PID; ``place`` are the words for it, "the docker container train"
    place: str
    network: str | None  # as :class:`Surroundings` has it
    hostname: str
    limits: ResourceLimits | None  # of a process started over SSH there; None where /proc does not tell
    shm_bytes: Count | None  # the size of /dev/shm
    devices: tuple[Path, ...]  # GPUs' and RDMA's, which were not opened there
    names: tuple[str, ...]  # those of the cluster that /etc/hosts knows
    # of the process whose namespaces the probe entered, which does not share its limits with that
    job_limits: ResourceLimits | None = None


class StepLimits(Observed):
    """The resources of a node that a process of a Slurm job may use."""

    cpus: Count  # CPUs that it may run on, or the time of so many, whichever is less
    memory_bytes: Count | None = None  # for all processes of the step or the job together; None where nothing bounds it


Label = Annotated[str, Field(max_length=320)]


class Service(Observed):
    """A Service of the namespace; a headless one defines names for its pods."""

    name: str
    headless: bool
    selector: dict[Label, Label] = Field(default_factory=dict)  # empty where it chooses no pods itself
    early: bool = False  # ``publishNotReadyAddresses``: pods have their names before they are ready


class Expression(Observed):
    """An entry of a selector's ``matchExpressions``."""

    key: Label
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[Label, ...] = ()


class Selector(Observed):
    """A selector of objects by labels; an empty one selects all."""

    labels: dict[Label, Label] = Field(
        default_factory=dict, validation_alias="matchLabels", serialization_alias="matchLabels"
    )
    expressions: tuple[Expression, ...] = Field(
        default=(), validation_alias="matchExpressions", serialization_alias="matchExpressions"
    )


class Block(Observed):
    """An address block with exceptions."""

    cidr: IpNetwork
    without: tuple[IpNetwork, ...] = Field(default=(), validation_alias="except", serialization_alias="except")


class Peer(Observed):
    """Peers that a rule admits: pods in selected namespaces, or addresses."""

    pods: Selector | None = Field(default=None, validation_alias="podSelector", serialization_alias="podSelector")
    namespaces: Selector | None = Field(
        default=None, validation_alias="namespaceSelector", serialization_alias="namespaceSelector"
    )
    block: Block | None = Field(default=None, validation_alias="ipBlock", serialization_alias="ipBlock")


class PolicyPort(Observed):
    """Ports of a rule: a number with the end of its range, the name of a container port, or None for all."""

    protocol: str = "TCP"
    port: Port | Label | None = None
    end: Port | None = Field(default=None, validation_alias="endPort", serialization_alias="endPort")


class Rule(Observed):
    """A rule of a policy, which admits these peers on these ports; an empty list means all."""

    peers: tuple[Peer, ...] = ()
    ports: tuple[PolicyPort, ...] = ()


class Policy(Observed):
    """A NetworkPolicy (networking.k8s.io/v1)."""

    name: str
    pods: Selector  # which pods of its namespace it is for; what no rule lets through to or from them is dropped
    # its rules for what comes in; None where it says nothing of that. ``egress`` likewise
    ingress: tuple[Rule, ...] | None = None
    egress: tuple[Rule, ...] | None = None


class PodFacts(Observed):
    """A pod in the list of pods."""

    pod: str
    namespace: str
    container: str  # where the probe ran
    machine: str | None = None  # the node under it; None where it has none yet
    owner: str = ""
    unready: str | None = None  # why the cluster calls it not ready though its container runs; None where it is ready
    host_network: bool = False
    networks: tuple[str, ...] = ()  # those that Multus gave it besides its own
    shm_volume: str = ""
    # the bound of an ``emptyDir`` at /dev/shm; None where it has no bound. ``shm_volume`` is its name, empty where none
    # is mounted there
    shm_bytes: Count | None = None
    # what its container may use of ``nvidia.com/gpu``, ``rdma/…`` and the like
    devices: dict[str, Count] = Field(default_factory=dict)
    capabilities: tuple[str, ...] = ()  # what was added to its root's; ``privileged`` means all
    privileged: bool = False
    containers: tuple[str, ...] = ()  # all that run in it, sidecars among them
    labels: dict[str, str] = Field(default_factory=dict)
    addresses: tuple[IpAddress, ...] = ()
    hostname: str = ""
    subdomain: str = ""
    ports: dict[str, Count] = Field(default_factory=dict)  # those of its containers that have a name, for policies
    # names of those that its container's spec sets: the job's own, by its controller or its author
    variables: tuple[str, ...] = ()


class KubeFacts(FrozenModel):
    """Facts about all pods."""

    engine: ClassVar[str] = "kube"

    namespace: str = ""
    asked: tuple[str, ...] = ()  # the words of the command line that chose them
    pods: dict[str, PodFacts] = Field(default_factory=dict)  # by node's name
    # of their namespace, as ``policies`` and ``namespace_labels``
    services: Fact[tuple[Service, ...]] = unknown("not asked")
    policies: Fact[tuple[Policy, ...]] = unknown("not asked")
    namespace_labels: Fact[dict[str, str]] = unknown("not asked")
