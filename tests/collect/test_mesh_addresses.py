"""What a host claims sends the others nowhere that they don't know themselves."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from nccl_doctor.collect.mesh.plan import confirmed
from nccl_doctor.snapshot.hosts import HostFacts
from tests.checks.snapshots import patched

NODE2 = patched({}).cluster.nodes[1].model_copy(update={"address": "node2"})


def source(**change: Any) -> HostFacts:
    facts = patched({"hosts": {"node1": {"facts": change}}}).hosts[0].facts
    assert facts is not None
    return facts


@pytest.mark.parametrize(
    ("address", "known"),
    [
        ("node2", True),  # the plan says it
        ("10.0.0.2", True),  # node1's own resolver says it, and it is in its net
        ("10.200.3.2", True),  # another rack's net, in the private block of node1's own address
        ("192.168.1.5", False),  # private, but none of node1's: only the default route leads there
        ("100.64.0.2", False),
        ("fd00::2", False),
        ("10.0.0.255", False),  # everybody in node1's net
        ("255.255.255.255", False),
        ("0.0.0.0", False),
        ("203.0.113.66", False),
        ("169.254.169.254", False),
        ("::ffff:169.254.169.254", False),
        ("169.254.7.7", False),
        ("127.0.0.1", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("node3", False),
        ("metadata.google.internal", False),
    ],
)
def test_only_what_the_dialling_host_knows_itself(address: str, known: bool) -> None:
    assert confirmed(address, NODE2, source()) is known


def test_a_route_of_its_own_confirms_and_a_link_local_net_too_but_never_the_metadata_service() -> None:
    route = {"family": "inet", "gateway": "10.0.0.254", "interface": "eno1", "metric": 0}
    routes = [{**route, "destination": net} for net in ("192.168.0.0/16", "169.254.0.0/16")]
    own = source(routes=routes)
    told = [confirmed(address, NODE2, own) for address in ("192.168.1.5", "169.254.7.7", "169.254.169.254")]
    assert told == [True, True, False]


RACKS = {
    "10.1.0.5/24": ["10.200.3.7", "10.255.0.1"],
    "172.16.4.5/22": ["172.31.200.9"],
    "192.168.1.5/24": ["192.168.77.9"],
    "100.64.0.5/32": ["100.127.3.3"],
    "fd12:3456::5/64": ["fd99::7"],
}
NOWHERE = ["8.8.8.8", "203.0.113.66", "2001:db8::7", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254", "fe80::7"]


@pytest.mark.parametrize("own", RACKS)
def test_a_routed_fabric_is_dialled_behind_its_default_routes_and_nothing_public_is(own: str) -> None:
    net = ipaddress.ip_interface(own)
    family = "inet" if net.version == 4 else "inet6"
    entry = {"interface": "eno1", "family": family, "address": str(net.ip), "netmask": str(net.netmask)}
    interfaces = {"addresses": [entry]}
    default = {"family": "inet", "destination": "0.0.0.0/0", "gateway": "10.1.0.1", "interface": "eno1", "metric": 0}
    facts = source(interfaces=interfaces, routes=[default], resolution={})
    assert [address for address in RACKS[own] if not confirmed(address, NODE2, facts)] == []
    others = [address for other, there in RACKS.items() if other != own for address in there]
    assert [address for address in (*NOWHERE, *others) if confirmed(address, NODE2, facts)] == []


def test_a_host_of_which_nothing_is_known_dials_what_the_plan_names() -> None:
    nothing = {"$unknown": "no netlink"}
    own = source(interfaces=nothing, routes=nothing, resolution=nothing)
    assert confirmed("node2", NODE2, own)
    assert not confirmed("10.0.0.2", NODE2, own)
