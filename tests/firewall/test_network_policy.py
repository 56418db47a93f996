"""NetworkPolicies against dials, by the examples of Kubernetes' own documentation, and properties of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.firewall.blame import blame_policies, open_policy, undecided_policies
from nccl_doctor.inventory.kube_api import _policies
from nccl_doctor.model.report import FailedDial
from nccl_doctor.snapshot.surroundings import KubeFacts, PodFacts, Policy

SPACE = {"team": "ml"}


def pod(name: str, address: str, **more: Any) -> PodFacts:
    told = {"labels": {"job": "train", "role": name}, "ports": {"store": 29500}, **more}
    return PodFacts(pod=name, namespace="ml", container="main", addresses=(address,), **told)


def facts(a: dict[str, Any] | None = None, labels: Any = SPACE) -> KubeFacts:
    pods = {"a": pod("a", "10.0.0.1", **(a or {})), "b": pod("b", "10.0.1.2")}
    return KubeFacts(namespace="ml", pods=pods, namespace_labels=labels)


def policies(*specs: dict[str, Any]) -> tuple[Policy, ...]:
    """As they are read out of the API's own form."""
    import json

    items = [{"metadata": {"name": f"p{place}"}, "spec": spec} for place, spec in enumerate(specs)]
    return _policies(json.dumps({"items": items}).encode())


def stopped(kube: KubeFacts, found: tuple[Policy, ...], port: int = 40000) -> list[tuple[str, str]]:
    dial = FailedDial(src="b", dst="a", address="10.0.0.1", port=port, outcome="timed-out")
    return [(one.pod, one.way) for one in blame_policies(kube, found, dial)]


EVERYBODY: dict[str, Any] = {}
IN = [("a", "ingress")]


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"podSelector": EVERYBODY}, IN),
        ({"podSelector": EVERYBODY, "ingress": [{}]}, []),
        ({"podSelector": EVERYBODY, "policyTypes": ["Egress"]}, [("b", "egress")]),
        ({"podSelector": EVERYBODY, "policyTypes": ["Ingress", "Egress"]}, [*IN, ("b", "egress")]),
        ({"podSelector": {"matchLabels": {"job": "other"}}}, []),
        ({"podSelector": {"matchExpressions": [{"key": "role", "operator": "In", "values": ["b"]}]}}, []),
        ({"podSelector": {"matchExpressions": [{"key": "role", "operator": "NotIn", "values": ["b"]}]}}, IN),
        ({"podSelector": {"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}}, IN),
        ({"podSelector": {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}}, []),
        ({"podSelector": EVERYBODY, "ingress": [{"from": [{"podSelector": {"matchLabels": {"job": "train"}}}]}]}, []),
        ({"podSelector": EVERYBODY, "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": "a"}}}]}]}, IN),
        ({"podSelector": EVERYBODY, "ingress": [{"from": [{"namespaceSelector": EVERYBODY}]}]}, []),
        ({"podSelector": EVERYBODY, "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "ml"}}}]}]}, []),
        ({"podSelector": EVERYBODY, "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "web"}}}]}]}, IN),
        ({"podSelector": EVERYBODY, "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ml"}}, "podSelector": {"matchLabels": {"role": "b"}}}]}]}, []),
        ({"podSelector": EVERYBODY, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]}, []),
        ({"podSelector": EVERYBODY, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.1.0/24"]}}]}]}, IN),
        ({"podSelector": EVERYBODY, "ingress": [{"ports": [{"port": 40000}]}]}, []),
        ({"podSelector": EVERYBODY, "ingress": [{"ports": [{"port": 32768, "endPort": 60999}]}]}, []),
        ({"podSelector": EVERYBODY, "ingress": [{"ports": [{"port": "store"}]}]}, IN),
        ({"podSelector": EVERYBODY, "ingress": [{"ports": [{"protocol": "UDP", "port": 40000}]}]}, IN),
    ],
)  # fmt: skip
def test_what_a_policy_does(spec: dict[str, Any], wanted: list[tuple[str, str]]) -> None:
    assert stopped(facts(), policies(spec)) == wanted


def test_a_port_by_its_name() -> None:
    assert stopped(facts(), policies({"podSelector": {}, "ingress": [{"ports": [{"port": "store"}]}]}), 29500) == []


def test_policies_add_up() -> None:
    closed: dict[str, Any] = {"podSelector": {}}
    lets = {"podSelector": {"matchLabels": {"role": "a"}}, "ingress": [{"from": [{"podSelector": {}}]}]}
    assert stopped(facts(), policies(closed, lets)) == []


def of_space(**labels: str) -> tuple[Policy, ...]:
    return policies({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {"matchLabels": labels}}]}]})


def undecided(kube: KubeFacts, found: tuple[Policy, ...]) -> tuple[str, ...]:
    dial = FailedDial(src="b", dst="a", address="10.0.0.1", port=40000, outcome="timed-out")
    return undecided_policies(kube, found, [dial])


def test_what_nobody_can_tell_accuses_nobody() -> None:
    unread, on_host = facts(labels={"$unknown": "you may not"}), facts({"host_network": True})
    for kube, found in ((unread, of_space(team="x")), (on_host, policies({"podSelector": {}}))):
        assert stopped(kube, found) == []
        assert undecided(kube, found) == ("p0",)
    assert undecided(facts(), of_space(team="x")) == ()
    assert undecided(on_host, policies({"podSelector": {}, "ingress": [{}]})) == ()  # it allows everything


@pytest.mark.parametrize(("name", "wanted"), [("monitoring", IN), ("ml", [])])
def test_the_name_of_a_namespace_is_known_without_its_labels(name: str, wanted: list[tuple[str, str]]) -> None:
    unread, found = facts(labels={"$unknown": "you may not"}), of_space(**{"kubernetes.io/metadata.name": name})
    assert stopped(unread, found) == wanted
    assert undecided(unread, found) == ()


KEYS = st.sampled_from(["job", "role", "gpu"])
VALUES = st.sampled_from(["train", "a", "b"])
SELECTOR = st.fixed_dictionaries(
    {},
    optional={
        "matchLabels": st.dictionaries(KEYS, VALUES, max_size=2),
        "matchExpressions": st.lists(
            st.fixed_dictionaries(
                {
                    "key": KEYS,
                    "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
                    "values": st.lists(VALUES, max_size=2),
                }
            ),
            max_size=2,
        ),
    },
)
RULES = st.lists(
    st.fixed_dictionaries(
        {}, optional={"ports": st.lists(st.fixed_dictionaries({"port": st.integers(1, 9)}), max_size=2)}
    ),
    max_size=2,
)
SPEC = st.fixed_dictionaries(
    {"podSelector": SELECTOR, "policyTypes": st.sampled_from([["Ingress"], ["Egress"], ["Ingress", "Egress"]])},
    optional={"ingress": RULES, "egress": RULES},
)


@given(st.lists(SPEC, max_size=4))
def test_what_opens_a_way_opens_it_and_shuts_no_other(specs: list[dict[str, Any]]) -> None:
    """The commands that are printed, read back: the dial passes, and a stranger that was let in still is."""
    kube, before = facts(), policies(*specs)
    dial = FailedDial(src="b", dst="a", address="10.0.0.1", port=40000, outcome="timed-out")
    found = list(blame_policies(kube, before, dial))
    made = policies(*(open_policy(one, {"job": "train"}, "n", "ml")["spec"] for one in found))
    after = (*before, *made)
    assert list(blame_policies(kube, after, dial)) == []
    stranger = kube.model_copy(update={"pods": {**kube.pods, "b": pod("b", "10.9.9.9", labels={"role": "b"})}})
    for way in (
        FailedDial(src="b", dst="a", address="10.0.0.1", port=5, outcome="timed-out"),
        FailedDial(src="a", dst="b", address="10.9.9.9", port=5, outcome="timed-out"),
    ):
        shut = {(one.pod, one.way) for one in blame_policies(stranger, before, way)}
        assert {(one.pod, one.way) for one in blame_policies(stranger, after, way)} <= shut
