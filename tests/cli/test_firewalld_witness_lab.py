"""firewalld's own ways to refuse, with torch's own verdict; what is printed is pasted, and torch works again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.checks.in_the_lab import check, is_healthy, only, paste
from tests.cli import gloo_job
from tests.lab.cluster import Lab
from tests.lab.faults import fault

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def firewalled() -> Iterator[Lab]:
    """Two hosts, of which node1 has a firewalld that lets the other one in; each test mends what it broke."""
    with Lab.up(2) as lab:
        node = lab.host("node1")
        fault("firewalld-public")(lab, node)
        node.run(f"firewall-cmd --permanent --zone=public --add-source={lab.host('node2').address}")
        node.run("firewall-cmd --permanent --zone=public --add-port=1024-65535/tcp && firewall-cmd --reload")
        yield lab


def test_a_rich_rule_of_the_zone_that_rejects(firewalled: Lab) -> None:
    """An accept beside it lands behind it; one with a priority stands before."""
    node = firewalled.host("node1")
    is_healthy(check(firewalled, by_address=True))
    assert gloo_job.works(firewalled)
    rich = 'rule family="ipv4" source address="10.77.0.0/24" port port="29500" protocol="tcp" reject'
    node.run(["firewall-cmd", "--permanent", "--zone=public", f"--add-rich-rule={rich}"])
    node.run("firewall-cmd --reload")
    try:
        assert gloo_job.fails(firewalled)
        found = only(check(firewalled, by_address=True), "firewall-blocks-port", ["node1"])
        assert found["facts"]["manager"] == "firewalld"
        assert any(f"zone public: {rich}" in line for line in found["evidence"])
        paste(firewalled, found)
        assert gloo_job.works(firewalled)
        is_healthy(check(firewalled, by_address=True))
    finally:
        node.run(["firewall-cmd", "--permanent", "--zone=public", f"--remove-rich-rule={rich}"])
        node.run("firewall-cmd --reload")


def test_a_direct_rule(firewalled: Lab) -> None:
    """It comes before all zones: an accept in one would change nothing."""
    node = firewalled.host("node1")
    rule = "ipv4 filter INPUT 0 -p tcp --dport 29500 -j DROP"
    node.run(f"firewall-cmd --permanent --direct --add-rule {rule}; firewall-cmd --reload")
    try:
        assert gloo_job.fails(firewalled)
        found = only(check(firewalled, by_address=True), "firewall-blocks-port", ["node1"])
        assert found["message"].startswith("firewalld on node1 drops")
        assert any(f"direct rule of firewalld: {rule}" in line for line in found["evidence"])
        assert "A direct rule of firewalld does it" in found["fix"]["summary"]
        paste(firewalled, found)
        assert gloo_job.works(firewalled)
        is_healthy(check(firewalled, by_address=True))
        node.run("firewall-cmd --reload")
        is_healthy(check(firewalled, by_address=True))
    finally:
        node.run("firewall-cmd --permanent --direct --remove-rules ipv4 filter INPUT; firewall-cmd --reload")
