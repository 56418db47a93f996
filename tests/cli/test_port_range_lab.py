"""The range that a host draws its own ports from: what is printed, pasted on the host, ends the diagnosis."""

from __future__ import annotations

import pytest

from tests.cli.doctor import doctor
from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [
        pytest.param(1024, 65535, "port-in-ephemeral-range", id="master-port-within"),
        pytest.param(40000, 40010, "ephemeral-ports-few", id="eleven-ports"),
    ],
)
def test_a_range_that_does_not_suit_the_job(fresh_lab: Lab, low: int, high: int, name: str) -> None:
    node = fresh_lab.host("node1")
    node.run(["sysctl", "-w", f"net.ipv4.ip_local_port_range={low} {high}"])
    run = doctor(fresh_lab, "check", "--no-smoke")
    assert run.names == [name]
    assert run.first["hosts"] == ["node1"]
    assert (run.first["facts"]["low"], run.first["facts"]["high"]) == (low, high)
    for command in run.first["fix"]["commands"]:
        fresh_lab.host(command["host"]).run(command["command"])
    assert doctor(fresh_lab, "check", "--no-smoke").names == []
