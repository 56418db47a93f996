"""The Services, NetworkPolicies and labels of a namespace; what may not be read is unknown, with the right it wants."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pydantic import Field, TypeAdapter

from nccl_doctor.errors import UsageError
from nccl_doctor.inventory.kube_api import Metadata, Seen, Text, typed
from nccl_doctor.snapshot.pods import Peer, Policy, PolicyPort, Rule, Selector, Service
from nccl_doctor.snapshot.unknown import Unknown, unknown
from nccl_doctor.transport.kube.kubectl import KubectlError, kubectl

T = TypeVar("T")
SECONDS = 15.0


class _ServiceSpec(Seen):
    cluster_ip: Text = Field(default="", alias="clusterIP")
    selector: dict[Text, Text] = Field(default_factory=dict)
    early: bool = Field(default=False, alias="publishNotReadyAddresses")


class _Service(Seen):
    metadata: Metadata
    spec: _ServiceSpec


class _Rule(Seen):
    sources: tuple[Peer, ...] = Field(default=(), alias="from")
    targets: tuple[Peer, ...] = Field(default=(), alias="to")
    ports: tuple[PolicyPort, ...] = ()


class _PolicySpec(Seen):
    pods: Selector = Field(default=Selector(), alias="podSelector")
    ingress: tuple[_Rule, ...] = ()
    egress: tuple[_Rule, ...] | None = None
    types: tuple[Text, ...] = Field(default=(), alias="policyTypes")


class _Policy(Seen):
    metadata: Metadata
    spec: _PolicySpec


class _Services(Seen):
    items: tuple[_Service, ...] = ()


class _Policies(Seen):
    items: tuple[_Policy, ...] = ()


class _Namespace(Seen):
    metadata: Metadata


def told(namespace: str) -> dict[str, Any]:
    """Fields of :class:`~nccl_doctor.snapshot.pods.KubeFacts`, asked for side by side."""
    wanted: dict[str, Callable[[], object]] = {
        "services": lambda: _asked(_services, "services", "get", "services", "-n", namespace, "-o", "json"),
        "policies": lambda: _asked(
            _policies, "networkpolicies", "get", "networkpolicies", "-n", namespace, "-o", "json"
        ),
        "namespace_labels": lambda: _asked(_labels, "namespaces", "get", "namespace", namespace, "-o", "json"),
    }
    with ThreadPoolExecutor(len(wanted)) as pool:
        answers = {name: pool.submit(ask) for name, ask in wanted.items()}
    return {name: answer.result() for name, answer in answers.items()}


def _asked(read: Callable[[bytes], T], what: str, *arguments: str) -> T | Unknown:
    try:
        return read(kubectl(*arguments, seconds=SECONDS))
    except TimeoutError:
        return unknown(f"the API server did not tell the {what} in {SECONDS:.0f} s")
    except KubectlError as error:
        no = f"you may not read {what} (kubectl auth can-i list {what})"
        return unknown(no if error.trouble == "forbidden" else f"{what}: {error.said}")
    except UsageError as error:
        return unknown(str(error))


def _services(answer: bytes) -> tuple[Service, ...]:
    listed = typed(TypeAdapter(_Services), answer, "list of services")
    return tuple(
        Service(
            name=one.metadata.name,
            headless=one.spec.cluster_ip == "None",
            selector=one.spec.selector,
            early=one.spec.early,
        )
        for one in listed.items
    )


def _policies(answer: bytes) -> tuple[Policy, ...]:
    listed = typed(TypeAdapter(_Policies), answer, "list of network policies")
    return tuple(_policy(one) for one in listed.items)


def _policy(one: _Policy) -> Policy:
    """As it is meant: without ``policyTypes`` for what comes in, and for what goes out where it has such rules."""
    spec = one.spec
    types = spec.types or ("Ingress", *(("Egress",) if spec.egress is not None else ()))
    inwards = tuple(Rule(peers=rule.sources, ports=rule.ports) for rule in spec.ingress)
    outwards = tuple(Rule(peers=rule.targets, ports=rule.ports) for rule in spec.egress or ())
    return Policy(
        name=one.metadata.name,
        pods=spec.pods,
        ingress=inwards if "Ingress" in types else None,
        egress=outwards if "Egress" in types else None,
    )


def _labels(answer: bytes) -> dict[str, str]:
    return typed(TypeAdapter(_Namespace), answer, "namespace").metadata.labels
