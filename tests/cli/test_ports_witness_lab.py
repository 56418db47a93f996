"""Ports, with torch's own verdict: which one is suggested, which rule stops one that nobody could dial."""

from __future__ import annotations

import pytest

from tests.cli import gloo_job
from tests.lab.cluster import Lab, MakeLab

pytestmark = pytest.mark.lab

NEXT = ["nccl-doctor", "fix-port", "--hosts", "hosts.yaml", "--next"]
USUAL = "ct state established,related accept; iif lo accept; meta l4proto icmp accept; tcp dport 22 accept;"


def closed_but(lab: Lab, ports: str) -> None:
    """node1 lets in SSH and these ports, and drops the rest."""
    text = f"table ip f {{ chain in {{ type filter hook input priority 0; policy drop; {USUAL} {ports}\n}}\n}}"
    lab.host("node1").run(["nft", "-f", "-"], input=f"flush ruleset\n{text}\n")


def test_next_is_a_port_that_the_firewall_lets_through(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    lab.controller.write("/root/hosts.yaml", lab.hosts_file())
    assert lab.controller.run(NEXT).stdout == "29501\n"
    assert gloo_job.works(lab, 29501)
    closed_but(lab, "tcp dport { 29503, 32768-60999 } accept;")
    assert gloo_job.fails(lab, 29501)
    assert lab.controller.run(NEXT).stdout == "29503\n"
    assert gloo_job.works(lab, 29503)
    closed_but(lab, "")
    none = lab.controller.run(NEXT, check=False)
    assert (none.returncode, none.stdout) == (2, "")
    assert "node2 can't reach node1 (node1) on any port that is free there" in none.stderr
