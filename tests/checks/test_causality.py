"""Every check's ``explains`` can be reached: for each edge there is a cluster in which the effect stands under its cause."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nccl_doctor.judge.attribution import attach_consequences
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.finding import Finding, Fix
from nccl_doctor.model.register import Check, all_checks
from nccl_doctor.snapshot.hosts import Snapshot
from tests.checks.snapshots import NAMES, healthy, overlaid

EDGES = [(check, one) for check in all_checks() if check.function for one in check.explains if isinstance(one, str)]
LIVE = {check.name for check in all_checks() if check.function}
_DIAL = {"src": "node3", "dst": "node1", "address": "node1", "port": 29500, "outcome": "timed-out"}
_ELSEWHERE = {"node1": {"addresses": ["10.0.0.77"]}}
_NAMELESS: dict[str, Any] = {
    "cluster": {"master_addr": "node1"},
    "hosts": {"node3": {"facts": {"resolution": {"node1": {"addresses": [], "error": "Name or service not known"}}}}},
    "mesh": {"failed": [{**_DIAL, "outcome": "failed", "error": "EAI_NONAME"}]},
}


def _nft(*rules: list[dict[str, Any]]) -> str:
    """The input chain of a ruleset as ``nft -j`` prints it."""
    here = {"family": "inet", "table": "filter"}
    chain = {**here, "name": "input", "type": "filter", "hook": "input", "prio": 0, "policy": "accept"}
    rows = [{"rule": {**here, "chain": "input", "handle": at, "expr": expr}} for at, expr in enumerate(rules, 1)]
    return json.dumps({"nftables": [{"table": {"family": "inet", "name": "filter"}}, {"chain": chain}, *rows]})


def _drops(left: dict[str, Any], right: object) -> list[dict[str, Any]]:
    return [{"match": {"op": "==", "left": left, "right": right}}, {"drop": None}]


_MASTER_PORT, _OTHER_PORT = (
    _drops({"payload": {"protocol": "tcp", "field": "dport"}}, port) for port in (29500, 40001)
)
_WHO_KNOWS = _drops({"meta": {"key": "cgroup"}}, 7)


def _one_port_dropped_and_another_lost(*rules: list[dict[str, Any]]) -> dict[str, Any]:
    """Node1 has these rules; nobody reaches its master port, and node2 not its other ports either."""
    empty = {"nft": _nft(), "iptables": []}
    firewalls = {"node1": {"nft": _nft(*rules), "iptables": []}, "node2": empty, "node3": empty}
    master = [{**_DIAL, "src": src, "address": "10.0.0.1"} for src in ("node2", "node3")]
    return {
        "hosts": {name: {"facts": {"firewall": rules, "firewall_after": rules}} for name, rules in firewalls.items()},
        "mesh": {"failed": [*master, {**_DIAL, "src": "node2", "address": "10.0.0.1", "port": 40001}]},
    }


def _two_of_three_are_off_the_net(**env: str) -> dict[str, Any]:
    """Node1 takes eno1, which on the others is switched off."""
    path = Path(__file__).parent / "interfaces" / "interface_down" / "fires-in-the-others-net.json"
    cluster: dict[str, Any] = json.loads(path.read_text())
    off = json.dumps(cluster["hosts"]["node2"])
    cluster["hosts"]["node3"] = json.loads(off.replace('.2"', '.3"'))
    cluster["hosts"] = {name: {**host, "node": {"env": env}} for name, host in cluster["hosts"].items()}
    cluster["mesh"]["failed"] = [{**cluster["mesh"]["failed"][0], "src": name} for name in ("node2", "node3")]
    return cluster


BY_HAND: dict[tuple[str, str], dict[str, Any]] = {
    ("hostname-mismatch", "port-unreachable"): {
        "cluster": {"master_addr": "node1"},
        "hosts": {"node3": {"facts": {"resolution": _ELSEWHERE}}},
        "mesh": {"failed": [_DIAL]},
    },
    ("hostname-mismatch", "master-addr-not-local"): {
        "cluster": {"master_addr": "node1"},
        "hosts": {"node1": {"facts": {"resolution": _ELSEWHERE}}},
    },
    ("hostname-unresolvable", "port-unreachable"): _NAMELESS,
    ("interface-down", "ifname-needed"): _two_of_three_are_off_the_net(),
    ("interface-down", "ifname-wrong-interface"): _two_of_three_are_off_the_net(NCCL_SOCKET_IFNAME="=eno1"),
    ("interface-down", "ifname-ambiguous"): _two_of_three_are_off_the_net(NCCL_SOCKET_IFNAME="=eno1,eth0"),
    ("master-addr-loopback", "port-unreachable"): {
        "cluster": {"master_addr": "127.0.0.1"},
        "mesh": {"failed": [{**_DIAL, "address": "127.0.0.1"}]},
    },
    ("master-addr-not-local", "port-unreachable"): {
        "cluster": {"master_addr": "10.0.0.2"},
        "mesh": {"failed": [{**_DIAL, "address": "10.0.0.2"}]},
    },
    ("firewall-blocks-port", "port-unreachable"): _one_port_dropped_and_another_lost(_MASTER_PORT, _WHO_KNOWS),
    ("firewall-blocks-ephemeral", "port-unreachable"): _one_port_dropped_and_another_lost(_OTHER_PORT, _WHO_KNOWS),
    ("ephemeral-ports-few", "port-in-use"): {
        "hosts": {
            "node1": {
                "facts": {
                    "port_range": {"low": 32768, "high": 32769},
                    "master_port": {"port": 29500, "free": False, "error": "EADDRINUSE", "cause": "outbound"},
                }
            }
        }
    },
}
"""Edges of which the two checks' own fixtures, laid over each other, make no cluster."""


@pytest.mark.parametrize(("cause", "effect"), [pytest.param(c, e, id=f"{c.name}-{e}") for c, e in EDGES if e in LIVE])
def test_an_edge_between_checks_folds_one_under_the_other(cause: Check, effect: str) -> None:
    assert any(_folds(snapshot, cause.name, effect) for snapshot in _clusters(cause.name, effect))


def test_a_dial_that_every_rule_lets_through_is_a_fault_of_its_own() -> None:
    lost = _one_port_dropped_and_another_lost(_MASTER_PORT)
    report = judge(Snapshot.model_validate(overlaid(healthy(), lost)), "check")
    assert [(one.name, one.hosts, one.explains) for one in report.diagnoses] == [
        ("firewall-blocks-port", ("node1",), ()),
        ("port-unreachable", ("node2",), ()),
    ]


def test_two_interfaces_on_a_subnet_cut_no_single_pair_unless_the_kernel_filters() -> None:
    loose, strict = _fires("shared-subnet-nics")
    pair = [{**_DIAL, "src": "node1", "dst": "node2", "address": "10.0.0.2"}]
    cut_off = [*pair, {**_DIAL, "src": "node3", "dst": "node2", "address": "10.0.0.2"}]
    for nics, failed, follows in ((loose, pair, False), (loose, cut_off, True), (strict, pair, True)):
        document = overlaid(overlaid(healthy(), nics), {"mesh": {"failed": failed}})
        assert _folds(Snapshot.model_validate(document), "shared-subnet-nics", "port-unreachable") is follows


def test_a_dial_that_failed_one_way_follows_from_a_fault_of_either_end() -> None:
    """Alone, it is that of the host that says so; what else the host at fault can't reach is told by another check."""
    (down,) = (one for one in _fires("interface-down") if {"=eno1", "2.28.9"} <= set(json.dumps(one).split('"')))
    failed = [{**_DIAL, "src": "node2", "dst": "node1", "address": "10.0.0.1"}]
    for source, follows in (("node2", True), ("node3", False)):
        document = overlaid(overlaid(healthy(), down), {"mesh": {"failed": [{**failed[0], "src": source}]}})
        assert _folds(Snapshot.model_validate(document), "interface-down", "port-unreachable") is follows


def _lost(src: str, dst: str, address: str = "") -> dict[str, Any]:
    return {**_DIAL, "src": src, "dst": dst, "address": address or f"10.0.0.{dst[-1]}", "port": 40001}


@pytest.mark.parametrize("cause", ["master-addr-not-local", "master-addr-loopback"])
def test_a_wrong_master_address_explains_the_dials_to_it_and_no_others(cause: str) -> None:
    patch = _fires(cause)[0]
    address = patch["cluster"]["master_addr"]
    to_it, other = _lost("node2", "node1", address), _lost("node2", "node1")
    back = _lost("node1", "node3" if cause == "master-addr-not-local" else "node2")
    for failed, follows in (([to_it], True), ([to_it, other], False), ([back], False)):
        document = overlaid(overlaid(healthy(), patch), {"mesh": {"failed": failed}})
        assert _folds(Snapshot.model_validate(document), cause, "port-unreachable") is follows


def test_a_name_that_does_not_resolve_explains_no_timeout_between_the_same_two() -> None:
    by_name, other = _NAMELESS["mesh"]["failed"][0], _lost("node3", "node1")
    for failed, follows in (([by_name], True), ([by_name, other], False)):
        document = overlaid(overlaid(healthy(), _NAMELESS), {"mesh": {"failed": failed}})
        assert _folds(Snapshot.model_validate(document), "hostname-unresolvable", "port-unreachable") is follows


def test_a_dial_that_a_firewall_explains_leaves_the_others_to_the_wrong_name() -> None:
    wrong = BY_HAND["hostname-mismatch", "port-unreachable"]
    dropped = _one_port_dropped_and_another_lost(_MASTER_PORT)
    dropped["mesh"]["failed"] = [{**_DIAL, "port": 40001}, *dropped["mesh"]["failed"][:2]]
    document = overlaid(overlaid(healthy(), wrong), dropped)
    assert _folds(Snapshot.model_validate(document), "hostname-mismatch", "port-unreachable")


@pytest.mark.parametrize("cause", ["hostname-unresolvable", "hostname-mismatch"])
def test_a_host_s_own_name_explains_no_dial_of_nccl_s(cause: str) -> None:
    name = {"addresses": ["10.0.0.77"]} if cause == "hostname-mismatch" else {"addresses": [], "error": "no such name"}
    own = {"hosts": {"node2": {"facts": {"identity": {"hostname": "worker"}, "resolution": {"worker": name}}}}}
    failed = [_lost("node1", "node2"), _lost("node2", "node1")]
    document = overlaid(overlaid(healthy(), own), {"mesh": {"failed": failed}})
    report = judge(Snapshot.model_validate(document), "check", lambda one: one.name in (cause, "port-unreachable"))
    assert {(one.name, one.explains) for one in report.diagnoses} == {(cause, ()), ("port-unreachable", ())}


def test_a_host_s_own_name_explains_the_dials_to_what_it_gives_gloo() -> None:
    """All have that address, as each docker0 has: the others end at themselves."""
    name = {"identity": {"hostname": "worker"}, "resolution": {"worker": {"addresses": ["9.0.0.1"]}}}
    failed = [{**_lost("node1", "node2", "9.0.0.1"), "outcome": "stranger"}]
    rails = {"node2": {"9.0.0.1": {"interface": "docker0", "users": ["gloo"]}}}
    own = {"hosts": {"node2": {"facts": name}}, "mesh": {"failed": failed, "rails": rails}}
    document = overlaid(healthy(), own)
    for host in document["hosts"]:
        (*_, usual) = host["facts"]["interfaces"]["addresses"]
        host["facts"]["interfaces"]["addresses"].append({**usual, "interface": "docker0", "address": "9.0.0.1"})
    assert _folds(Snapshot.model_validate(document), "hostname-mismatch", "port-unreachable")


@pytest.mark.parametrize(("outcome", "follows"), [("timed-out", True), ("no-route", True), ("refused", False)])
def test_a_full_neighbour_table_refuses_no_dial(outcome: str, follows: bool) -> None:
    (full,) = _fires("neighbour-table-small")
    failed = [{**_lost("node1", "node2"), "outcome": outcome}]
    document = overlaid(overlaid(healthy(), full), {"mesh": {"failed": failed}})
    assert _folds(Snapshot.model_validate(document), "neighbour-table-small", "port-unreachable") is follows


def test_ports_that_may_run_out_have_stopped_no_dial() -> None:
    for patch in (one for one in _fires("ephemeral-ports-few") if "mesh" not in one):
        document = overlaid(overlaid(healthy(), patch), {"mesh": {"failed": [_lost("node1", "node2")]}})
        assert not _folds(Snapshot.model_validate(document), "ephemeral-ports-few", "port-unreachable")


def test_a_sidecar_explains_no_timeout_between_other_hosts() -> None:
    (meshed,) = (one for one in _fires("proxy-intercepts") if "intercepted" in str(one["mesh"].get("failed")))
    meshed["mesh"]["intercepted"] = [{"src": "node1", "dst": "node2", "address": "10.0.0.2", "port": 41001}]
    for name in ("node1", "node3"):
        meshed["cluster"]["access"]["kube"]["pods"][name]["containers"] = ["main"]
    elsewhere, there = _lost("node1", "node3"), _lost("node3", "node2")
    for lost, follows in ((elsewhere, False), (there, True), ({**elsewhere, "outcome": "stranger"}, True)):
        meshed["mesh"]["failed"] = [lost]
        document = overlaid(healthy(), meshed)
        assert _folds(Snapshot.model_validate(document), "proxy-intercepts", "port-unreachable") is follows


@pytest.mark.parametrize("failed", [[], [{"src": "node3", "dst": "node1"}]])
def test_a_container_explains_no_name_that_another_host_lacks(failed: list[dict[str, str]]) -> None:
    """Whichever dials failed of that: they are the other host's fault."""
    checks = {check.name: check for check in all_checks()}
    apart = Finding(hosts=("node1",), message="", fix=Fix(summary=""))
    lacking = Finding(hosts=("node3",), message="", fix=Fix(summary=""), facts={"failed": failed})
    rows = [(checks["container-differs"], apart), (checks["hostname-unresolvable"], lacking)]
    assert {one.name for one in attach_consequences(rows)} == {"container-differs", "hostname-unresolvable"}


def test_what_only_logs_show_follows_from_a_check_too() -> None:
    assert [(cause.name, effect) for cause, effect in EDGES if effect not in LIVE] == []
    busy = _fires("gpu-in-use")[0]
    document = overlaid(healthy(), busy)
    document["smoke"].update(outcome="failed", backend="nccl")
    host = next(iter(busy["hosts"]))
    rank = document["smoke"]["ranks"][NAMES.index(host)]
    said = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 79.1 GiB"
    )
    rank.update(ok=False, stage="store", error=said, exit_code=1)
    document["smoke"]["output"] = {host: [f"[rank{rank['rank']}]: {said}"]}
    assert _folds(Snapshot.model_validate(document), "gpu-in-use", "out-of-memory", "allreduce-failed")


def _folds(snapshot: Snapshot, *names: str) -> bool:
    report = judge(snapshot, "check", lambda check: check.name in names)
    under = {one.name for diagnosis in report.diagnoses if diagnosis.name == names[0] for one in diagnosis.explains}
    return names[1] in under


def _fires(name: str) -> list[dict[str, Any]]:
    folder = name.replace("-", "_")
    return [json.loads(path.read_text()) for path in sorted(Path(__file__).parent.glob(f"*/{folder}/fires*.json"))]


def _clusters(cause: str, effect: str) -> Iterator[Snapshot]:
    """Clusters in which both fire, or may: their fixtures alone and over each other, the effect's on each host."""
    patches = [BY_HAND[cause, effect]] if (cause, effect) in BY_HAND else []
    layers = [(patch,) for patch in (*patches, *_fires(cause), *_fires(effect))]
    pairs = [(x, moved) for x in _fires(cause) for y in _fires(effect) for moved in _on_each_host(y)]
    for layer in (*layers, *pairs, *(pair[::-1] for pair in pairs)):
        document = healthy()
        for patch in layer:
            document = patch if "schema" in patch else overlaid(document, patch)
        try:
            yield Snapshot.model_validate(document)
        except ValidationError:
            continue  # these two make no cluster that can be


def _on_each_host(patch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "schema" in patch or "hosts" not in patch:
        yield patch
        return
    for turn in range(len(NAMES)):
        moved = {NAMES[(NAMES.index(name) + turn) % len(NAMES)]: change for name, change in patch["hosts"].items()}
        yield {**patch, "hosts": moved}
