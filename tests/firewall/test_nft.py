from __future__ import annotations

import json
from typing import Any

import pytest

from nccl_doctor.firewall.nft import dormant, rule_texts
from nccl_doctor.firewall.nft_fields import Bits, Unsure, holds, span
from nccl_doctor.snapshot.network import FirewallFacts
from tests.firewall.facts import ACCEPT, DROP, arriving, ip, nft_facts, tcp, verdict

LIMIT = {"limit": {"rate": 5, "burst": 5, "per": "second"}}


def test_what_cannot_be_evaluated_is_unknown_with_its_rule() -> None:
    found = verdict(nft_facts([tcp("dport", 29500), LIMIT, ACCEPT], policy="drop"))
    assert found.kind == "unknown"
    assert found.rule
    assert '"limit"' in found.rule.text


def test_a_rate_that_a_dial_cannot_use_up_is_judged() -> None:
    def met(**limit: Any) -> str:
        return verdict(nft_facts([{"limit": {"burst": 5, "per": "second", **limit}}, DROP])).kind

    assert met(rate=1000) == "drop"
    assert met(rate=1000, inv=True) == "accept"
    assert met(rate=1000, rate_unit="kbytes") == "unknown"
    assert met(rate=1000, per="minute") == "unknown"


def test_a_packet_of_the_hosts_own_came_in_by_no_group() -> None:
    rule = [{"match": {"op": "==", "left": {"meta": {"key": "iifgroup"}}, "right": 0}}, ACCEPT]
    leaving = arriving(direction="output", iif=None, oif="eno1")
    assert verdict(nft_facts(rule, policy="drop", hook="postrouting"), leaving).kind == "drop"


def test_an_unknown_rule_that_changes_nothing_leaves_the_verdict_certain() -> None:
    log = {"log": {"prefix": "x"}}
    assert verdict(nft_facts([LIMIT, log], [LIMIT, DROP], policy="drop")).kind == "drop"
    assert verdict(nft_facts([LIMIT, ACCEPT])).kind == "accept"


@pytest.mark.parametrize(
    "expression",
    ["jump {\n\t\tdrop\n\t}", {"queue": None}, {"brand new": {}}, {"match": {"left": 3}}, {"jump": {}}],
    ids=str,
)
def test_a_statement_that_nobody_heard_of_may_do_anything(expression: Any) -> None:
    assert verdict(nft_facts([expression])).kind == "unknown"


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ({"redirect": {"port": 1}}, "redirect"),
        ({"redirect": {"port": 29500}}, "accept"),
        ({"redirect": None}, "accept"),
        ({"dnat": {"addr": "172.17.0.2", "port": 80}}, "redirect"),
    ],
    ids=str,
)
def test_what_hands_a_connection_to_somebody_else(expression: Any, kind: str) -> None:
    assert verdict(nft_facts([expression])).kind == kind


def test_an_accept_ends_its_own_chain_only() -> None:
    late = {"chain": {"family": "inet", "table": "t", "name": "late", "handle": 9, "type": "filter", "hook": "input",
                      "prio": 10, "policy": "drop"}}  # fmt: skip
    found = verdict(nft_facts([ACCEPT], objects=[late]))
    assert found.kind == "drop"
    assert found.rule
    assert (found.rule.chain, found.rule.hook) == ("late", "input")


def test_named_sets_hold_intervals_prefixes_and_concatenations() -> None:
    place = {"family": "inet", "table": "t", "handle": 3}
    sets = [
        {"set": {**place, "name": "pairs", "elem": [{"concat": [{"prefix": {"addr": "10.9.0.0", "len": 24}}, {"range": [1, 30000]}]}]}},
        {"set": {**place, "name": "timed", "elem": [{"elem": {"val": "10.9.0.1", "timeout": 60, "expires": 5}}]}},
    ]  # fmt: skip
    left = {
        "concat": [
            {"payload": {"protocol": "ip", "field": "saddr"}},
            {"payload": {"protocol": "tcp", "field": "dport"}},
        ]
    }
    facts = nft_facts([{"match": {"op": "==", "left": left, "right": "@pairs"}}, DROP], objects=sets)
    assert verdict(facts).kind == "drop"
    assert verdict(facts, arriving(dport=30001)).kind == "accept"
    assert verdict(nft_facts([ip("saddr", "@timed"), DROP], objects=sets)).kind == "drop"
    assert verdict(nft_facts([ip("saddr", "@gone"), DROP], objects=sets)).kind == "unknown"


def test_a_port_drawn_at_random_is_unsure_only_where_it_matters() -> None:
    assert verdict(nft_facts([tcp("sport", {"range": [1024, 65535]}), DROP])).kind == "drop"
    assert verdict(nft_facts([tcp("sport", 22), DROP])).kind == "accept"
    assert verdict(nft_facts([tcp("sport", {"range": [40000, 50000]}), DROP])).kind == "unknown"


def test_a_field_the_packet_lacks_never_matches_not_even_negated() -> None:
    udp = {"match": {"op": "!=", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": 53}}
    assert verdict(nft_facts([udp, DROP])).kind == "accept"
    assert verdict(nft_facts([ip("saddr", "10.9.0.1", "!="), DROP]), arriving("fd09::1")).kind == "accept"


def test_marks_are_carried_through() -> None:
    mark = {"meta": {"key": "mark"}}
    setting = {"mangle": {"key": mark, "value": {"|": [mark, 3]}}}
    test = {"match": {"op": "==", "left": {"&": [mark, 2]}, "right": 2}}
    assert verdict(nft_facts([setting], [test, DROP])).kind == "drop"
    assert verdict(nft_facts([LIMIT, setting], [test, DROP])).kind == "unknown"


def test_connection_tracking_tells_new_from_established() -> None:
    state = {"ct": {"key": "state"}}
    facts = nft_facts(
        [{"match": {"op": "in", "left": state, "right": ["established", "related"]}}, ACCEPT], policy="drop"
    )
    assert verdict(facts).kind == "drop"
    assert verdict(facts, arriving(state="established")).kind == "accept"
    untracked = nft_facts([{"notrack": None}], [{"match": {"op": "in", "left": state, "right": "new"}}, DROP])
    assert verdict(untracked).kind == "accept"


def test_a_chain_of_a_device_that_nft_does_not_tell_is_unknown() -> None:
    assert verdict(nft_facts([tcp("dport", 29500), DROP], hook="ingress")).kind == "unknown"
    assert verdict(nft_facts([tcp("dport", 22), DROP], hook="ingress")).kind == "accept"


def test_iptables_matches_that_nft_hides_are_unknown_without_iptables_save() -> None:
    hidden = [{"xt": {"type": "match", "name": "multiport"}}, DROP]
    assert verdict(nft_facts(hidden)).kind == "unknown"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nftables": [{"table": {}}]}', "no json"])
def test_a_listing_that_cannot_be_read_is_unknown(text: str) -> None:
    found = verdict(FirewallFacts(nft=text, iptables=()))
    assert found.kind == "unknown"
    assert "can't be read" in found.reason


def test_a_dormant_table_does_nothing() -> None:
    facts = nft_facts([DROP])
    asleep = "table inet t { # handle 1\n\tflags dormant\n\tchain c { # handle 1\n\t\tdrop # handle 2\n\t}\n}\n"
    assert dormant(asleep) == {("inet", "t")}
    assert verdict(facts.model_copy(update={"nft_text": asleep})).kind == "accept"


def test_rules_are_quoted_in_their_own_words() -> None:
    text = "table inet t { # handle 1\n\tchain c { # handle 1\n\t\ttype filter hook input priority filter; policy accept;\n"
    text += '\t\ttcp dport vmap { 1 : accept,\n\t\t\t2 : drop } # handle 2\n\t\tdrop comment "x # handle 9" # handle 3\n\t}\n}\n'
    assert rule_texts(text) == {
        ("inet", "t", "c", 2): "tcp dport vmap { 1 : accept, 2 : drop }",
        ("inet", "t", "c", 3): 'drop comment "x # handle 9"',
    }


def test_bits_may_be_open() -> None:
    flags = Bits(frozenset({"syn"}), frozenset({"ecn"}))
    assert (flags.any(["syn", "ack"]), flags.any(["ecn"]), flags.any(["ack"])) == (True, None, False)
    assert (flags.exactly(["syn"]), flags.exactly(["ack"]), flags.masked(["syn", "ack"]).exactly(["syn"])) == (
        None,
        False,
        True,
    )


def no_sets(name: str) -> list[Any]:
    raise KeyError(name)


def test_what_nobody_captured_is_in_no_set_for_sure() -> None:
    assert holds(Unsure(), {"set": [1]}, no_sets) is None
    assert holds(Unsure(), "*", no_sets) is True
    assert span({"prefix": {"addr": "::", "len": 0}}) == (0, 2**128 - 1)


def test_garbled_rules_do_not_hide_the_others() -> None:
    facts = nft_facts([{"match": None}], [tcp("dport", 29500), DROP])
    assert json.loads(str(facts.nft))
    assert verdict(facts).kind == "unknown"
