"""Firewalls of every kind on a lab host: the rule is named, the commands are pasted, and the diagnosis is gone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cli.doctor import Run, doctor
from tests.cli.program import run_in
from tests.lab.cluster import Lab, MakeLab
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
        hosts: how many there are, on a lab of their own where they are more than two.
    """

    script: str
    seen: str
    outcome: str = "refused"
    manager: str = "nftables"
    sources: tuple[str, ...] = ("node2",)
    hosts: int = 2


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
MANY = (
    "{ echo 'table ip many { chain services {'; seq 9000 | sed 's/.*/tcp dport & accept/'; echo '} }'; } | nft -f -; "
)
SERVICES = "{ echo 'table ip services {'; seq 300 | sed 's/.*/chain s& { accept; }/'; echo '}'; } | nft -f -; "
REJECTS = {
    "among-many": Rules(MANY + nft(f"tcp dport 29500 {RESET}"), "tcp dport 29500 reject with tcp reset"),
    "among-many-chains": Rules(
        SERVICES + nft(f"tcp dport 29500 {RESET}", table="ip services"), "tcp dport 29500 reject with tcp reset"
    ),
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
        sources=("node2", "node3"),
        hosts=3,  # the tables of its own that the kernel then has are no other test's
    ),
    "iptables-nft-ipset": Rules(f"{IPSET} {TO_MASTER} tcp-reset", "--match-set peers src", manager="iptables"),
    "iptables-one-peer": Rules(
        f"iptables-nft -w -A INPUT -s 10.77.0.3/32 {TO_MASTER} icmp-host-unreachable",
        "-s 10.77.0.3/32",
        outcome="no-route",
        manager="iptables",
        sources=("node3",),
        hosts=3,
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
    "docker": ("docker-bridge", DOCKER),
}


@pytest.fixture(scope="module")
def _two() -> Iterator[Lab]:
    with Lab.up(2) as lab:
        yield lab


@pytest.fixture
def pair(_two: Lab) -> Iterator[Lab]:
    """Two hosts that these tests share; the rules of nft that one has made go with it."""
    yield _two
    for host in _two.hosts:
        host.run("nft flush ruleset; ipset destroy")
    _two.switch(["nft", "flush", "ruleset"])


@pytest.fixture(scope="module")
def firewalled() -> Iterator[Lab]:
    """Two hosts, on the first of which firewalld is started once: its faults make it anew what it was."""
    with Lab.up(2) as lab:
        yield lab


@pytest.fixture
def two(make_lab: MakeLab) -> Lab:
    """Two hosts of a test's own."""
    return make_lab(2)


def lab_for(broken: str, request: pytest.FixtureRequest) -> Lab:
    """Two hosts to break so: what a test makes of ufw and of bridges is not undone."""
    kind = broken.partition("-")[0]
    shared = {"nftables": "pair", "iptables": "pair", "firewalld": "firewalled"}
    lab: Lab = request.getfixturevalue(shared.get(kind, "two"))
    return lab


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
    request: pytest.FixtureRequest, broken: str, name: str, host: str, manager: str, outcome: str
) -> None:
    lab = lab_for(broken, request)
    fault(broken)(lab, lab.host(host))
    run = check(lab)
    assert run.names == [name], json.dumps(run.report["diagnoses"], indent=1)
    assert run.first["hosts"] == [host]
    assert run.first["facts"]["manager"].startswith(manager)
    assert {dial["outcome"] for dial in run.report["mesh"]["failed"]} == {outcome}
    assert {dial["dst"] for dial in run.report["mesh"]["failed"]} == {host}
    assert run.code == 1
    paste(lab, run.first)
    once = rules(lab, host)
    assert check(lab).names == []
    paste(lab, run.first)
    assert rules(lab, host) == once
    if manager in RELOAD:
        lab.host(host).run(RELOAD[manager])
        assert check(lab).names == []


@pytest.mark.parametrize("name", REJECTS)
def test_each_kind_of_rule_is_named_and_opened(pair: Lab, make_lab: MakeLab, name: str) -> None:
    case = REJECTS[name]
    lab = pair if case.hosts == 2 else make_lab(case.hosts)
    lab.host("node1").run(case.script)
    run = check(lab)
    assert run.names == [PORT], json.dumps(run.report["diagnoses"], indent=1)
    assert (run.first["hosts"], run.first["facts"]["manager"]) == (["node1"], case.manager)
    assert any(line.startswith("rule") and case.seen in line for line in run.first["evidence"]), run.first["evidence"]
    assert not any(line.startswith("but") for line in run.first["evidence"])
    failed = [dial for dial in run.report["mesh"]["failed"] if dial["src"] != "node1"]  # it may refuse itself, too
    assert {(dial["src"], dial["dst"], dial["outcome"]) for dial in failed} == {
        (source, "node1", case.outcome) for source in case.sources
    }
    paste(lab, run.first)
    assert check(lab).names == []


@pytest.mark.parametrize("name", HEALTHY)
def test_rules_that_let_the_cluster_through_are_no_fault(request: pytest.FixtureRequest, name: str) -> None:
    before, opened = HEALTHY[name]
    lab = lab_for(before, request)
    fault(before)(lab, lab.host("node1"))
    lab.host("node1").run(opened)
    run = check(lab)
    assert (run.names, run.report["mesh"]["failed"]) == ([], [])
    assert {run.check(name)["outcome"] for name in (PORT, EPHEMERAL)} == {"pass"}


@pytest.mark.parametrize("rolled_out", ["nftables-policy-drop", "ufw-deny", "firewalld-public"])
def test_one_rule_on_all_hosts_is_one_fault_with_one_remedy(request: pytest.FixtureRequest, rolled_out: str) -> None:
    two = lab_for(rolled_out, request)
    for host in two.hosts:
        fault(rolled_out)(two, host)
    run = check(two)
    assert run.names == [PORT], json.dumps(run.report["diagnoses"], indent=1)
    assert run.first["hosts"] == ["node1", "node2"]
    commands: dict[str, list[str]] = {host.name: [] for host in two.hosts}
    for command in run.first["fix"]["commands"]:
        commands[command["host"]].append(command["command"])
    assert commands["node1"] == commands["node2"]
    assert sum(line.startswith("rule") for line in run.first["evidence"]) == 1
    paste(two, run.first)
    assert check(two).names == []


def test_a_rule_on_the_sender_is_the_senders_fault(pair: Lab) -> None:
    fault("nftables-output-drop")(pair, pair.host("node2"))
    run = check(pair)
    assert run.names == [PORT]
    assert run.first["hosts"] == ["node2"]
    paste(pair, run.first)
    assert check(pair).names == []


def test_what_no_rule_explains_lies_between_the_hosts(pair: Lab) -> None:
    fault("switch-drops-port")(pair, pair.host("node1"))
    run = check(pair)
    assert run.names == ["port-unreachable"]
    assert "no firewall rule on either host blocks these connections" in run.first["evidence"]
    assert run.check(PORT)["outcome"] == "pass"


def test_without_root_the_rules_are_unknown_only_where_a_dial_failed(pair: Lab) -> None:
    hosts = pair.hosts_file(ssh={"user": "alice"})
    healthy = doctor(pair, "check", "--no-smoke", hosts=hosts)
    assert healthy.names == []
    assert healthy.code == 0
    assert healthy.check(PORT)["outcome"] == "pass"
    fault("nftables-drop-port")(pair, pair.host("node1"))
    run = doctor(pair, "check", "--no-smoke", hosts=hosts)
    assert run.names == ["port-unreachable"]
    assert "the firewall rules of node[1-2] could not be judged" in run.first["evidence"]
    look = [("node1", "nft list ruleset"), ("node1", "iptables-save")]
    assert [(one["host"], one["command"]) for one in run.first["fix"]["commands"]] == look
    assert run.check(PORT)["outcome"] == "unknown"
    assert "root" in (run.check(PORT)["reason"] or "")


SIDE = "tcp dport 22 accept; tcp sport 22 accept;"
LATER_RULES = {
    "beside-another-host's": {
        "node2": f"table ip t1 {{ chain c {{ type filter hook input priority 0; {SIDE} iif lo accept; "
        "ip saddr 10.77.0.1 ip ttl < 65 meta l4proto tcp reject with tcp reset; }; }",
        "node3": f"table ip t2 {{ chain c {{ type filter hook input priority 0; {SIDE} iif lo accept; "
        "tcp dport 29500-65535 counter drop; tcp dport != 22 reject; }; }",
    },
    "behind-a-side-chain": {
        "node1": f"table ip t3 {{ chain side {{ {SIDE} ip saddr {{ 10.77.0.1, 10.77.0.3 }} drop; return; }}; "
        f"chain c {{ type filter hook prerouting priority -300; {SIDE} iif lo accept; "
        "tcp flags & (syn|ack) != syn accept; tcp flags syn jump side; "
        "ip saddr { 10.77.0.1, 10.77.0.3 } return; ip ttl < 65 drop; }; }"
    },
}


@pytest.mark.parametrize("name", LATER_RULES)
def test_a_rule_that_looks_at_the_time_to_live_is_judged_and_mended(name: str, make_lab: MakeLab) -> None:
    trio = make_lab(3)
    for host, rules in LATER_RULES[name].items():
        trio.host(host).run(f"nft -f - <<'END'\n{rules}\nEND")
    run = check(trio)
    assert set(run.names) <= {PORT, EPHEMERAL}
    found = run.report["diagnoses"]
    assert {host for each in found for host in each["hosts"]} == set(LATER_RULES[name])
    assert any("ip ttl < 65" in line for each in found for line in each["evidence"])
    for each in found:
        paste(trio, each)
    assert check(trio).names == []


def test_counters_before_and_after_are_shown(pair: Lab) -> None:
    rule = "add table ip f; add chain ip f in { type filter hook input priority 0; }; add rule ip f in tcp dport 29500 counter drop"
    pair.host("node1").run(["nft", rule])
    run = check(pair)
    assert run.names == [PORT]
    assert any("counter 0 -> " in line for line in run.first["evidence"]), run.first["evidence"]


def test_hostile_comments_and_names_do_no_harm(pair: Lab) -> None:
    hostile = "$(touch /tmp/pwned) \x1b[31m `id` ';'"
    rule = f'add rule ip f in tcp dport 29500 drop comment "{hostile}"'
    base = "add table ip f; add chain ip f in { type filter hook input priority 0; }"
    node = pair.host("node1")
    node.run(["nft", base])
    node.run(["nft", rule])
    run = doctor(pair, "check", "--no-smoke", "--save", "seen.json")
    screen = run_in(pair.controller, "check", "--from", "seen.json", "--color", "never")
    assert PORT in screen.stdout
    assert "\x1b" not in screen.stdout
    assert run.names == [PORT]
    paste(pair, run.first)
    assert check(pair).names == []
    for host in (*pair.hosts, pair.controller):
        assert host.run("ls /tmp/pwned", check=False).returncode != 0
