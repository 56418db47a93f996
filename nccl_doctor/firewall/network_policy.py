"""NetworkPolicies against a dial between two pods of one namespace, by the words of networking.k8s.io/v1.

A pod that no policy chooses for a direction is open in it. Where some do, what the rules of at least one of them let
through passes, and all else is dropped. What a policy does with pods on the node's network is left open there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Literal

from nccl_doctor.firewall.packet import Tri, every, some
from nccl_doctor.model.report import FailedDial
from nccl_doctor.snapshot import Unknown
from nccl_doctor.snapshot.pods import Block, KubeFacts, Peer, PodFacts, Policy, PolicyPort, Rule, Selector
from nccl_doctor.text.inet import network_of, numeric

Way = Literal["ingress", "egress"]


@dataclass(frozen=True)
class PolicyBlame:
    """The policies that keep a dial from a pod, or in it: ``pod`` is the one that they choose."""

    pod: str
    way: Way
    policies: tuple[Policy, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What they are called."""
        return tuple(one.name for one in self.policies)


def blames(kube: KubeFacts, dials: Iterable[FailedDial]) -> dict[FailedDial, tuple[PolicyBlame, ...]]:
    """By failed dial, what surely drops it; nothing for those that are let through, or may be."""
    policies = kube.policies
    if isinstance(policies, Unknown):
        return {}
    found = ((dial, tuple(blame(kube, policies, dial))) for dial in dials if dial.outcome != "failed")
    return {dial: those for dial, those in found if those}


def blame(kube: KubeFacts, policies: Sequence[Policy], dial: FailedDial) -> Iterator[PolicyBlame]:
    """What surely drops a dial: policies of the target for what comes in, and of the source for what goes out."""
    source, target = kube.pods.get(dial.src), kube.pods.get(dial.dst)
    if source is None or target is None or source is target:
        return
    labels = kube.namespace_labels
    known = None if isinstance(labels, Unknown) else {"kubernetes.io/metadata.name": kube.namespace, **labels}
    ways: tuple[tuple[Way, str, PodFacts, PodFacts], ...] = (
        ("ingress", dial.dst, target, source),
        ("egress", dial.src, source, target),
    )
    for way, name, pod, peer in ways:
        if pod.host_network:
            continue
        chosen = [one for one in policies if getattr(one, way) is not None and selects(one.pods, pod.labels)]
        rules = [rule for one in chosen for rule in getattr(one, way)]
        passes = some(_lets(rule, peer, _address(peer, dial, way), target, dial.port, known) for rule in rules)
        if chosen and passes is False:
            yield PolicyBlame(name, way, tuple(chosen))


def opening(closed: PolicyBlame, job: Mapping[str, str], name: str, namespace: str) -> dict[str, Any]:
    """The policy that lets the pods of a job reach those of its pods that are shut; no pod is shut by it that was open.

    Args:
        closed: what shuts them: the new policy is for the pods of the job that it chooses.
        job: labels that the job's pods have, and no others.
        name: of the policy.
        namespace: of the pods.
    """
    first = closed.policies[0].pods
    chosen = first.model_copy(update={"labels": {**first.labels, **job}})
    inwards = closed.way == "ingress"
    rule = {"from" if inwards else "to": [{"podSelector": {"matchLabels": dict(job)}}], "ports": [{"protocol": "TCP"}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "podSelector": chosen.model_dump(mode="json", by_alias=True, exclude_defaults=True),
            "policyTypes": ["Ingress" if inwards else "Egress"],
            closed.way: [rule],
        },
    }


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether it chooses an object of these labels."""
    wanted = selector.labels.items() <= labels.items()
    return wanted and all(
        (
            one.operator == "Exists" and one.key in labels,
            one.operator == "DoesNotExist" and one.key not in labels,
            one.operator == "In" and labels.get(one.key) in one.values,
            # as everywhere in Kubernetes: without the label, its value is not among them
            one.operator == "NotIn" and labels.get(one.key) not in one.values,
        ).count(True)
        for one in selector.expressions
    )


def _address(peer: PodFacts, dial: FailedDial, way: Way) -> str | None:
    if way == "egress" and numeric(dial.address) is not None:
        return dial.address
    return peer.addresses[0] if peer.addresses else None


def _lets(
    rule: Rule, peer: PodFacts, address: str | None, target: PodFacts, port: int, namespace: Mapping[str, str] | None
) -> Tri:
    who = some(_is(one, peer, address, namespace) for one in rule.peers) if rule.peers else True
    where = any(_at(one, target, port) for one in rule.ports) if rule.ports else True
    return every((who, where))


def _is(wanted: Peer, peer: PodFacts, address: str | None, namespace: Mapping[str, str] | None) -> Tri:
    if wanted.block is not None:
        return None if address is None else _inside(wanted.block, address)
    if peer.host_network:  # it comes from its node's address, which no selector of pods names
        return None
    pods = wanted.pods is None or selects(wanted.pods, peer.labels)
    spaces: Tri = wanted.namespaces is None
    if wanted.namespaces is not None:
        everywhere = not wanted.namespaces.labels and not wanted.namespaces.expressions
        spaces = True if everywhere else None if namespace is None else selects(wanted.namespaces, namespace)
    return every((pods, spaces))


def _inside(block: Block, address: str) -> bool:
    there = ip_address(address.partition("%")[0])
    cut = any(there in network_of(one) for one in block.without)
    return there in network_of(block.cidr) and not cut


def _at(wanted: PolicyPort, target: PodFacts, port: int) -> bool:
    if wanted.protocol != "TCP":
        return False
    if wanted.port is None:
        return True
    first = wanted.port if isinstance(wanted.port, int) else target.ports.get(wanted.port)
    return first is not None and first <= port <= (wanted.end or first)
