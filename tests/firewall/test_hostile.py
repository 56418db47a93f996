"""Rules are somebody else's text: whatever stands in them, the evaluation answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nccl_doctor.firewall.blame import admits
from nccl_doctor.firewall.connection import compile_rules
from nccl_doctor.snapshot.network import FirewallFacts
from tests.firewall.facts import arriving, iptables_facts, nft_facts, verdict

KINDS = {"accept", "drop", "reject", "unknown"}
WORDS = ["match", "left", "right", "op", "==", "in", "&", "|", "meta", "key", "mark", "ct", "state", "payload", "protocol",
         "tcp", "ip", "field", "dport", "saddr", "vmap", "data", "set", "@s", "elem", "val", "concat", "range", "prefix",
         "addr", "len", "jump", "target", "drop", "mangle", "value", "reject", "type", "fib", "flags", "*"]  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 70000) | st.sampled_from([*WORDS, "10.9.0.1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=12,
)
LEFTS = st.sampled_from(
    [{"payload": {"protocol": "tcp", "field": "dport"}}, {"ct": {"key": "state"}}, {"meta": {"key": "mark"}}]
)


@given(st.lists(JSON, max_size=3), st.sampled_from(["==", "in", "<", "!"]), LEFTS, JSON)
def test_any_nftables_rule_has_an_answer(expressions: list[Any], operator: str, left: Any, right: Any) -> None:
    match = {"match": {"op": operator, "left": left, "right": right}}
    setting = {"mangle": {"key": {"meta": {"key": "mark"}}, "value": right}}
    assert verdict(nft_facts(expressions, [match, setting], [{"drop": None}])).kind in KINDS


@given(JSON)
def test_any_nftables_listing_has_an_answer(listing: Any) -> None:
    facts = FirewallFacts(nft=json.dumps({"nftables": listing}), iptables=())
    assert all(found.kind in KINDS for found in compile_rules(facts).objections(arriving()))


OPTIONS = ["-p", "tcp", "-s", "10.9.0.1", "!", "-m", "set", "--match-set", "s", "src", "--dport", "1:2", "-j", "-g", "U", "DROP",
           "--mark", "0x1/0x1", "MARK", "--set-xmark", "--tcp-flags", "SYN", "--ctstate", "NEW", "--comment", '"', "x'y"]  # fmt: skip


@example(["-j", "MARK"], "")
@given(st.lists(st.sampled_from(OPTIONS) | st.text(max_size=5), max_size=8), st.text(max_size=40))
def test_any_iptables_rule_has_an_answer(words: list[str], ipsets: str) -> None:
    sets = "create s hash:net,port\n" + ipsets + '\nadd s 1.2.3.4,x comment "\nadd s nonsense\n'
    facts = iptables_facts("-A INPUT " + " ".join(words), "-A INPUT -j DROP", ipsets=sets)
    assert verdict(facts).kind in KINDS


MANY = "9" * 5_000
"""More digits than Python's int takes."""


@pytest.mark.parametrize(
    "rule",
    [
        f"[{MANY}:{MANY}] -A INPUT -j DROP",
        f"-A INPUT -p tcp --dport {MANY} -j DROP",
        f"-A INPUT -p tcp --dport 1:{MANY} -j DROP",
        f"-A INPUT -m mark --mark {MANY} -j DROP",
        f"-A INPUT -m limit --limit {MANY}/sec -j DROP",
        f"-A INPUT -m connlimit --connlimit-above {MANY} -j DROP",
        f"-A INPUT -p tcp -j REDIRECT --to-ports {MANY}",
        "-A INPUT -p tcp -j REDIRECT --to-ports ²",
    ],
)
def test_a_rule_with_thousands_of_digits_has_an_answer(rule: str) -> None:
    sets = f"create s hash:net family inet hashsize {MANY} maxelem {MANY}\nadd s 10.0.0.0/{MANY} packets {MANY}\n"
    facts = iptables_facts(rule, "-A INPUT -m set --match-set s src -j DROP", ipsets=sets)
    assert verdict(facts).kind in {*KINDS, "redirect"}


def test_the_rate_of_a_rule_has_any_digits() -> None:
    ruleset = compile_rules(iptables_facts(f"-A INPUT -m limit --limit {MANY}/sec -j DROP"))
    (objection, *_) = ruleset.objections(arriving())
    assert admits(objection.rule) == 1 << 64
