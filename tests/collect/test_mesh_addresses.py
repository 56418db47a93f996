"""What a host claims sends the others nowhere that they don't know themselves."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.collect.mesh_addresses import confirmed
from nccl_doctor.snapshot import HostFacts
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
        ("10.0.9.2", True),  # private, near an address of node1's own
        ("10.9.0.2", False),
        ("192.168.1.5", False),  # only the default route leads there
        ("203.0.113.66", False),
        ("169.254.169.254", False),
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


def test_a_host_of_which_nothing_is_known_dials_what_the_plan_names() -> None:
    nothing = {"$unknown": "no psutil"}
    own = source(interfaces=nothing, routes=nothing, resolution=nothing)
    assert confirmed("node2", NODE2, own)
    assert not confirmed("10.0.0.2", NODE2, own)
