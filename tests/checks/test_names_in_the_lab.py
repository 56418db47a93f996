"""Faults of host names: each is one diagnosis of the right host, and its remedy ends it."""

from __future__ import annotations

import pytest

from tests.checks.in_the_lab import check, fires_and_what_is_printed_ends_it, is_healthy, only
from tests.cli.doctor import doctor
from tests.lab.cluster import Lab
from tests.lab.faults import fault
from tests.lab.host import LabHost

pytestmark = pytest.mark.lab


def add_to_hosts(host: LabHost, line: str) -> None:
    host.write("/etc/hosts", f"{host.read('/etc/hosts')}{line}\n")


def test_names_that_serve(fresh_lab: Lab) -> None:
    add_to_hosts(fresh_lab.host("node2"), "127.0.1.1 node2.lan")  # not the host's own name
    add_to_hosts(fresh_lab.host("node3"), "10.77.0.252 node1")  # one address in common
    is_healthy(check(fresh_lab))


def test_the_own_name_is_loopback(fresh_lab: Lab) -> None:
    fault("hostname-loopback")(fresh_lab, fresh_lab.host("node2"))
    fires_and_what_is_printed_ends_it(fresh_lab, "hostname-loopback", ["node2"])


def test_a_failed_all_reduce_follows_from_an_own_name_of_another_family(fresh_lab: Lab) -> None:
    fresh_lab.host("node2").run("hostname localhost")  # ::1 and 127.0.0.1
    found = only(doctor(fresh_lab, "check", hosts=fresh_lab.hosts_file()), "hostname-loopback", ["node2"])
    assert [effect["name"] for effect in found["explains"]] == ["allreduce-failed"]


def test_a_name_does_not_resolve(fresh_lab: Lab) -> None:
    host = fresh_lab.host("node2")
    fault("hostname-unresolvable")(fresh_lab, host)
    fires_and_what_is_printed_ends_it(fresh_lab, "hostname-unresolvable", ["node2"], by_address=True)
    found = only(check(fresh_lab), "hostname-unresolvable", ["node2"])
    [command] = found["fix"]["commands"]
    assert command["host"] == "node2"
    host.run(command["command"])
    is_healthy(check(fresh_lab))


def test_hosts_see_different_addresses(fresh_lab: Lab) -> None:
    fault("hostname-mismatch")(fresh_lab, fresh_lab.host("node2"))
    found = only(check(fresh_lab), "hostname-mismatch", ["node2"])
    assert found["severity"] == "error"
    assert found["facts"]["matrix"]["node2"] == ["10.77.0.252"]
    assert [(effect["name"], effect["hosts"]) for effect in found["explains"]] == [("port-unreachable", ["node2"])]
    is_healthy(check(fresh_lab, by_address=True))


def test_another_fault_between_the_same_hosts_stands_beside_it(fresh_lab: Lab) -> None:
    fault("hostname-mismatch")(fresh_lab, fresh_lab.host("node2"))
    fault("cut-off")(fresh_lab, fresh_lab.host("node2"))
    assert sorted(check(fresh_lab).names) == ["hostname-mismatch", "port-unreachable"]
