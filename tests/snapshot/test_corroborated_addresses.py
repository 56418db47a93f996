"""What one host claims becomes a command for another only where something else confirms it."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from nccl_doctor.collect.facts.host_facts import look_up
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.finding import Diagnosis
from nccl_doctor.snapshot.hosts import Snapshot, corroborated_addresses, corroborated_by_name
from tests.checks.snapshots import NAMES, patched
from tests.firewall.facts import DROP, nft_facts

CLAIMED = "203.0.113.66"


def liar(**more: Any) -> Snapshot:
    """node2, known by name alone, tells that it sends to node1 from a stranger's address, and node1 drops its dial."""
    nodes = [{"name": name, "address": name, "node_rank": rank} for rank, name in enumerate(NAMES)]
    hosts: dict[str, Any] = {name: {"node": node} for name, node in zip(NAMES, nodes, strict=True)}
    hosts["node1"]["facts"] = {
        "firewall": nft_facts([DROP]).model_dump(mode="json"),
        "resolution": {"node2": {"addresses": more.pop("node1_says", [])}},
    }
    hosts["node2"]["facts"] = {
        "resolution": {"10.0.0.1": {"source": CLAIMED}, "node2": {"addresses": [CLAIMED]}},
        "interfaces": {"addresses": [
            {"interface": "eno1", "family": "inet", "address": CLAIMED, "netmask": "255.255.255.0"}]},
        "firewall": nft_facts().model_dump(mode="json"),
    }  # fmt: skip
    dial = {"src": "node2", "dst": "node1", "address": "10.0.0.1", "port": 29500, "outcome": "timed-out"}
    mesh = {"failed": [dial], **more.pop("mesh", {})}
    return patched({"cluster": {"nodes": nodes}, "hosts": hosts, "mesh": mesh, **more})


def firewall(snapshot: Snapshot) -> Diagnosis:
    (found,) = [each for each in judge(snapshot, "check").diagnoses if each.name == "firewall-blocks-port"]
    return found


def test_a_claimed_address_is_let_in_by_nobody() -> None:
    found = firewall(liar())
    assert found.hosts == ("node1",)
    assert found.fix.commands == ()
    assert f"node2 by {CLAIMED}" in found.fix.summary


def test_two_that_vouch_for_each_other_are_believed_by_no_third() -> None:
    assert firewall(liar(mesh={"answered": {"node2": {CLAIMED: ["node3"]}}})).fix.commands == ()


@pytest.mark.parametrize(
    "evidence",
    [
        {"resolved": {"node2": [CLAIMED]}},
        {"mesh": {"answered": {"node2": {CLAIMED: ["node3", "node1"]}}}},
        {"node1_says": [CLAIMED]},
    ],
    ids=["this machine resolves it", "its own dial met the listener", "the host itself resolves it"],
)
def test_an_address_that_something_else_confirms_is_let_in(evidence: dict[str, Any]) -> None:
    (command,) = firewall(liar(**evidence)).fix.commands
    assert command.host == "node1"
    assert CLAIMED in command.command


def test_the_hosts_file_confirms_what_it_says() -> None:
    seen = patched({})
    assert corroborated_addresses(seen, "node2", "node1") == {ip_address("10.0.0.2")}
    assert corroborated_by_name(seen, "10.0.0.1", "node3") == {ip_address("10.0.0.1")}


def test_a_claimed_name_gets_no_line_in_etc_hosts() -> None:
    def found(**more: Any) -> Diagnosis:
        lost: dict[str, Any] = {"resolution": {"master": {"addresses": [], "error": "unknown"}}}
        claims = {"facts": {"resolution": {"master": {"addresses": [CLAIMED]}}}}
        hosts = {"node1": {"facts": lost}, "node2": claims}
        report = judge(patched({"cluster": {"master_addr": "master"}, "hosts": hosts, **more}), "check")
        return next(each for each in report.diagnoses if each.name == "hostname-unresolvable")

    assert found().fix.commands == ()
    (command,) = found(resolved={"master": [CLAIMED]}).fix.commands
    assert command.command == (
        "tail -c1 /etc/hosts | grep -q . && echo >> /etc/hosts; "
        f"grep -qxF '{CLAIMED} master' /etc/hosts || echo '{CLAIMED} master' >> /etc/hosts"
    )


def test_this_machine_looks_up_names_and_waits_no_longer_than_told() -> None:
    found, aliases = look_up(["localhost", "127.0.0.9", "no-such-name.invalid"], 10)
    assert aliases == ()
    assert set(found) == {"localhost"}
    assert "127.0.0.1" in found["localhost"]
    assert look_up(["localhost"], 0.0) in (({}, ()), (found, ()))
