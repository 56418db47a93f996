"""firewalld's direct rules: iptables rules that it keeps and loads, in the words in which somebody gave them to it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from nccl_doctor.firewall.packet import RuleRef
from nccl_doctor.snapshot import Firewalld, FirewallFacts

_SUFFIX = "_direct"
"""Of the chains that hold them with firewalld's iptables back end; with its nftables one they stand in INPUT itself."""

_SHORT = {
    "--protocol": "-p",
    "--source": "-s",
    "--src": "-s",
    "--destination": "-d",
    "--dst": "-d",
    "--in-interface": "-i",
    "--out-interface": "-o",
    "--jump": "-j",
    "--goto": "-g",
    "--match": "-m",
    "--source-port": "--sport",
    "--destination-port": "--dport",
}
"""iptables(8) takes both; iptables-save prints the short ones."""


@dataclass(frozen=True)
class DirectRule:
    """A line of ``firewall-cmd --direct --get-all-rules``: ``ipv4 filter INPUT 0 -p tcp --dport 80 -j DROP``.

    Attributes:
        text: the line: hostile text.
        place: family, table and chain.
        priority: lower ones stand before; any integer (firewalld.direct(5)).
        words: the rule itself.
    """

    text: str
    place: tuple[str, str, str]
    priority: int
    words: Counter[str]


def direct_rule(rule: RuleRef, facts: FirewallFacts) -> DirectRule | None:
    """The direct rule that iptables shows so; None where it is none.

    iptables-save adds modules, masks and defaults, and sorts: what was given is part of what it prints. So is a rule
    that asks for less: of several the one with the most words is meant.
    """
    if rule.origin == "nft" or rule.place is None:
        return None
    family = "ipv4" if rule.family == "ip" else "ipv6"
    place = family, rule.table, rule.chain.removesuffix(_SUFFIX)
    printed = _words(shlex.split(rule.text)[2:])
    fitting = (one for one in direct_rules(facts) if one.place == place and one.words <= printed)
    return max(fitting, key=lambda one: one.words.total(), default=None)


def is_direct_chain(rule: RuleRef) -> bool:
    """Whether nothing but direct rules stand where a rule does, whatever :func:`direct_rule` makes of its words."""
    return rule.origin != "nft" and rule.chain.endswith(_SUFFIX)


def direct_rules(facts: FirewallFacts) -> Iterator[DirectRule]:
    """All that are in force."""
    for text in facts.firewalld.direct.splitlines() if isinstance(facts.firewalld, Firewalld) else ():
        try:
            family, table, chain, priority, *words = shlex.split(text)
            yield DirectRule(text, (family, table, chain), int(priority), _words(words))
        except ValueError:  # quotes that do not end, and what is no rule
            continue


def _words(words: list[str]) -> Counter[str]:
    short = [
        ("! " if before == "!" else "") + _SHORT.get(word, word).removesuffix("/32").removesuffix("/128")
        for before, word in pairwise(("", *words))
        if word != "!"
    ]
    modules = {place + shift for place, word in enumerate(short) if word == "-m" for shift in (0, 1)}
    return Counter(word for place, word in enumerate(short) if place not in modules)
