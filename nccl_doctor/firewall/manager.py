"""Finds the program, such as firewalld or ufw, that manages a firewall rule.

A rule must be changed with the program that manages it, because this program would overwrite changes that were made
with another tool. firewalld's direct rules are iptables rules that firewalld stores and loads unchanged.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_network
from itertools import pairwise
from typing import Literal

from nccl_doctor.firewall.rules import RuleRef
from nccl_doctor.model.base import Unknown
from nccl_doctor.snapshot.network import Firewalld, FirewallFacts
from nccl_doctor.text.inet import Network

_SUFFIX = "_direct"
"""Suffix of the iptables chains that firewalld creates for direct rules.

With its nftables backend, firewalld adds direct rules to the built-in chains themselves, such as INPUT.
"""

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
"""Short forms of options. iptables(8) accepts the long and the short form of an option, and iptables-save prints the
short form.
"""


@dataclass(frozen=True)
class DirectRule:
    """A line from ``firewall-cmd --direct --get-all-rules``, such as ``ipv4 filter INPUT 0 -p tcp --dport 80 -j DROP``.

    Attributes:
        text: the text of the line, which is untrusted.
        place: the family, table and chain of the rule.
        priority: the priority of the rule. firewalld evaluates rules with a lower priority value first
            (firewalld.direct(5)).
    """

    text: str
    place: tuple[str, str, str]
    priority: int
    words: Counter[str]


def direct_rule(rule: RuleRef, facts: FirewallFacts) -> DirectRule | None:
    """Return the direct rule that iptables-save prints as ``rule``.

    If several direct rules match, return the longest one.

    In its output, iptables-save adds modules, masks and default values to a rule, and reorders the rule's options. A
    direct rule therefore matches if ``rule`` contains all words of the direct rule, in any order.
    """
    if rule.origin == "nft" or rule.place is None:
        return None
    family = "ipv4" if rule.family == "ip" else "ipv6"
    place = family, rule.table, rule.chain.removesuffix(_SUFFIX)
    printed = _words(shlex.split(rule.text)[2:])
    fitting = (entry for entry in direct_rules(facts) if entry.place == place and entry.words <= printed)
    return max(fitting, key=lambda entry: entry.words.total(), default=None)


def is_direct_chain(rule: RuleRef) -> bool:
    """Return whether a rule's chain contains only direct rules."""
    return rule.origin != "nft" and rule.chain.endswith(_SUFFIX)


def direct_rules(facts: FirewallFacts) -> Iterator[DirectRule]:
    for text in facts.firewalld.direct.splitlines() if isinstance(facts.firewalld, Firewalld) else ():
        try:
            family, table, chain, priority, *words = shlex.split(text)
            yield DirectRule(text, (family, table, chain), int(priority), _words(words))
        except ValueError:  # unclosed quotes, and lines that are not rules
            continue


def _words(words: list[str]) -> Counter[str]:
    short = [
        ("! " if before == "!" else "") + _SHORT.get(word, word).removesuffix("/32").removesuffix("/128")
        for before, word in pairwise(("", *words))
        if word != "!"
    ]
    modules = {place + shift for place, word in enumerate(short) if word == "-m" for shift in (0, 1)}
    return Counter(word for place, word in enumerate(short) if place not in modules)


Manager = Literal["firewalld", "ufw", "docker", "nftables", "iptables"]

_FIREWALLD_CHAIN = re.compile(r"(INPUT|OUTPUT|PREROUTING|IN|PRE)_")
"""Pattern of the chain names that firewalld's iptables backend uses (firewall/core/ipXtables.py).

Examples are INPUT_ZONES and IN_public_allow.
"""

_FIREWALLD_TABLE = re.compile(r'"table": ?"firewalld"')
"""Pattern of a reference to the table of firewalld's nftables backend in nft's JSON output (firewall/core/nftables.py).
"""

_FIREWALLD_ZONE = re.compile(r"(?:filter_)?IN_(?!policy_)([A-Za-z0-9_-]+?)(?:_(?:pre|log|deny|allow|post))?$")


def manager_of(rule: RuleRef, facts: FirewallFacts) -> Manager:
    """Return the tool whose syntax must be used to change the rule."""
    if rule.origin == "nft":
        return "firewalld" if rule.table == "firewalld" else "nftables"
    running = isinstance(facts.firewalld, Firewalld)
    signature = _FIREWALLD_CHAIN.match(rule.chain) or "--reject-with icmp-host-prohibited" in rule.text
    if running and (signature or direct_rule(rule, facts) is not None):
        return "firewalld"
    if rule.chain.startswith(("ufw-", "ufw6-")) or (rule.place is None and _ufw_writes_here(facts)):
        return "ufw"
    return "docker" if rule.chain.startswith("DOCKER") else "iptables"


def managed_by(facts: FirewallFacts) -> str:
    """Return the program that manages a host's firewall rules, or "" if no program is found.

    If the ``firewall-cmd`` or ``ufw`` command timed out, firewalld is recognized by its nftables table, and ufw by its
    chains.
    """
    nft = facts.nft if isinstance(facts.nft, str) else ""
    if isinstance(facts.firewalld, Firewalld) or (
        isinstance(facts.firewalld, Unknown) and _FIREWALLD_TABLE.search(nft)
    ):
        return "firewalld"
    if isinstance(facts.ufw, str) or (isinstance(facts.ufw, Unknown) and _ufw_writes_here(facts)):
        return "ufw"
    if isinstance(facts.iptables, tuple) and facts.iptables:
        return "iptables"
    return "nftables" if '"chain"' in nft else ""


def _ufw_writes_here(facts: FirewallFacts) -> bool:
    saves = facts.iptables if isinstance(facts.iptables, tuple) else ()
    return isinstance(facts.ufw, str) or any("\n:ufw-user-input " in save.text for save in saves)


def zone_of(rule: RuleRef, facts: FirewallFacts) -> str | None:
    """Return the firewalld zone to which a rule belongs, or else the default zone."""
    if match := _FIREWALLD_ZONE.match(rule.chain):
        return match[1]
    return facts.firewalld.default_zone if isinstance(facts.firewalld, Firewalld) else None


@dataclass(frozen=True)
class Zone:
    """A firewalld zone with its settings, which are keyed by the names that ``firewall-cmd`` shows."""

    name: str
    settings: dict[str, str]

    @property
    def nets(self) -> Iterator[Network]:
        """The source networks of the zone. Sources that are MAC addresses or ipsets are omitted."""
        for source in self.settings.get("sources", "").split():
            with suppress(ValueError):
                yield ip_network(source, strict=False)

    @property
    def refusals(self) -> tuple[str, ...]:
        """The rich rules of the zone that reject or drop packets."""
        rules = self.settings.get("rich rules", "").splitlines()
        return tuple(rule for rule in rules if re.search(r"\b(reject|drop)\b", rule))


def zones(listing: str) -> dict[str, Zone]:
    """Return the zones in the output of ``firewall-cmd --list-all-zones``, keyed by name."""
    by_name: dict[str, Zone] = {}
    name = ""
    for line in listing.splitlines():
        if line and not line[0].isspace():
            name = line.split()[0]
            by_name[name] = Zone(name, {})
        elif name and line.strip().startswith("rule "):  # rich rules have lines of their own
            by_name[name].settings["rich rules"] = f"{by_name[name].settings.get('rich rules', '')}\n{line.strip()}"
        elif name and ":" in line:
            key, _, value = line.strip().partition(":")
            by_name[name].settings[key] = value.strip()
    return by_name


LONGEST = 160


def printable(text: str) -> str:
    """Return the text as one line of printable characters, truncated to :data:`LONGEST` characters."""
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def describe(rule: RuleRef, facts: FirewallFacts) -> str:
    """Return the rule in firewalld's notation if firewalld manages the rule, or else in iptables or nft notation."""
    if manager_of(rule, facts) == "firewalld":
        direct = direct_rule(rule, facts)
        if direct is not None:
            return printable(f"direct rule of firewalld: {direct.text}")
        if not is_direct_chain(rule) and (zone := _zone(rule, facts)):
            return printable(zone)
    where = f"{rule.family} {rule.table}, chain {rule.chain}"
    if rule.place is None:
        return printable(f"{where}: {rule.text} (no rule of it accepts the packet)")
    if rule.origin == "nft":
        return printable(f"{where}, handle {rule.place}: {rule.text}")
    program = "ip6tables" if rule.family == "ip6" else "iptables"
    return printable(f"{program} {rule.table}, rule {rule.place}: {rule.text}")


def _zone(rule: RuleRef, facts: FirewallFacts) -> str | None:
    known = facts.firewalld
    if not isinstance(known, Firewalld):
        return None
    zone = zones(known.runtime).get(zone_of(rule, facts) or "")
    if zone is None:
        return None
    if rule.place is not None and (rich := zone.refusals):
        return f"zone {zone.name}: {'; '.join(rich)}"
    what = {key: zone.settings.get(key, "") for key in ("services", "ports", "sources")}
    listed = "; ".join(f"{key} {value}" for key, value in what.items() if value) or "nothing"
    bound = zone.settings.get("interfaces") or ("the default" if zone.name == known.default_zone else "")
    rest = "dropped" if zone.settings.get("target") == "DROP" else "rejected"
    return f"zone {zone.name}{', ' + bound if bound else ''}: allows {listed}; everything else is {rest}"
