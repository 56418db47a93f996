"""Names and who is cut off, with torch's own verdict; what is printed is pasted, and torch works again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli import gloo_job
from tests.cli.doctor import Run, doctor
from tests.lab.cluster import Lab, MakeLab
from tests.lab.faults.network import map_name, switch_rule
from tests.lab.host import LabHost

pytestmark = pytest.mark.lab


def check(lab: Lab, *words: str, **change: Any) -> Run:
    return doctor(lab, "check", "--no-smoke", *words, hosts=lab.hosts_file(**change))


@pytest.fixture(scope="module")
def three() -> Iterator[Lab]:
    """Three hosts that the tests of this module share; each mends what it broke."""
    with Lab.up(3) as lab:
        yield lab


def test_a_second_address_of_the_master_that_reaches_it_is_no_fault(three: Lab) -> None:
    master, other = three.host("node1"), three.host("node2")
    before = other.read("/etc/hosts")
    try:
        master.run("ip address add 10.77.0.240/24 dev eth0")
        map_name(other, "node1", "10.77.0.240")
        run = check(three, master_addr="node1")
        assert (run.names, run.code) == ([], 0), run.report["diagnoses"]
        assert gloo_job.works(three, master="node1")
        map_name(other, "node1", "10.77.0.241")
        assert gloo_job.fails(three, master="node1")
        assert check(three, master_addr="node1").names == ["hostname-mismatch"]
    finally:
        other.write("/etc/hosts", before)
        master.run("ip address del 10.77.0.240/24 dev eth0")


def test_one_of_five_that_the_switch_cuts_off_is_the_one(make_lab: MakeLab) -> None:
    lab = make_lab(5)
    node = lab.host("node3")
    for other in lab.others(node):
        switch_rule(lab, f"ip saddr {node.address} ip daddr {other.address} drop")
        switch_rule(lab, f"ip saddr {other.address} ip daddr {node.address} drop")
    run = check(lab, "--write-hosts", "good")
    assert (run.names, run.first["hosts"]) == (["port-unreachable"], ["node3"]), json.dumps(run.first, indent=1)
    good = lab.controller.read("/root/good").split()
    assert good == ["node1", "node2", "node4", "node5"]

    def of(names: list[str]) -> list[LabHost]:
        return [lab.host(name) for name in names]

    assert gloo_job.fails(lab, hosts=of(["node1", "node3"]))
    assert gloo_job.works(lab, hosts=of(good))
