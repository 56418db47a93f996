"""Where nothing but the master's address fails, the remedy is another one, and no talk with whoever runs the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.finding import Diagnosis
from nccl_doctor.snapshot.hosts import Snapshot
from tests.checks.snapshots import healthy, load

SEEN = load(Path(__file__).parent / "port_unreachable/fires-another-master-address.json")
LOST = {"src": "node2", "dst": "node1", "address": "10.0.0.1", "port": 29500, "outcome": "timed-out"}


def remedy(seen: Snapshot) -> str:
    (found,) = judge(seen, "check", lambda check: check.name == "port-unreachable").diagnoses
    return found.fix.summary


def test_the_address_that_all_reach_is_named() -> None:
    assert remedy(SEEN) == "Set master_addr: 10.0.0.1 in the hosts file (--master-addr): all of them reach node1 there."


@pytest.mark.parametrize(
    "mesh",
    [
        {"answered": {"node1": {"10.0.0.1": ["node3"]}}},
        {"failed": [*SEEN.model_dump(mode="json", by_alias=True)["mesh"]["failed"], LOST]},
    ],
    ids=["one did not meet it", "one lost that port there, too"],
)
def test_an_address_that_some_do_not_reach_is_no_remedy(mesh: dict[str, Any]) -> None:
    document = SEEN.model_dump(mode="json", by_alias=True)
    document["mesh"] |= mesh
    assert "master_addr" not in remedy(Snapshot.model_validate(document))


def lossy(*, answered: list[str], resent: int = 0, outcome: str = "timed-out") -> list[str]:
    """Messages about node3, to which node2's path loses connections, and on one port of which node1 failed."""
    to_node3 = {"dst": "node3", "address": "10.0.0.3", "port": 40005}
    dial = {**to_node3, "outcome": "timed-out", "error": "ETIMEDOUT"}
    first = {**dial, "src": "node1", "outcome": outcome}
    losses = [{**to_node3, "src": src, "tried": 32, "lost": 8, "resent": resent} for src in ("node2", "node4")]
    document = healthy()
    node4 = {**document["hosts"][0], "node": {"name": "node4", "address": "10.0.0.4", "node_rank": 3}}
    document["hosts"].append(node4)
    document["cluster"]["nodes"].append(node4["node"])
    document["mesh"] |= {
        "hosts": 4,
        "pairs": 12,
        "failed": [first, *({**dial, "src": src} for src in ("node2", "node4"))],
        "lost_connections": losses,
        "answered": {"node3": {"10.0.0.3": answered}},
    }
    seen = Snapshot.model_validate(document)
    return [found.message for found in judge(seen, "check", lambda check: check.name == "port-unreachable").diagnoses]


def test_a_dial_that_a_lossy_path_may_have_lost_is_no_second_fault() -> None:
    words = "16 of 64 connection attempts from node[2,4] to node3 got no answer, although other attempts to reach the same ports succeeded."
    assert lossy(answered=["node1", "node2", "node4"]) == [words]
    assert lossy(answered=["node2", "node4"]) == [words, "node1 can't reach node3 on port 40005."]


def test_dials_that_no_lossy_path_explains_are_not_passed_over() -> None:
    """A refused one, and any on a path that only loses packets at random."""
    everybody = ["node1", "node2", "node4"]
    assert len(lossy(answered=everybody, outcome="refused")) == 2
    assert lossy(answered=everybody, resent=20) == ["node[1-2,4] can't reach node3 on port 40005."]


def found(fixture: str) -> Diagnosis:
    seen = load(Path(__file__).parent / f"port_unreachable/{fixture}.json")
    (only,) = judge(seen, "check", lambda check: check.name == "port-unreachable").diagnoses
    return only


def test_over_ipv6_a_firewall_denies_as_a_rule_of_the_own_host_does() -> None:
    denied = found("fires-denied-over-ipv6")
    assert "ip rule" not in f"{denied.message}{denied.fix.summary}"
    assert "typical of a firewall REJECT" in str(denied.evidence[0])
    assert "itself prohibits" in found("fires-refused-by-its-own-routing").message


def test_a_host_without_an_ipv6_address_is_told_to_look_at_that() -> None:
    without = found("fires-without-an-ipv6-address")
    assert "found no IPv6 address or port" in without.message
    assert without.hosts == ("node2",)
    assert "disable_ipv6" in without.fix.summary


def test_a_policy_that_nobody_could_judge_is_not_said_to_let_it_pass() -> None:
    assert found("fires-between-pods").fix.summary.startswith("No NetworkPolicy drops it.")
    assert found("fires-between-pods-policies-undecided").fix.summary.startswith(
        'The NetworkPolicy "only-ours" might drop it, which could not be determined (you are not allowed to get '
    )
