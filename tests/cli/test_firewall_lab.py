"""Firewalls of every kind on a lab host: the rule is named, the commands are pasted, and the diagnosis is gone."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cli.doctor import Run, doctor
from tests.lab.cluster import Lab
from tests.lab.faults import fault

pytestmark = pytest.mark.lab

PORT, EPHEMERAL = "firewall-blocks-port", "firewall-blocks-ephemeral"
SCENES = [
    ("nftables-drop-port", PORT, "node1", "nftables", "timed-out"),
    ("nftables-policy-drop", PORT, "node1", "nftables", "timed-out"),
    ("nftables-drop-ephemeral", EPHEMERAL, "node2", "nftables", "timed-out"),
    ("iptables-reject", PORT, "node1", "iptables", "no-route"),
    ("iptables-drop-port", PORT, "node1", "iptables", "timed-out"),
    ("ufw-deny", PORT, "node1", "ufw", "timed-out"),
    ("firewalld-public", PORT, "node1", "firewalld", "no-route"),
    ("firewalld-master-port", EPHEMERAL, "node1", "firewalld", "no-route"),
]
RELOAD = {"firewalld": "firewall-cmd --reload", "ufw": "ufw reload"}


@dataclass(frozen=True)
class Rules:
    """Rules of node1 that reject the master port.

    Attributes:
        script: what makes them.
        seen: a piece of the evidence's line about the rule.
        outcome: of the dials.
        sources: whose dials they reject.
    """

    script: str
    seen: str
    outcome: str = "refused"
    manager: str = "nftables"
    sources: tuple[str, ...] = ("node2", "node3")


def nft(rules: str, *, more: str = "", table: str = "inet filter", priority: int = 0, policy: str = "accept") -> str:
    base = f"type filter hook input priority {priority}; policy {policy};"
    text = f"table {table} {{\n{more}\nchain input {{ {base}\n{rules}\n}}\n}}\n"
    return f"printf %s {shlex.quote(text)} | nft -f -"


RESET = "reject with tcp reset"
BAD = "set bad { type ipv4_addr; flags interval; elements = { 10.77.0.0/28, 192.168.0.1-192.168.0.9 }; }"
DENY = f"chain deny {{ {RESET}; }}"
TO_MASTER = "-p tcp --dport 29500 -j REJECT --reject-with"
CHAIN = "iptables-legacy -w -N GUARD; iptables-legacy -w -A GUARD -p tcp -m multiport ! --dports 22,30000:65535"
IPSET = (
    "ipset create peers hash:net; ipset add peers 10.77.0.0/29; iptables-nft -w -A INPUT -m set --match-set peers src"
)
REJECTS = {
    "tcp-reset": Rules(nft(f"tcp dport 29500 {RESET}"), "chain input, handle"),
    **{
        f"icmpx-{code}": Rules(nft(f"tcp dport 29500 reject with icmpx {code}"), "reject", outcome)
        for code, outcome in (
            ("port-unreachable", "refused"),
            ("host-unreachable", "no-route"),
            ("admin-prohibited", "no-route"),
            ("no-route", "unreachable"),
        )
    },
    "set-with-intervals": Rules(nft(f"ip saddr @bad tcp dport 1024-30000 {RESET}", more=BAD), "@bad"),
    "verdict-map": Rules(nft("tcp dport vmap { 22 : accept, 29500 : goto deny }", more=DENY), "chain deny"),
    "second-table": Rules(
        f"{nft('tcp dport 29500 accept')}; {nft(f'tcp dport 29500 {RESET}', table='ip late', priority=10)}", "ip late"
    ),
    "iptables-legacy-chain": Rules(
        f"{CHAIN} -j REJECT --reject-with tcp-reset; iptables-legacy -w -A INPUT ! -i lo -j GUARD",
        "rule 1: -A GUARD",
        manager="iptables",
    ),
    "iptables-nft-ipset": Rules(f"{IPSET} {TO_MASTER} tcp-reset", "--match-set peers src", manager="iptables"),
    "iptables-one-peer": Rules(
        f"iptables-nft -w -A INPUT -s 10.77.0.3/32 {TO_MASTER} icmp-host-unreachable",
        "-s 10.77.0.3/32",
        outcome="no-route",
        manager="iptables",
        sources=("node3",),
    ),
}
DOCKER = """\
set -e
iptables-nft -w -t nat -N DOCKER
iptables-nft -w -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
iptables-nft -w -t nat -A DOCKER ! -i docker0 -p tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
iptables-nft -w -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
iptables-nft -w -P FORWARD DROP
iptables-nft -w -N DOCKER-USER
iptables-nft -w -A FORWARD -j DOCKER-USER
"""
HEALTHY = {
    "firewalld-trusts-the-subnet": (
        "firewalld-public",
        "firewall-cmd --permanent --zone=trusted --add-source=10.77.0.0/24 && firewall-cmd --reload",
    ),
    "ufw-allows-the-subnet": ("ufw-deny", "ufw allow from 10.77.0.0/24"),
    "policy-drop-with-conntrack": (
        "nftables-policy-drop",
        "nft insert rule inet filter input ip saddr 10.77.0.0/24 ct state new accept",
    ),
    "docker": (
        "docker-bridge",
        DOCKER,
    ),
}


def check(lab: Lab) -> Run:
    return doctor(lab, "check", "--no-smoke")


def paste(lab: Lab, diagnosis: dict[str, Any]) -> None:
    commands = diagnosis["fix"]["commands"]
    assert commands
    for command in commands:
        host = lab.controller if command["host"] is None else lab.host(command["host"])
        host.run(["sh", "-c", command["command"]])


def rules(lab: Lab, name: str) -> str:
    """What the kernel has, without counters."""
    host = lab.host(name)
    text = host.run("nft list ruleset; iptables-legacy-save; iptables-save", check=False).stdout
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return "\n".join(word for line in lines for word in shlex.split(line, posix=False) if not word.isdigit())


@pytest.mark.parametrize(("broken", "name", "host", "manager", "outcome"), SCENES, ids=[scene[0] for scene in SCENES])
def test_the_rule_is_named_and_the_pasted_commands_open_the_way(
    fresh_lab: Lab, broken: str, name: str, host: str, manager: str, outcome: str
) -> None:
    fault(broken)(fresh_lab, fresh_lab.host(host))
    run = check(fresh_lab)
    assert run.names == [name], json.dumps(run.report["diagnoses"], indent=1)
    assert run.first["hosts"] == [host]
    assert run.first["facts"]["manager"].startswith(manager)
    assert {dial["outcome"] for dial in run.report["mesh"]["failed"]} == {outcome}
    assert {dial["dst"] for dial in run.report["mesh"]["failed"]} == {host}
    assert run.code == 1
    paste(fresh_lab, run.first)
    once = rules(fresh_lab, host)
    assert check(fresh_lab).names == []
    paste(fresh_lab, run.first)
    assert rules(fresh_lab, host) == once
    if manager in RELOAD:
        fresh_lab.host(host).run(RELOAD[manager])
        assert check(fresh_lab).names == []


@pytest.mark.parametrize("name", REJECTS)
def test_each_kind_of_rule_is_named_and_opened(fresh_lab: Lab, name: str) -> None:
    case = REJECTS[name]
    fresh_lab.host("node1").run(case.script)
    run = check(fresh_lab)
    assert run.names == [PORT], json.dumps(run.report["diagnoses"], indent=1)
    assert (run.first["hosts"], run.first["facts"]["manager"]) == (["node1"], case.manager)
    assert any(line.startswith("rule") and case.seen in line for line in run.first["evidence"]), run.first["evidence"]
    assert not any(line.startswith("but") for line in run.first["evidence"])
    failed = [dial for dial in run.report["mesh"]["failed"] if dial["src"] != "node1"]  # it may refuse itself, too
    assert {(dial["src"], dial["dst"], dial["outcome"]) for dial in failed} == {
        (source, "node1", case.outcome) for source in case.sources
    }
    paste(fresh_lab, run.first)
    assert check(fresh_lab).names == []


@pytest.mark.parametrize("name", HEALTHY)
def test_rules_that_let_the_cluster_through_are_no_fault(fresh_lab: Lab, name: str) -> None:
    before, opened = HEALTHY[name]
    fault(before)(fresh_lab, fresh_lab.host("node1"))
    fresh_lab.host("node1").run(opened)
    run = check(fresh_lab)
    assert (run.names, run.report["mesh"]["failed"]) == ([], [])
    assert {run.check(name)["outcome"] for name in (PORT, EPHEMERAL)} == {"pass"}


@pytest.mark.parametrize("rolled_out", ["nftables-policy-drop", "ufw-deny", "firewalld-public"])
def test_one_rule_on_all_hosts_is_one_fault_with_one_remedy(fresh_lab: Lab, rolled_out: str) -> None:
    for host in fresh_lab.hosts:
        fault(rolled_out)(fresh_lab, host)
    run = check(fresh_lab)
    assert run.names == [PORT], json.dumps(run.report["diagnoses"], indent=1)
    assert run.first["hosts"] == ["node1", "node2", "node3"]
    commands: dict[str, list[str]] = {host.name: [] for host in fresh_lab.hosts}
    for command in run.first["fix"]["commands"]:
        commands[command["host"]].append(command["command"])
    assert commands["node1"] == commands["node2"] == commands["node3"]
    assert sum(line.startswith("rule") for line in run.first["evidence"]) == 1
    paste(fresh_lab, run.first)
    assert check(fresh_lab).names == []


def test_a_rule_on_the_sender_is_the_senders_fault(fresh_lab: Lab) -> None:
    fault("nftables-output-drop")(fresh_lab, fresh_lab.host("node3"))
    run = check(fresh_lab)
    assert run.names == [PORT]
    assert run.first["hosts"] == ["node3"]
    paste(fresh_lab, run.first)
    assert check(fresh_lab).names == []


def test_what_no_rule_explains_lies_between_the_hosts(fresh_lab: Lab) -> None:
    fault("switch-drops-port")(fresh_lab, fresh_lab.host("node1"))
    run = check(fresh_lab)
    assert run.names == ["port-unreachable"]
    assert "the firewall rules of both ends let it through" in run.first["evidence"]
    assert run.check(PORT)["outcome"] == "pass"


def test_without_root_the_rules_are_unknown_only_where_a_dial_failed(fresh_lab: Lab) -> None:
    hosts = fresh_lab.hosts_file(ssh={"user": "alice"})
    healthy = doctor(fresh_lab, "check", "--no-smoke", hosts=hosts)
    assert healthy.names == []
    assert healthy.code == 0
    assert healthy.check(PORT)["outcome"] == "pass"
    fault("nftables-drop-port")(fresh_lab, fresh_lab.host("node1"))
    run = doctor(fresh_lab, "check", "--no-smoke", hosts=hosts)
    assert run.names == ["port-unreachable"]
    assert "the firewall rules of node[1-3] could not be judged" in run.first["evidence"]
    assert run.check(PORT)["outcome"] == "unknown"
    assert "root" in (run.check(PORT)["reason"] or "")


def test_counters_before_and_after_are_shown(fresh_lab: Lab) -> None:
    rule = "add table ip f; add chain ip f in { type filter hook input priority 0; }; add rule ip f in tcp dport 29500 counter drop"
    fresh_lab.host("node1").run(["nft", rule])
    run = check(fresh_lab)
    assert run.names == [PORT]
    assert any("counter 0 -> " in line for line in run.first["evidence"]), run.first["evidence"]


def test_hostile_comments_and_names_do_no_harm(fresh_lab: Lab) -> None:
    hostile = "$(touch /tmp/pwned) \x1b[31m `id` ';'"
    rule = f'add rule ip f in tcp dport 29500 drop comment "{hostile}"'
    base = "add table ip f; add chain ip f in { type filter hook input priority 0; }"
    node = fresh_lab.host("node1")
    node.run(["nft", base])
    node.run(["nft", rule])
    fresh_lab.controller.write("/root/hosts.yaml", fresh_lab.hosts_file())
    screen = fresh_lab.controller.run(
        ["nccl-doctor", "check", "hosts.yaml", "--no-smoke", "--color", "never"], check=False
    )
    assert "\x1b" not in screen.stdout
    run = check(fresh_lab)
    assert run.names == [PORT]
    paste(fresh_lab, run.first)
    assert check(fresh_lab).names == []
    for host in (*fresh_lab.hosts, fresh_lab.controller):
        assert host.run("ls /tmp/pwned", check=False).returncode != 0
