"""What real managers wrote, captured on a host: who is let in, and who says so."""

from __future__ import annotations

import pytest

from nccl_doctor.firewall.manager import managed_by, manager_of
from nccl_doctor.firewall.rules import RuleRef
from nccl_doctor.model.base import unknown
from tests.firewall.facts import arriving, captured, verdict

PEER, STRANGER = "10.9.0.1", "10.8.0.1"


@pytest.mark.parametrize(
    ("name", "saddr", "dport", "kind", "manager"),
    [
        ("firewalld_public", PEER, 29500, "reject", "firewalld"),
        ("firewalld_public", PEER, 22, "accept", ""),
        ("firewalld_public", "fd09::1", 29500, "reject", "firewalld"),
        ("firewalld_master_port", PEER, 29500, "accept", ""),
        ("firewalld_master_port", PEER, 40000, "reject", "firewalld"),
        ("firewalld_trusted", PEER, 40000, "accept", ""),
        ("firewalld_trusted", STRANGER, 40000, "reject", "firewalld"),
        ("firewalld_internal", PEER, 40000, "reject", "firewalld"),
        ("ufw_deny", PEER, 29500, "drop", "ufw"),
        ("ufw_deny", "fd09::1", 29500, "drop", "ufw"),
        ("ufw_subnet", PEER, 29500, "accept", ""),
        ("ufw_subnet", STRANGER, 29500, "drop", "ufw"),
        ("docker", PEER, 29500, "accept", ""),
    ],
)
def test_who_is_let_in(name: str, saddr: str, dport: int, kind: str, manager: str) -> None:
    facts = captured(name)
    found = verdict(facts, arriving(saddr, dport, path_back=True))
    assert (found.kind, manager_of(found.rule, facts) if found.rule else "") == (kind, manager)


@pytest.mark.parametrize("name", ["firewalld_public", "ufw_deny"])
def test_loopback_is_let_in(name: str) -> None:
    packet = arriving("10.9.0.2", 29500, iif="lo", path_back=True)
    assert verdict(captured(name), packet).kind == "accept"


def test_a_published_port_of_docker_goes_elsewhere() -> None:
    found = verdict(captured("docker"), arriving(dport=8080))
    assert found.kind == "redirect"
    assert isinstance(found.rule, RuleRef)
    assert "--to-destination 172.17.0.2:80" in found.rule.text


def test_a_reverse_path_filter_needs_to_know_the_route_back() -> None:
    found = verdict(captured("firewalld_master_port"), arriving("fd09::1"))
    assert found.kind == "unknown"
    assert found.rule
    assert "fib saddr" in found.rule.text


@pytest.mark.parametrize(
    ("name", "manager"), [("firewalld_public", "firewalld"), ("ufw_deny", "ufw"), ("docker", "iptables")]
)
def test_who_keeps_the_rules_is_known_where_the_manager_had_no_time_to_answer(name: str, manager: str) -> None:
    facts = captured(name)
    silent = unknown("it took too long")
    assert managed_by(facts) == manager
    assert managed_by(facts.model_copy(update={"firewalld": silent, "ufw": silent})) == manager
