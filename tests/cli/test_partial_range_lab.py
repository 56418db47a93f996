"""A rule that drops a part of the ephemeral range, which other dials meet each time."""

from __future__ import annotations

import pytest

from tests.checks.in_the_lab import check, is_healthy, paste
from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab


def test_its_remedy_opens_the_range_for_all_and_for_the_host_itself(fresh_lab: Lab) -> None:
    first = fresh_lab.hosts[0]
    first.run("iptables -A INPUT -p tcp --dport 33000:60999 -j DROP")
    run = check(fresh_lab)
    assert set(run.names) <= {"firewall-blocks-port", "firewall-blocks-ephemeral"}, run.report["diagnoses"]
    assert {host for found in run.report["diagnoses"] for host in found["hosts"]} == {"node1"}
    for found in run.report["diagnoses"]:
        paste(fresh_lab, found)
    rules = first.run("iptables -S INPUT").stdout
    assert all(f"-s {host.address}/32" in rules for host in fresh_lab.hosts)
    for _ in range(3):
        is_healthy(check(fresh_lab))
