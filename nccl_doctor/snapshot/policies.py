"""Services and NetworkPolicies of a Kubernetes namespace, as far as a job's pods hang on them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from nccl_doctor.snapshot.values import IpNetwork, Observed, Port

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
