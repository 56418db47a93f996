from __future__ import annotations

import pytest

from nccl_doctor.firewall.iptables import RuleOption, options
from nccl_doctor.firewall.rules import Packet
from tests.firewall.facts import arriving, iptables_facts, verdict


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ("-p tcp -m tcp --dport 29500 -j DROP", "drop"),
        ("-p tcp -m tcp ! --dport 29500 -j DROP", "accept"),
        ("-p udp -m udp --dport 29500 -j DROP", "accept"),
        ("! -p udp -j DROP", "drop"),
        ("-p tcp -m multiport --dports 22,29000:30000 -j DROP", "drop"),
        ("-s 10.9.0.0/255.255.255.0 -j DROP", "drop"),
        ("! -s 10.9.0.1/32 -j DROP", "accept"),
        ("-m iprange --src-range 10.9.0.1-10.9.0.9 -j DROP", "drop"),
        ("-i eno+ -j DROP", "drop"),
        ("! -i eno1 -j DROP", "accept"),
        ("-m conntrack ! --ctstate RELATED,ESTABLISHED -j DROP", "drop"),
        ("-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j DROP", "drop"),
        ("-m addrtype --dst-type LOCAL -j DROP", "drop"),
        ("-m addrtype --dst-type BROADCAST -j DROP", "accept"),
        ("-f -j DROP", "accept"),
        ("-m limit --limit 3/min -j DROP", "unknown"),
        ("-m limit --limit 1000/sec --limit-burst 5 -j DROP", "drop"),
        ("-m limit --limit 3/min -j LOG", "accept"),
        ("-m owner --uid-owner 0 -j DROP", "unknown"),
        ("-m socket -j DROP", "unknown"),
        ("-m ttl --ttl-lt 65 -j DROP", "drop"),
        ("-m ttl --ttl-eq 63 -j DROP", "accept"),
        ("-m ttl ! --ttl-gt 64 -j DROP", "drop"),
        ("-p icmp -m limit --limit 3/min -j DROP", "accept"),
        ("-p tcp -j REDIRECT --to-ports 22", "redirect"),
        ("-p tcp -j REDIRECT", "accept"),
        ("-p tcp -j REDIRECT --to-ports 29500", "accept"),
        ("-p tcp -j DNAT --to-destination 172.17.0.2:80", "redirect"),
        ("-p tcp -j NEWTARGET", "unknown"),
        ("-s nonsense -j DROP", "unknown"),
        ("-p tcp", "accept"),
        ('-m comment --comment "unbalanced -j DROP', "unknown"),
    ],
)
def test_options(rule: str, kind: str) -> None:
    assert verdict(iptables_facts(f"[3:180] -A INPUT {rule}"), arriving(ttl=(64, 64))).kind == kind


def test_the_time_to_live_behind_routers_is_known_to_its_bounds() -> None:
    def met(option: str, ttl: tuple[int, int] | None) -> str:
        return verdict(iptables_facts(f"-A INPUT -m ttl {option} -j DROP"), arriving(ttl=ttl)).kind

    assert met("--ttl-lt 65", (1, 64)) == "drop"
    assert met("--ttl-gt 64", (1, 64)) == "accept"
    assert met("--ttl-eq 60", (1, 64)) == "unknown"
    assert met("--ttl-lt 65", None) == "unknown"


def test_somebodys_words_are_never_taken_for_options() -> None:
    rule = r'-A INPUT -m comment --comment "-j DROP\"; $(reboot) ! -s 1.2.3.4" -j LOG --log-prefix "-j DROP"'
    assert verdict(iptables_facts(rule)).kind == "accept"


def test_words_are_grouped_by_option() -> None:
    words = ["-p", "tcp", "!", "--dports", "1,2", "-m", "set", "!", "--match-set", "a", "src,dst"]
    assert list(options(words)) == [
        RuleOption("-p", ("tcp",), False),
        RuleOption("--dports", ("1,2",), True),
        RuleOption("-m", ("set",), False),
        RuleOption("--match-set", ("a", "src,dst"), True),
    ]


def test_the_rule_is_named_by_its_chain_number_and_counter() -> None:
    found = verdict(iptables_facts("[9:1] -A INPUT -j U", "[0:0] -A U -p udp -j DROP", "[5:300] -A U -p tcp -j DROP"))
    assert found.rule
    assert (found.rule.chain, found.rule.base, found.rule.place, found.rule.packets) == ("U", "INPUT", 2, 5)


def test_a_policy_has_a_counter_too() -> None:
    found = verdict(iptables_facts("-A INPUT -p udp -j ACCEPT", policy="DROP"))
    assert found.rule
    assert (found.rule.text, found.rule.place, found.rule.packets) == ("-P INPUT DROP", None, 7)


def test_goto_returns_to_the_callers_caller_and_jump_to_the_caller() -> None:
    assert verdict(iptables_facts("-A INPUT -g U", "-A U -j RETURN", "-A INPUT -j DROP")).kind == "accept"
    assert verdict(iptables_facts("-A INPUT -j U", "-A U -j RETURN", "-A INPUT -j DROP")).kind == "drop"


def test_marks() -> None:
    rules = ("-A INPUT -j MARK --set-xmark 0x3/0xf", "-A INPUT -m mark --mark 0x1/0x1 -j DROP")
    assert verdict(iptables_facts(*rules)).kind == "drop"


@pytest.mark.parametrize("rule", ["-j REJECT --reject-with tcp-reset", "-j REJECT"])
def test_rejects_tell_how(rule: str) -> None:
    assert verdict(iptables_facts(f"-A INPUT -p tcp {rule}")).how == (
        rule.partition("with ")[2] or "icmp-port-unreachable"
    )


SETS = """\
create nets hash:net family inet hashsize 1024 maxelem 65536
add nets 10.9.0.0/24 timeout 30
add nets 10.9.0.7 nomatch
create pairs hash:ip,port family inet
add pairs 10.9.0.1,tcp:29500 comment "x y"
add pairs 10.9.0.2,udp:29500
create masked hash:ip family inet netmask 24
add masked 10.9.0.0
create wires hash:net,iface family inet
add wires 10.9.0.0/24,eno1
create macs hash:mac
add macs 00:00:00:00:00:01
create lists list:set size 8
add lists nets
"""


@pytest.mark.parametrize(
    ("match", "saddr", "kind"),
    [
        ("--match-set nets src", "10.9.0.1", "drop"),
        ("--match-set nets src", "10.9.0.7", "accept"),
        ("! --match-set nets src", "10.8.0.1", "drop"),
        ("--match-set pairs src,dst", "10.9.0.1", "drop"),
        ("--match-set pairs src,dst", "10.9.0.2", "accept"),
        ("--match-set pairs src", "10.9.0.1", "accept"),
        ("--match-set masked src", "10.9.0.200", "drop"),
        ("--match-set wires src,src", "10.9.0.1", "drop"),
        ("--match-set macs src", "10.9.0.1", "unknown"),
        ("--match-set lists src", "10.9.0.1", "drop"),
        ("--match-set elsewhere src", "10.9.0.1", "unknown"),
    ],
)
def test_ipsets(match: str, saddr: str, kind: str) -> None:
    assert verdict(iptables_facts(f"-A INPUT -m set {match} -j DROP", ipsets=SETS), arriving(saddr)).kind == kind


def test_legacy_rules_are_read_beside_nftables_and_hidden_tables_are_not_read_twice() -> None:
    hidden = iptables_facts("-A INPUT -p tcp -m multiport --dports 29500 -j ACCEPT", backend="nft", policy="DROP")
    listing = (
        '{"nftables": [{"table": {"family": "ip", "name": "filter", "handle": 1}}, {"chain": {"family": "ip", "table": '
        '"filter", "name": "INPUT", "handle": 1, "type": "filter", "hook": "input", "prio": 0, "policy": "drop"}}]}'
    )
    facts = hidden.model_copy(update={"nft": listing})
    assert verdict(facts).kind == "accept"
    packet: Packet = arriving(dport=22)
    found = verdict(facts, packet)
    assert found.rule
    assert found.rule.origin == "iptables-nft"
