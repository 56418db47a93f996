"""Who reaches whom: routes first, the port mesh where a gateway lies between."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.nccl.cluster_nccl import cluster_nccl
from nccl_doctor.nccl.host_nccl import HostNccl
from nccl_doctor.nccl.reachability import LossCause, Reachable, is_private, reach
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.network import Route
from tests.checks.snapshots import patched

GATEWAY = {"family": "inet", "destination": "0.0.0.0/0", "gateway": "10.0.0.254", "interface": "eno1", "metric": 100}
LOCAL = {"family": "inet", "destination": "10.0.0.0/24", "gateway": None, "interface": "eno1", "metric": 0}


def facts(change: dict[str, Any]) -> dict[str, Any]:
    return {"hosts": {"node2": {"facts": change}}}


def pair(patch: dict[str, Any]) -> tuple[HostNccl, HostNccl]:
    by_host = cluster_nccl(patched(patch)).by_host
    return by_host["node1"], by_host["node2"]


def addresses(*rows: tuple[str, str, str]) -> dict[str, Any]:
    links = [
        {"name": name, "index": index, "flags": ["up", "running"], "mtu": 1500, "speed_mbps": None, "kind": kind}
        for index, (name, kind, _) in enumerate(rows, start=2)
    ]
    entries = [
        {"interface": name, "family": "inet", "address": address, "netmask": "255.255.0.0"} for name, _, address in rows
    ]
    return {"links": links, "addresses": entries}


def test_a_neighbour_on_the_same_net() -> None:
    one, two = pair({})
    assert reach(one, two, "10.0.0.2", None).answer is Reachable.YES


@pytest.mark.parametrize(
    ("address", "cause"),
    [("127.0.0.1", LossCause.LOOPBACK), ("10.0.0.1", LossCause.OWN_ADDRESS), ("192.0.2.1", LossCause.GATEWAY)],
)
def test_addresses_that_lead_elsewhere(address: str, cause: LossCause) -> None:
    patch = facts({"interfaces": addresses(("br-1", "bridge", "192.0.2.1"), ("eno1", "physical", "10.0.0.2"))})
    verdict = reach(*pair(patch), address, None)
    assert (verdict.answer, verdict.cause) == (Reachable.NO, cause)


def test_two_nodes_on_one_machine_reach_each_other_by_loopback() -> None:
    both = {"identity": {"boot_id": "b"}, "interfaces": addresses(("eno1", "physical", "10.0.0.1"))}
    patch = {"hosts": {"node1": {"facts": both}, "node2": {"facts": both}}}
    assert reach(*pair(patch), "127.0.0.1", None).answer is Reachable.YES


def test_containers_on_one_machine_are_hosts_of_their_own() -> None:
    same_kernel = {"identity": {"boot_id": "00000000-0000-0000-0000-000000000000"}}
    assert reach(*pair(facts(same_kernel)), "127.0.0.1", None).answer is Reachable.NO


def test_what_the_kernel_refuses_to_route_is_no_route_whatever_the_table_says() -> None:
    refused = {"addresses": ["10.0.0.2"], "source": None, "source_error": "EHOSTUNREACH"}
    patch = {"hosts": {"node1": {"facts": {"resolution": {"10.0.0.2": refused}}}}}
    verdict = reach(*pair(patch), "10.0.0.2", None)
    assert (verdict.cause, "EHOSTUNREACH" in verdict.why) == (LossCause.NO_ROUTE, True)


def test_no_route_at_all() -> None:
    patch = {"hosts": {"node1": {"facts": {"routes": [LOCAL]}}}}
    assert reach(*pair(patch), "192.0.2.1", None).cause is LossCause.NO_ROUTE


def routed(mesh: dict[str, Any]) -> tuple[HostNccl, HostNccl, Mesh]:
    """node2 on another subnet, with a gateway of its own there."""
    far = {**GATEWAY, "gateway": "10.9.0.254"}
    snapshot = patched(
        {
            **facts(
                {
                    "interfaces": addresses(("eno1", "physical", "10.9.0.2")),
                    "routes": [{**LOCAL, "destination": "10.9.0.0/16"}, far],
                    "libnccl": {"version": "2.27.7", "interface": "eno1", "address": "10.9.0.2", "error": None},
                }
            ),
            "mesh": {"answered": {"node2": {"10.9.0.2": ["node1", "node3"]}}, **mesh},
        }
    )
    assert isinstance(snapshot.mesh, Mesh)
    by_host = cluster_nccl(snapshot).by_host
    return by_host["node1"], by_host["node2"], snapshot.mesh


def dial(outcome: str) -> dict[str, Any]:
    return {"src": "node1", "dst": "node2", "address": "10.9.0.2", "port": 40003, "outcome": outcome}


def test_behind_a_gateway_the_mesh_decides() -> None:
    one, two, whole = routed({})
    assert reach(one, two, "10.9.0.2", whole).answer is Reachable.YES
    assert reach(one, two, "10.9.0.2", None).answer is Reachable.UNSURE
    for outcome, answer in (("timed-out", Reachable.NO), ("no-route", Reachable.NO), ("refused", Reachable.UNSURE)):
        one, two, mesh = routed({"failed": [dial(outcome)]})
        assert reach(one, two, "10.9.0.2", mesh).answer is answer


def test_a_mesh_that_did_not_try_proves_nothing() -> None:
    meshes: tuple[dict[str, Any], ...] = (
        {"answered": {}},
        {"answered": {"node2": {"10.9.0.2": ["node3"]}}},
        {"answered": {"node2": {"10.0.0.2": ["node1"]}, "node3": {"10.9.0.2": ["node1"]}}},
    )
    for mesh in meshes:
        one, two, seen = routed(mesh)
        assert reach(one, two, "10.9.0.2", seen).answer is Reachable.UNSURE


def test_a_firewall_between_neighbours_is_no_matter_of_interfaces() -> None:
    failed = [{**dial("timed-out"), "address": "10.0.0.2"}]
    snapshot = patched({"mesh": {"failed": failed}})
    assert isinstance(snapshot.mesh, Mesh)
    by_host = cluster_nccl(snapshot).by_host
    assert reach(by_host["node1"], by_host["node2"], "10.0.0.2", snapshot.mesh).answer is Reachable.YES


def test_unknown_routes_leave_it_open() -> None:
    patch = {"hosts": {"node1": {"facts": {"routes": {"$unknown": "no /proc"}}}}}
    verdict = reach(*pair(patch), "10.0.0.2", None)
    assert verdict.answer is Reachable.UNSURE
    assert "no /proc" in verdict.why


def test_the_kernel_takes_the_longest_prefix_and_then_the_lowest_metric() -> None:
    routes = [
        GATEWAY,
        {**LOCAL, "interface": "eno2", "metric": 50},
        LOCAL,
        {**LOCAL, "destination": "10.0.0.2/32", "interface": "wg0"},
    ]
    one, _ = pair({"hosts": {"node1": {"facts": {"routes": routes}}}})

    def way(address: str) -> str:
        route = one.route_to(address)
        assert isinstance(route, Route)
        return route.interface

    assert [way("10.0.0.2"), way("10.0.0.3"), way("192.0.2.1")] == ["wg0", "eno1", "eno1"]


def test_what_is_private_shows_in_kind_and_routes_not_in_the_name() -> None:
    rows = (("docker0", "physical", "172.17.0.2"), ("eno1", "bridge", "10.0.0.2"), ("lan", "bridge", "10.7.0.2"))
    _, two = pair(facts({"interfaces": addresses(*rows)}))
    assert [is_private(two, name) for name in ("docker0", "eno1", "lan")] == [False, False, True]
