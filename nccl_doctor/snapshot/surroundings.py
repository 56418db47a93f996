"""The surroundings of a host's job: a container and the host around it, a Slurm step, a cluster's pods and policies."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from nccl_doctor.model.base import ContainerName, Count, Fact, IpAddress, IpNetwork, Observed, Path, Port, unknown
from nccl_doctor.model.cluster import NodeOptions
from nccl_doctor.snapshot.system import ResourceLimits


class Surroundings(Observed):
    """The container around the probe, besides its other facts.

    Attributes:
        network: the network namespace, "net:[4026531840]"; the same for all processes in it, on the host and not.
        devices: GPUs' and RDMA's by path; None for one that opens, else why not: "EACCES", "EPERM", "ENXIO", …
    """

    network: str | None
    devices: dict[Path, str | None]


class Outside(Observed):
    """The host itself, where the probe runs in a container.

    Attributes:
        runtime: what holds the container: "docker", …; "enter" for a process' namespaces.
        name: the container's, or the PID; ``place`` are the words for it, "the docker container train".
        network: as :class:`Surroundings` has it.
        limits: of a process started over SSH there; None where /proc does not tell.
        shm_bytes: the size of /dev/shm.
        devices: GPUs' and RDMA's, which were not opened there.
        names: those of the cluster that /etc/hosts knows.
        job_limits: of the process whose namespaces the probe entered, which does not share its limits with that.
    """

    runtime: Literal["docker", "podman", "nerdctl", "apptainer", "enter"]
    name: ContainerName
    place: str
    network: str | None
    hostname: str
    limits: ResourceLimits | None
    shm_bytes: Count | None
    devices: tuple[Path, ...]
    names: tuple[str, ...]
    job_limits: ResourceLimits | None = None


class StepLimits(Observed):
    """The share of a node that a process of a Slurm job may use.

    Attributes:
        cpus: CPUs that it may run on, or the time of so many, whichever is less.
        memory_bytes: for all processes of the step or the job together; None where nothing bounds it.
    """

    cpus: Count
    memory_bytes: Count | None = None


Label = Annotated[str, Field(max_length=320)]


class Service(Observed):
    """A Service of the namespace; a headless one gives its pods names.

    Attributes:
        selector: empty where it chooses no pods itself.
        early: ``publishNotReadyAddresses``: pods have their names before they are ready.
    """

    name: str
    headless: bool
    selector: dict[Label, Label] = Field(default_factory=dict)
    early: bool = False


class Expression(Observed):
    """An entry of a selector's ``matchExpressions``."""

    key: Label
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[Label, ...] = ()


class Selector(Observed):
    """A choice of objects by their labels; an empty one means all of them."""

    labels: dict[Label, Label] = Field(
        default_factory=dict, validation_alias="matchLabels", serialization_alias="matchLabels"
    )
    expressions: tuple[Expression, ...] = Field(
        default=(), validation_alias="matchExpressions", serialization_alias="matchExpressions"
    )


class Block(Observed):
    """Addresses, less some."""

    cidr: IpNetwork
    without: tuple[IpNetwork, ...] = Field(default=(), validation_alias="except", serialization_alias="except")


class Peer(Observed):
    """Peers that a rule lets through: pods of chosen namespaces, or addresses."""

    pods: Selector | None = Field(default=None, validation_alias="podSelector", serialization_alias="podSelector")
    namespaces: Selector | None = Field(
        default=None, validation_alias="namespaceSelector", serialization_alias="namespaceSelector"
    )
    block: Block | None = Field(default=None, validation_alias="ipBlock", serialization_alias="ipBlock")


class PolicyPort(Observed):
    """Ports of a rule: a number with the end of its range, the name of a container's port, or None for all."""

    protocol: str = "TCP"
    port: Port | Label | None = None
    end: Port | None = Field(default=None, validation_alias="endPort", serialization_alias="endPort")


class Rule(Observed):
    """A policy's rule, which lets these peers through on these ports; an empty list means all."""

    peers: tuple[Peer, ...] = ()
    ports: tuple[PolicyPort, ...] = ()


class Policy(Observed):
    """A NetworkPolicy (networking.k8s.io/v1).

    Attributes:
        pods: which pods of its namespace it is for; what no rule lets through to or from them is dropped.
        ingress: its rules for what comes in; None where it says nothing of that. ``egress`` likewise.
    """

    name: str
    pods: Selector
    ingress: tuple[Rule, ...] | None = None
    egress: tuple[Rule, ...] | None = None


class PodFacts(Observed):
    """A pod, as its list has it.

    Attributes:
        container: where the probe ran.
        machine: the node under it; None where it has none yet.
        unready: why the cluster calls it not ready though its container runs; None where it is ready.
        networks: those that Multus gave it besides its own.
        shm_bytes: the bound of an ``emptyDir`` at /dev/shm; None where it has no bound. ``shm_volume`` is its name,
            empty where none is mounted there.
        devices: what its container may use of ``nvidia.com/gpu``, ``rdma/…`` and the like.
        capabilities: what was added to its root's; ``privileged`` means all.
        containers: all that run in it, sidecars among them.
        ports: those of its containers that have a name, for policies.
        variables: names of those that its container's spec sets: the job's own, by its controller or its author.
    """

    pod: str
    namespace: str
    container: str
    machine: str | None = None
    owner: str = ""
    unready: str | None = None
    host_network: bool = False
    networks: tuple[str, ...] = ()
    shm_volume: str = ""
    shm_bytes: Count | None = None
    devices: dict[str, Count] = Field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    privileged: bool = False
    containers: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    addresses: tuple[IpAddress, ...] = ()
    hostname: str = ""
    subdomain: str = ""
    ports: dict[str, Count] = Field(default_factory=dict)
    variables: tuple[str, ...] = ()


class KubeFacts(NodeOptions):
    """All that is known of the pods together.

    Attributes:
        asked: the words of the command line that chose them.
        pods: by node's name.
        services: of their namespace, as ``policies`` and ``namespace_labels``.
    """

    engine: ClassVar[str] = "kube"

    namespace: str = ""
    asked: tuple[str, ...] = ()
    pods: dict[str, PodFacts] = Field(default_factory=dict)
    services: Fact[tuple[Service, ...]] = unknown("not asked")
    policies: Fact[tuple[Policy, ...]] = unknown("not asked")
    namespace_labels: Fact[dict[str, str]] = unknown("not asked")
