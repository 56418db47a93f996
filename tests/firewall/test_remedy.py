from __future__ import annotations

import re
import shlex
from dataclasses import replace
from ipaddress import ip_network
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.firewall.manager import describe, printable, zones
from nccl_doctor.firewall.remedy import FirewallRemedy, Opening, merged, remedy
from nccl_doctor.firewall.rules import RuleRef
from nccl_doctor.snapshot.network import Firewalld, FirewallFacts
from tests.firewall.facts import arriving, captured, iptables_facts, nft_facts, verdict

IN = Opening("input", ("10.0.0.2", "10.0.0.3"), ((29500, 29500), (32768, 60999)))
OUT = Opening("output", ("10.0.0.1",), ((29500, 29500),))
NOTHING = FirewallFacts(nft=None, iptables=())


def blamed(facts: FirewallFacts) -> RuleRef:
    rule = verdict(facts, arriving(path_back=True)).rule
    assert rule
    return rule


def lines(found: FirewallRemedy) -> tuple[str, ...]:
    texts = [one.line for one in found.operations]
    assert None not in texts
    return tuple(map(str, texts))


def test_firewalld_trusts_the_peers_for_good_and_at_once() -> None:
    facts = captured("firewalld_public")
    assert lines(remedy(blamed(facts), facts, IN)) == (
        "firewall-cmd --permanent --zone=trusted --add-source=10.0.0.2 --add-source=10.0.0.3",
        "firewall-cmd --zone=trusted --add-source=10.0.0.2 --add-source=10.0.0.3",
    )


def test_firewalld_is_not_reloaded_where_that_would_lose_what_is_in_force_only() -> None:
    facts = captured("firewalld_public")
    assert facts.firewalld
    changed = facts.firewalld.model_copy(
        update={"runtime": facts.firewalld.runtime.replace("ports: ", "ports: 80/tcp", 1)}
    )
    commands = lines(remedy(blamed(facts), facts.model_copy(update={"firewalld": changed}), IN))
    assert "firewall-cmd --reload" not in commands
    assert "firewall-cmd --zone=trusted --add-source=10.0.0.2 --add-source=10.0.0.3" in commands


def test_firewalld_gets_rich_rules_where_a_zone_claims_the_peers() -> None:
    facts = captured("firewalld_internal")
    opening = Opening("input", ("10.9.0.1",), ((29500, 29500),))
    first = shlex.split(lines(remedy(blamed(facts), facts, opening))[0])
    assert first[2:] == [
        "--zone=internal",
        '--add-rich-rule=rule family="ipv4" source address="10.9.0.1" port port="29500" protocol="tcp" accept',
    ]


def test_a_rich_rule_that_rejects_is_shown_and_the_accept_stands_before_it() -> None:
    facts = captured("firewalld_internal")
    assert facts.firewalld
    opening = Opening("input", ("10.9.0.1",), ((29500, 29500),))
    reject = 'rule family="ipv6" source address="fd00::/8" port port="29500" protocol="tcp" reject'
    rule = RuleRef(
        "nft", "inet", "firewalld", "filter_IN_internal_deny", 9, "reject", base="filter_INPUT", hook="input"
    )
    for priority, wanted in (("", "-1"), ("-7 ", "-8")):
        text = reject.replace("rule ", f'rule priority="{priority.strip()}" ') if priority else reject
        head, zone, rest = facts.firewalld.runtime.partition("\ninternal")
        runtime = head + zone + rest.replace("rich rules: ", f"rich rules: \n\t{text}", 1)
        changed = facts.model_copy(update={"firewalld": facts.firewalld.model_copy(update={"runtime": runtime})})
        assert describe(rule, changed).startswith(f"zone internal: {text}"[:100])
        first = shlex.split(lines(remedy(rule, changed, opening))[0])
        assert first[-1].startswith(f'--add-rich-rule=rule priority="{wanted}" family="ipv4" source address="10.9.0.1"')


DIRECT = """\
ipv4 filter INPUT 0 -p tcp --dport 80 -j DROP
ipv4 filter GUARD -3 -p tcp -j REJECT
ipv4 filter GUARD -3 --protocol tcp --source 10.0.0.2 --destination-port 29500 -m comment --comment 'hi there' -j REJECT
ipv6 filter INPUT 0 -p tcp --dport 29500 -j DROP
ipv4 filter INPUT 0 'no end
nonsense
"""
PRINTED = '-s 10.0.0.2/32 -p tcp -m tcp --dport 29500 -m comment --comment "hi there" -j REJECT --reject-with icmp-port-unreachable'


@pytest.mark.parametrize("chain", ["GUARD", "GUARD_direct"])
def test_a_direct_rule_of_firewalld_is_named_so_and_accepted_before(chain: str) -> None:
    firewalld = Firewalld(default_zone="public", runtime="", permanent="", direct=DIRECT)
    facts = FirewallFacts(nft=None, iptables=(), firewalld=firewalld)
    rule = RuleRef("iptables-nft", "ip", "filter", chain, 4, f"-A {chain} {PRINTED}", base="INPUT", hook="input")
    assert describe(rule, facts).startswith("direct rule of firewalld: ipv4 filter GUARD -3 --protocol tcp")
    found = remedy(rule, facts, IN)
    assert "--direct --remove-rule" in found.advice
    accept = (
        "--direct --add-rule ipv4 filter INPUT -4 -s 10.0.0.2 -p tcp -m multiport --dports 29500,32768:60999 -j ACCEPT"
    )
    assert lines(found)[::2] == (f"firewall-cmd --permanent {accept}", f"firewall-cmd {accept}")
    elsewhere = replace(rule, base="$(id)")
    assert lines(remedy(elsewhere, facts, IN)) == ()
    other = replace(rule, text=rule.text.replace("tcp", "udp"), base="INPUT")
    assert not describe(other, facts).startswith("direct")


@pytest.mark.parametrize("chain", ["INPUT", "OUTPUT"])
def test_a_direct_rule_in_other_words_is_no_zone_s(chain: str) -> None:
    """iptables-save prints "tcp" of a protocol 6; or the rule was removed between the two questions."""
    direct, public = f"ipv4 filter {chain} 0 -p 6 -j DROP", "public\n  services: ssh"
    firewalld = Firewalld(default_zone="public", runtime=public, permanent=public, direct=direct)
    facts = FirewallFacts(nft=None, iptables=(), firewalld=firewalld)
    text = f"-A {chain}_direct -p tcp -j DROP"
    rule = RuleRef("iptables-nft", "ip", "filter", f"{chain}_direct", 1, text, base=chain, hook=chain.lower())
    assert describe(rule, facts) == f"iptables filter, rule 1: {text}"
    found = remedy(rule, facts, IN if chain == "INPUT" else OUT)
    assert lines(found) == ()
    assert "--direct --get-all-rules" in found.advice


def test_a_direct_rule_is_not_taken_for_its_contrary() -> None:
    for words, printed in (("-s 10.0.0.2", "! -s 10.0.0.2/32"), ("! -s 10.0.0.2", "-s 10.0.0.2/32")):
        firewalld = Firewalld(
            default_zone="public", runtime="", permanent="", direct=f"ipv4 filter INPUT 0 {words} -j DROP"
        )
        facts = FirewallFacts(nft=None, iptables=(), firewalld=firewalld)
        rule = RuleRef("iptables-nft", "ip", "filter", "INPUT", 1, f"-A INPUT {printed} -j DROP", base="INPUT")
        assert "direct" not in describe(rule, facts)
        same = replace(rule, text=f"-A INPUT {words}/32 -j DROP")
        assert describe(same, facts).startswith("direct rule of firewalld")


def test_a_policy_of_firewalld_is_left_to_judgement() -> None:
    facts = captured("firewalld_public")
    rule = RuleRef(
        "nft", "inet", "firewalld", "filter_IN_policy_guard_deny", 3, "drop", base="filter_INPUT", hook="input"
    )
    assert lines(remedy(rule, facts, IN)) == ()
    assert "list-all-policies" in remedy(rule, facts, IN).advice


def test_ufw_speaks_its_own_language() -> None:
    facts = captured("ufw_deny")
    assert lines(remedy(blamed(facts), facts, IN))[0] == (
        "ufw allow proto tcp from 10.0.0.2 to any port 29500,32768:60999"
    )
    users = RuleRef("iptables-nft", "ip", "filter", "ufw-user-output", 1, "-j DROP", base="OUTPUT", hook="output")
    assert lines(remedy(users, facts, OUT)) == ("ufw prepend allow out proto tcp from any to 10.0.0.1 port 29500",)
    before = RuleRef("iptables-nft", "ip", "filter", "ufw-before-input", 1, "-j DROP", base="INPUT", hook="input")
    assert lines(remedy(before, facts, IN)) == ()


@pytest.mark.parametrize(("family", "file"), [("ip", "before.rules"), ("ip6", "before6.rules")])
def test_ufw_has_a_file_for_each_family(family: str, file: str) -> None:
    chain = "ufw6-before-input" if family == "ip6" else "ufw-before-input"
    before = RuleRef("iptables-nft", family, "filter", chain, 1, "-j DROP", base="INPUT", hook="input")
    assert f"in /etc/ufw/{file};" in remedy(before, captured("ufw_deny"), IN).advice


@pytest.mark.parametrize(("family", "service"), [("ip", "iptables"), ("ip6", "ip6tables")])
def test_iptables_has_a_service_for_each_family(family: str, service: str) -> None:
    save = {"command": "iptables-legacy", "family": family, "backend": "legacy", "text": ""}
    facts = FirewallFacts.model_validate({"nft": None, "iptables": [save]})
    rule = RuleRef("iptables-legacy", family, "filter", "INPUT", 1, "-j DROP", base="INPUT", hook="input")
    assert f"`service {service} save`" in remedy(rule, facts, IN).advice


def test_nft_inserts_once() -> None:
    facts = nft_facts([{"drop": None}])
    (line,) = lines(remedy(blamed(facts), facts, IN))
    look, _, insert = line.partition(" || ")
    words = shlex.split(insert)
    assert words[:9] == ["nft", "insert", "rule", "inet", "t", "c", "ip", "saddr", "{ 10.0.0.2, 10.0.0.3 }"]
    assert words[9:13] == ["tcp", "dport", "{ 29500, 32768-60999 }", "accept"]
    assert words[-1].strip('"') in look


def test_iptables_inserts_once_into_the_chain_the_kernel_enters() -> None:
    facts = iptables_facts("-A INPUT -j U", "-A U -j DROP")
    first = lines(remedy(blamed(facts), facts, IN))[0]
    rule = "INPUT -s 10.0.0.2 -p tcp -m multiport --dports 29500,32768:60999 -j ACCEPT"
    assert first == f"iptables-legacy -w -C {rule} 2>/dev/null || iptables-legacy -w -I {rule}"


@given(st.text(min_size=1), st.text(min_size=1), st.sampled_from(["input", "output"]))
def test_names_of_the_hosts_own_never_reach_a_command_unless_they_are_plain(table: str, chain: str, hook: str) -> None:
    hostile = RuleRef("nft", "inet", table, chain, 1, "drop", base=chain, hook=hook)
    for line in lines(remedy(hostile, NOTHING, IN)):
        assert {table, chain} <= set(shlex.split(line.replace("|", " ")))
        assert re.fullmatch(r"[\w./-]+", table + chain, re.ASCII)
        assert (table + chain).isascii()
    legacy = RuleRef("iptables-legacy", "ip", table, chain, 1, "-j DROP", base=chain, hook=hook)
    assert lines(remedy(legacy, NOTHING, IN)) == ()


@given(st.text())
def test_evidence_is_one_line_of_printable_characters(text: str) -> None:
    rule = RuleRef("nft", "inet", text, text, 1, text)
    shown = describe(rule, NOTHING)
    assert shown.isprintable()
    assert len(shown) <= 160
    assert printable("\x1b[31mred\x07\nnext") == "?[31mred? next"


@given(st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 65535)).map(sorted).map(tuple), max_size=8))
def test_merged_spans_hold_the_same_ports_once(spans: list[tuple[int, int]]) -> None:
    joined = merged(spans)
    assert all(first[1] + 1 < second[0] for first, second in pairwise(joined))
    for port in {end for span in spans for end in span} | {0, 65535}:
        assert any(low <= port <= high for low, high in spans) == any(low <= port <= high for low, high in joined)


@pytest.mark.parametrize("count", [1, 8, 9, 200])
def test_many_peers_are_joined_into_nets_that_hold_nobody_else(count: int) -> None:
    peers = {f"10.0.{number // 256}.{number % 256}" for number in range(5, 5 + count)}
    nets = Opening("input", tuple(peers), ()).nets(4)
    assert {str(address) for net in nets for address in ip_network(net)} == peers
    assert len(nets) <= max(8, count // 4)


def test_zones_are_read_with_their_rich_rules() -> None:
    found = zones(
        'public (active)\n  target: default\n  services: ssh\n  rich rules: \n\trule family="ipv4" accept\n\ndrop\n'
    )
    assert found["public"].settings["services"] == "ssh"
    assert 'rule family="ipv4" accept' in found["public"].settings["rich rules"]
    assert list(found) == ["public", "drop"]
