"""A switch that loses some packets on the way to node3, with its host's rules and load innocent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.program import run_in
from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab

SYN = "tcp dport 1024-65535 tcp flags & (syn|ack) == syn"
DROPS = {
    "one route of four is dead": f"{SYN} tcp sport & 6 == 2 drop",
    "one route of sixteen is dead": f"{SYN} tcp sport & 30 == 2 drop",
    "half of the first packets": f"{SYN} numgen random mod 2 == 0 drop",
    "one packet of five": "tcp dport 1024-65535 numgen random mod 5 == 0 drop",
}


@pytest.fixture(scope="module")
def three() -> Iterator[Lab]:
    """Three hosts that the tests of this module share."""
    with Lab.up(3) as lab:
        lab.controller.write("/root/hosts.yaml", lab.hosts_file())
        yield lab


def report(lab: Lab, drops: str) -> dict[str, Any]:
    """What check says while the switch drops these packets to node3."""
    address = lab.host("node3").address
    chain = "add chain bridge lossy forward { type filter hook forward priority 0; }"
    lab.switch(["nft", f"add table bridge lossy; {chain}; add rule bridge lossy forward ip daddr {address} {drops}"])
    try:
        done = run_in(lab.controller, "check", "hosts.yaml", "-o", "json", "--only", "ports,interfaces")
    finally:
        lab.switch(["nft", "delete table bridge lossy"])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("drops", [name for name in DROPS if "route" in name])
def test_a_path_that_loses_some_connections_and_passes_others(three: Lab, drops: str) -> None:
    """Each dial that it loses succeeds from another port, so the port test alone would pass."""
    (found,) = report(three, DROPS[drops])["diagnoses"]
    assert (found["name"], found["severity"], found["hosts"]) == ("port-unreachable", "error", ["node3"])
    assert (
        " connection attempts from node[1-2] to node3 got no answer, although other attempts to reach the same ports succeeded."
        in found["message"]
    )
    assert "a dead member of a bond" in found["fix"]["summary"]


@pytest.mark.parametrize("drops", [name for name in DROPS if "route" not in name])
def test_a_path_that_loses_packets_at_random(three: Lab, drops: str) -> None:
    """It is neither a closed port nor an MTU, although large packets are lost, too."""
    (found,) = report(three, DROPS[drops])["diagnoses"]
    assert (found["name"], found["severity"]) == ("round-trip-long", "warning")
    assert "3" in found["message"].partition(" are lost")[0], found  # node[1,3] if only one pair shows it


def test_nothing_is_said_of_a_sound_path(three: Lab) -> None:
    assert report(three, "tcp dport 1 drop")["diagnoses"] == []
