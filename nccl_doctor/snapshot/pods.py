"""What a cluster's API tells of the pods of a job; of each what the judgement of its host hangs on.

Services and NetworkPolicies of a Kubernetes namespace, as far as a job's pods hang on them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from nccl_doctor.model.base import Count, IpAddress, IpNetwork, Observed, Port
from nccl_doctor.model.cluster import NodeOptions
from nccl_doctor.snapshot.unknown import Fact, unknown

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
    """One of a selector's ``matchExpressions``."""

    key: Label
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[Label, ...] = ()


class Selector(Observed):
    """What chooses objects by their labels; an empty one all of them."""

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
    """Whom a rule lets through: pods of chosen namespaces, or addresses."""

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
    """What a policy lets through: these peers on these ports; an empty list means all."""

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
    """One pod, as its list has it.

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
    """What is known of all pods together.

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
