"""Real managers, real rules, real dials: the rule that is blamed, and the remedy pasted twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.firewall.differential import RESET
from tests.firewall.scene import Judgement, Scene, start_firewalld

pytestmark = pytest.mark.lab


@dataclass(frozen=True)
class Case:
    """Rules on node1 (or the host named), and what is to be said of them.

    Attributes:
        port: manager and a piece of the rule's evidence for the master port; None where it is open.
        ephemeral: the same where only other ports are stopped.
        outcome: what the stopped dials look like.
    """

    script: str
    port: tuple[str, str] | None = None
    ephemeral: tuple[str, str] | None = None
    outcome: str = "timed-out"
    host: str = "node1"
    firewalld: bool = False
    reload: str = ""


def nft(rules: str, policy: str = "accept", hook: str = "input", table: str = "inet filter") -> str:
    return (
        f"nft -f - <<'END'\ntable {table} {{\nchain {hook} {{ type filter hook {hook} priority 0; policy {policy};\n"
        f"{rules}\n}}\n}}\nEND"
    )


HOSTILE = '''comment "\\$(touch /tmp/pwned); `reboot`'"'''
IPSET = "ipset create peers hash:net; ipset add peers 10.9.0.0/30; "
RELOAD = "firewall-cmd --reload"

CASES = {
    "firewalld-default": Case("true", ("firewalld", "zone public"), outcome="no-route", firewalld=True, reload=RELOAD),
    "firewalld-master-port-only": Case(
        "firewall-cmd -q --permanent --add-port=29500/tcp; firewall-cmd -q --reload",
        ephemeral=("firewalld", "ports 29500/tcp"), outcome="no-route", firewalld=True, reload=RELOAD,
    ),
    "firewalld-trusted": Case("firewall-cmd -q --zone=trusted --add-source=10.9.0.0/24", firewalld=True),
    "firewalld-drop-zone": Case(
        "firewall-cmd -q --set-default-zone=drop", ("firewalld", "zone drop"), firewalld=True, reload=RELOAD,
    ),
    "firewalld-source-of-another-zone": Case(
        "firewall-cmd -q --permanent --zone=internal --add-source=10.9.0.0/24; firewall-cmd -q --reload",
        ("firewalld", "zone internal"), outcome="no-route", firewalld=True, reload=RELOAD,
    ),
    "firewalld-changed-in-force-only": Case(
        "firewall-cmd -q --add-port=8080/tcp", ("firewalld", "8080/tcp"), outcome="no-route", firewalld=True,
    ),
    "ufw-default": Case("ufw --force enable", ("ufw", "-P INPUT DROP"), reload="ufw reload"),
    "ufw-subnet-allowed": Case("ufw allow from 10.9.0.0/24; ufw --force enable"),
    "ufw-denies-the-port": Case(
        "ufw allow from 10.9.0.0/24 to any port 30000:65535 proto tcp; ufw deny 29500/tcp; ufw --force enable",
        ("ufw", "--dport 29500 -j DROP"), reload="ufw reload",
    ),
    "ufw-rejects-outgoing": Case(
        "ufw default reject outgoing; ufw default allow incoming; ufw --force enable",
        ("ufw", "rejects the host's own"), outcome="refused", host="node2", reload="ufw reload",
    ),
    "nft-drop": Case(nft(f"tcp dport 29500 counter drop {HOSTILE}"), ("nftables", " packets)")),
    "nft-reject-reset": Case(nft("tcp dport 29500 reject with tcp reset"), ("nftables", "handle"), outcome="refused"),
    "nft-set": Case(
        nft("ip saddr != { 10.8.0.0/16, 192.168.0.1-192.168.0.9 } tcp dport 1024-65535 drop"), ("nftables", "10.8.0.0/16"),
    ),
    "nft-verdict-map": Case(nft("tcp dport vmap { 22 : accept, 29500 : drop }"), ("nftables", "vmap")),
    "nft-second-table": Case(
        nft("tcp dport 29500 accept") + "\n" + nft("tcp dport 29500 drop", table="ip late"), ("nftables", "ip late"),
    ),
    "nft-two-tables": Case(
        nft("tcp dport 29500 drop") + "\n" + nft("tcp dport 29500 drop", table="ip late"), ("nftables", "ip late"),
    ),
    "nft-policy-with-conntrack": Case(
        nft("ct state established,related accept\nip saddr 10.9.0.0/24 accept", policy="drop"),
    ),
    "nft-policy-without-conntrack": Case(
        nft("ip saddr 10.9.0.1 tcp dport 29500 accept", policy="drop"), ephemeral=("nftables", "policy drop"),
    ),
    "nft-output": Case(
        nft("oifname != lo ip daddr 10.9.0.2 drop", hook="output"), ("nftables", "10.9.0.2"), host="node2",
    ),
    "iptables-legacy-user-chain": Case(
        "iptables-legacy -N GUARD; iptables-legacy -A GUARD -p tcp -m multiport ! --dports 22,30000:65535 -j DROP;"
        "iptables-legacy -A INPUT ! -i lo -j GUARD",
        ("iptables", "rule 1: -A GUARD"),
    ),
    "iptables-nft-ipset": Case(
        IPSET + "iptables-nft -A INPUT -p tcp -m set --match-set peers src -m multiport --dports 29500,33000 -j REJECT",
        ("iptables", "--match-set peers src"), outcome="refused",
    ),
    "iptables-one-peer": Case(
        "iptables-nft -A INPUT -s 10.9.0.1 -p tcp --dport 29500 -m comment --comment '\"; $(touch /tmp/pwned)' -j DROP",
        ("iptables", "-s 10.9.0.1"),
    ),
    "docker": Case(
        "iptables-nft -t nat -N DOCKER; iptables-nft -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER;"
        "iptables-nft -t nat -A DOCKER ! -i docker0 -p tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80;"
        "iptables-nft -P FORWARD DROP; iptables-nft -N DOCKER-USER; iptables-nft -A FORWARD -j DOCKER-USER",
    ),
}  # fmt: skip


MANAGED = [name for name, case in CASES.items() if case.firewalld or "ufw" in case.script]


@pytest.fixture(scope="module")
def _unmanaged() -> Iterator[Scene]:
    with Scene() as scene:
        yield scene


@pytest.fixture
def unmanaged(_unmanaged: Scene) -> Iterator[Scene]:
    """Two hosts without a manager, which tests share: their rules go with each of them."""
    yield _unmanaged
    for box in _unmanaged.boxes.values():
        box.sh(RESET)


@pytest.mark.parametrize("name", MANAGED)
def test_the_rule_of_a_manager_is_named_and_its_remedy_opens_it_once(name: str) -> None:
    case = CASES[name]
    with Scene((case.host,)) as scene:
        if case.firewalld:
            start_firewalld(scene.boxes[case.host])
        check_case(case, scene)


@pytest.mark.parametrize("name", [name for name in CASES if name not in MANAGED])
def test_the_rule_is_named_and_its_remedy_opens_it_once(unmanaged: Scene, name: str) -> None:
    check_case(CASES[name], unmanaged)


def check_case(case: Case, scene: Scene) -> None:
    scene.boxes[case.host].sh(case.script)
    found = scene.judge()
    check_diagnosis(case, found)
    check_remedy(case, scene, found)


def check_diagnosis(case: Case, found: Judgement) -> None:
    assert found.unjudged == []
    for findings, wanted in ((found.port, case.port), (found.ephemeral, case.ephemeral)):
        assert [finding.hosts for finding in findings] == ([(case.host,)] if wanted else [])
        for finding in findings:
            assert wanted
            said = "\n".join((finding.message, *map(str, finding.evidence)))
            assert finding.facts["manager"] == wanted[0]
            assert wanted[1] in said
            assert "such a rule does not" not in said
            assert finding.fix.commands
    assert {dial.outcome for dial in found.failed} <= {case.outcome}
    assert bool(found.port + found.ephemeral) == bool(found.failed)


def check_remedy(case: Case, scene: Scene, found: Judgement) -> None:
    findings = found.port + found.ephemeral
    for finding in findings:
        scene.paste(finding)
    once = scene.rules()
    again = scene.judge()
    assert (again.port, again.ephemeral, again.failed) == ([], [], ())
    for finding in findings:
        scene.paste(finding)
    assert scene.rules() == once
    if case.reload:
        scene.boxes[case.host].sh(case.reload)
        assert scene.failed() == []
    assert not Path("/tmp/pwned").exists()
