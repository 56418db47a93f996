"""What a failed dial is laid to, of several things that its packets meet, and what an interface's name does not prove."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.firewall.route_lookup import find_route_faults, path_of
from nccl_doctor.snapshot.mesh import Mesh
from tests.checks.snapshots import patched
from tests.firewall.facts import nft_facts

RUNS = ["up", "broadcast", "running", "multicast"]
TO = "10.0.0.1"
BY_GATEWAY = {"to": TO, "dev": "eno2", "gateway": "10.79.0.254", "prefers": "10.79.0.3", "table": 254}
NO_ROUTE = {"to": TO, "error": "ENETUNREACH"}


def interfaces(flags: list[str], **addresses: str) -> dict[str, Any]:
    links = {**dict.fromkeys(addresses, RUNS), "eno1": flags}
    return {
        "links": [
            {"name": name, "index": place, "flags": shown, "mtu": 1500, "speed_mbps": None, "kind": "physical"}
            for place, (name, shown) in enumerate(links.items(), 2)
        ],
        "addresses": [
            {"interface": name, "family": "inet", "address": address, "netmask": "255.255.255.0"}
            for name, address in addresses.items()
        ],
    }


def kind(
    source: dict[str, Any], way: dict[str, Any], back: list[dict[str, Any]] | None = None, address: str = TO
) -> str | None:
    """What stops node3's dial to node1, which has eno1 in the cluster's network and eno2 in another."""
    target = interfaces(RUNS, eno1=TO, eno2="10.79.0.1")
    dial = {"src": "node3", "dst": "node1", "address": address, "port": 40001, "outcome": "timed-out"}
    strict = {"net.ipv4.conf.all.rp_filter": "1"}
    snapshot = patched(
        {
            "mesh": {"failed": [dial]},
            "hosts": {
                "node1": {"facts": {"interfaces": target, "ways": back or [], "sysctls": strict}},
                "node3": {"facts": {"interfaces": source, "ways": [way]}},
            },
        }
    )
    assert isinstance(snapshot.mesh, Mesh)
    return next((found.kind for found in find_route_faults(snapshot, snapshot.mesh.failed).values()), None)


@pytest.mark.parametrize("way", [BY_GATEWAY, NO_ROUTE], ids=["by a gateway", "no route"])
def test_an_interface_without_the_address_that_its_namesake_has(way: dict[str, Any]) -> None:
    assert kind(interfaces(RUNS, eno2="10.79.0.3"), way) == "no-address"


def test_what_a_bond_or_a_bridge_is_made_of_has_no_address() -> None:
    in_its_network = {"to": TO, "dev": "bond0", "prefers": "10.0.0.3", "table": 254}
    assert kind(interfaces(RUNS, bond0="10.0.0.3"), in_its_network) is None
    by_gateway = {**BY_GATEWAY, "dev": "br0"}
    assert kind(interfaces(RUNS, br0="10.79.0.3"), by_gateway) is None
    member = [*RUNS, "slave"]
    assert kind(interfaces(member, eno2="10.79.0.3"), BY_GATEWAY) is None
    assert kind(interfaces(member, bond0="10.79.0.3"), NO_ROUTE) == "no-way"


def test_a_route_that_works_is_blamed_after_all_else() -> None:
    bare = interfaces(RUNS, eno2="10.79.0.3")
    refuses = {"to": TO, "source": "10.79.0.3", "iif": "eno1", "error": "EXDEV"}
    elsewhere = {"to": "10.79.0.3", "source": TO, "dev": "tun0", "prefers": TO, "table": 254}
    assert [kind(bare, BY_GATEWAY, [met]) for met in (refuses, elsewhere)] == ["filtered", "diverted"]
    assert [kind(bare, NO_ROUTE, [met]) for met in (refuses, elsewhere)] == ["no-address", "no-address"]


@pytest.mark.parametrize(("address", "stops"), [(TO, "no-way"), ("10.0.0.99", None)])
def test_of_an_address_that_is_not_its_own_the_targets_kernel_tells_nothing(address: str, stops: str | None) -> None:
    """A master address of nobody's, or a public one that is translated on the way: it sends nothing from there."""
    there = {"to": address, "dev": "eno1", "prefers": "10.0.0.3", "table": 254}
    back = {"to": "10.0.0.3", "source": address, "error": "ENETUNREACH"}
    assert kind(interfaces(RUNS, eno1="10.0.0.3"), there, [back], address) == stops


def test_no_way_back_to_the_address_that_a_diverted_route_prefers_is_that_route() -> None:
    """A tunnel's own address, from which the host would not have sent by the network that it shares with its peers."""
    source = interfaces(RUNS, eno1="10.0.0.3", wg0="10.200.0.3")
    way = {"to": TO, "dev": "wg0", "prefers": "10.200.0.3", "table": 51820}
    back = {"to": "10.200.0.3", "source": TO, "error": "ENETUNREACH"}
    assert kind(source, way, [back]) == "diverted"
    assert kind(source, {**way, "dev": "eno1", "prefers": "10.0.0.3"}, [{**back, "to": "10.0.0.3"}]) == "no-way"


def test_a_rule_that_writes_the_time_to_live_leaves_it_unknown() -> None:
    def known(expression: dict[str, Any] | None) -> int | None:
        facts = nft_facts([expression] if expression else []).model_dump(mode="json")
        settings = {"firewall": facts, "sysctls": {"net.ipv4.ip_default_ttl": "64"}}
        hosts = {host.name: host for host in patched({"hosts": {"node3": {"facts": settings}}}).hosts}
        found = path_of(TO, hosts["node3"], hosts["node1"], {})
        assert found is not None
        return found.ends.ttl

    assert known(None) == 64
    assert known({"mangle": {"key": {"payload": {"protocol": "ip", "field": "ttl"}}, "value": 3}}) is None
