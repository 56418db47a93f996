"""Models of a job's environment: a container and its host, a Slurm step, or pods and network policies."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from nccl_doctor.model.base import (
    ContainerName,
    Count,
    Fact,
    Fleeting,
    FrozenModel,
    HostPath,
    IpAddress,
    IpNetwork,
    Observed,
    Port,
    unknown,
)
from nccl_doctor.snapshot.system import ResourceLimits


class Surroundings(Observed):
    """Facts about the container in which the probe runs."""

    # identifier of the network namespace, "net:[4026531840]"; the same for all its processes, seen from anywhere
    network: Annotated[str | None, Fleeting()]
    # GPU and RDMA device nodes by path; None if it opens, otherwise the errno: "EACCES", "EPERM", "ENXIO", …
    devices: dict[HostPath, str | None]


class Outside(Observed):
    """Facts about the host outside the container in which the probe runs."""

    # runtime of the container: "docker", …; "enter" for a process's namespaces
    runtime: Literal["docker", "podman", "nerdctl", "apptainer", "enter"]
    name: ContainerName  # the container's name, or the PID; ``place`` is a phrase for it, "the Docker container train"
    place: str
    network: Annotated[str | None, Fleeting()]  # as in :class:`Surroundings`
    hostname: str
    limits: ResourceLimits | None  # of a process started over SSH there; None if /proc does not show it
    shm_bytes: Count | None  # size of /dev/shm
    devices: tuple[HostPath, ...]  # GPU and RDMA device nodes, which were not opened there
    names: tuple[str, ...]  # names of the cluster that are in /etc/hosts
    # of the process whose namespaces the probe entered; its limits are not the probe's
    job_limits: ResourceLimits | None = None


class StepLimits(Observed):
    """The share of a node's resources that a process in a Slurm job, container or login session may use.

    Containers and login sessions are considered only if they limit memory.
    """

    cpus: Count  # CPUs that it may run on, or its CPU quota, whichever is less
    memory_bytes: Count | None = None  # for all processes of the step or the job together; None if unlimited
    is_job: bool = True  # of Slurm


Label = Annotated[str, Field(max_length=320)]


class Service(Observed):
    """A Service in the pods' namespace. A headless Service defines DNS names for its pods."""

    name: str
    headless: bool
    selector: dict[Label, Label] = Field(default_factory=dict)  # empty if it does not select pods itself
    early: bool = False  # ``publishNotReadyAddresses``: names resolve before pods are ready


class Expression(Observed):
    """An entry of a selector's ``matchExpressions``."""

    key: Label
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[Label, ...] = ()


class Selector(Observed):
    """A label selector. An empty label selector selects all objects."""

    labels: dict[Label, Label] = Field(
        default_factory=dict, validation_alias="matchLabels", serialization_alias="matchLabels"
    )
    expressions: tuple[Expression, ...] = Field(
        default=(), validation_alias="matchExpressions", serialization_alias="matchExpressions"
    )


class Block(Observed):
    """An address block in CIDR notation, and the excluded blocks within it."""

    cidr: IpNetwork
    without: tuple[IpNetwork, ...] = Field(default=(), validation_alias="except", serialization_alias="except")


class Peer(Observed):
    """Peers that a rule of a NetworkPolicy allows. The peers are either pods in selected namespaces or addresses."""

    pods: Selector | None = Field(default=None, validation_alias="podSelector", serialization_alias="podSelector")
    namespaces: Selector | None = Field(
        default=None, validation_alias="namespaceSelector", serialization_alias="namespaceSelector"
    )
    block: Block | None = Field(default=None, validation_alias="ipBlock", serialization_alias="ipBlock")


class PolicyPort(Observed):
    """The ports to which a rule of a NetworkPolicy applies.

    ``port`` is a number, the name of a container port, or None for all ports. If ``end`` is set, the rule covers all
    ports from ``port`` to ``end``.
    """

    protocol: str = "TCP"
    port: Port | Label | None = None
    end: Port | None = Field(default=None, validation_alias="endPort", serialization_alias="endPort")


class PolicyRule(Observed):
    """A NetworkPolicy rule that allows traffic with certain peers on certain ports.

    An empty list of peers allows all peers, and an empty list of ports allows all ports.
    """

    peers: tuple[Peer, ...] = ()
    ports: tuple[PolicyPort, ...] = ()


class Policy(Observed):
    """A NetworkPolicy (networking.k8s.io/v1)."""

    name: str
    pods: Selector  # pods of its namespace to which it applies; traffic that no rule allows is dropped
    # its rules for incoming traffic; None if it has no say on that. ``egress`` likewise
    ingress: tuple[PolicyRule, ...] | None = None
    egress: tuple[PolicyRule, ...] | None = None


class PodFacts(Observed):
    """Facts about a pod, from Kubernetes' list of pods."""

    pod: str
    namespace: str
    container: str  # container in which the probe ran
    machine: str | None = None  # its node; None if it is not scheduled yet
    owner: str = ""
    unready: str | None = None  # why Kubernetes calls it not ready although the container runs; None if it is ready
    host_network: bool = False
    networks: tuple[str, ...] = ()  # networks that Multus added
    shm_volume: str = ""
    # size limit of the ``emptyDir`` at /dev/shm; None without a limit. ``shm_volume`` is its name, empty if none is
    # mounted there
    shm_bytes: Count | None = None
    # limits of ``nvidia.com/gpu``, ``rdma/…`` and the like for its container
    devices: dict[str, Count] = Field(default_factory=dict)
    capabilities: tuple[str, ...] = ()  # capabilities added for root in the container; ``privileged`` means all
    privileged: bool = False
    containers: tuple[str, ...] = ()  # its running containers, with sidecars
    labels: dict[str, str] = Field(default_factory=dict)
    addresses: tuple[IpAddress, ...] = ()
    hostname: str = ""
    subdomain: str = ""
    ports: dict[str, Count] = Field(default_factory=dict)  # named ports of its containers, for policies
    # names of variables in its container's spec, set by the job's controller or author
    variables: tuple[str, ...] = ()


class KubeFacts(FrozenModel):
    """Facts about the job's pods and their namespace."""

    engine: ClassVar[str] = "kube"

    namespace: str = ""
    asked: tuple[str, ...] = ()  # command-line options that selected them
    pods: dict[str, PodFacts] = Field(default_factory=dict)  # by name of the node
    # of their namespace; ``policies`` and ``namespace_labels``, too
    services: Fact[tuple[Service, ...]] = unknown("not asked")
    policies: Fact[tuple[Policy, ...]] = unknown("not asked")
    namespace_labels: Fact[dict[str, str]] = unknown("not asked")
