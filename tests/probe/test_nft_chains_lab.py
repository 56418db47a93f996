"""Chains as the kernel lists them, beside what nft makes of them."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab

READ = """
import json, sys
from nccl_doctor.probe.facts.nft_chains import Chains, OtherExpressionError
chains = Chains(sys.argv[1], "t")
found = []
for name in sys.argv[2:]:
    try:
        found.append(chains.rules(name))
    except OtherExpressionError as error:
        found.append(f"{error}")
print(json.dumps(found))
"""
RULES = {
    "ip": (
        "ct state new jump deny",
        "ct state established,related accept",
        "ip saddr 10.77.0.3 drop",
        "ip daddr 10.0.0.0/8 reject",
        "ip saddr != 192.168.0.0/17 counter accept",
        "tcp dport 29500 reject with tcp reset",
        "udp sport 53 return",
        "tcp dport >= 32768 goto deny",
        'iifname "eth0" accept',
        'oifname "ve*" drop',
        "ip protocol icmp accept",
        "ip saddr @peers drop",
        "ip saddr != @peers ip daddr . meta l4proto . th dport vmap @services",
        "meta l4proto . th dport vmap @ports",
    ),
    "ip6": ("ip6 saddr fe80::/10 accept", "ip6 daddr 2001:db8::1 reject with tcp reset"),
    "inet": (
        "ip6 saddr 2001:db8::/48 drop",
        "meta nfproto ipv4 tcp dport 22 accept",
        "reject with icmpx type admin-prohibited",
        "ip saddr 10.77.0.0/29 accept",
    ),
}
OTHER = (
    "limit rate 5/second accept", "tcp dport { 22, 80 } accept", "ct count over 3 drop", "meta mark set 1",
    "fib daddr type local accept", "tcp flags syn accept", "ip ttl 3 drop",
    "add @seen { ip saddr }", "quota over 3 mbytes drop", "numgen random mod 2 vmap { 0 : accept, 1 : drop }",
)  # fmt: skip
SETS = """
 set peers { type ipv4_addr; elements = { 10.77.0.2 }; }
 set seen { type ipv4_addr; flags dynamic; }
 map services { type ipv4_addr . inet_proto . inet_service : verdict; }
 map ports { type inet_proto . inet_service : verdict; elements = { tcp . 22 : goto deny }; }
"""


def table(family: str, rules: tuple[str, ...]) -> str:
    chains = "\n".join(f"chain c{index} {{\n {rule}\n}}" for index, rule in enumerate(rules))
    sets = SETS if family == "ip" else ""
    return f"table {family} t {{\n{sets}\nchain deny {{\n drop\n}}\n{chains}\n}}\n"


def alike(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what nft leaves out because another expression says it, and with one word for TCP's and UDP's ports."""
    text = json.dumps(parts)
    for protocol in ("tcp", "udp"):
        text = text.replace(f'{{"payload": {{"protocol": "{protocol}"', '{"payload": {"protocol": "th"')
    return [
        part
        for part in json.loads(text)
        if part.get("match", {}).get("left") not in ({"meta": {"key": "l4proto"}}, {"meta": {"key": "nfproto"}})
        and part.get("match", {}).get("left") != {"payload": {"protocol": "ip", "field": "protocol"}}
    ]


@pytest.mark.parametrize("family", list(RULES))
def test_a_chain_is_read_as_nft_reads_it(fresh_lab: Lab, family: str) -> None:
    host, names = fresh_lab.hosts[0], [f"c{index}" for index in range(len(RULES[family]))]
    host.run(["nft", "-f", "-"], input=table(family, RULES[family]))
    found = json.loads(host.run([sys.executable, "-c", READ, family, *names]).stdout)
    for name, rule, mine in zip(names, RULES[family], found, strict=True):
        told = json.loads(host.run(["nft", "-j", "list", "chain", family, "t", name]).stdout)["nftables"]
        (theirs,) = [entry["rule"] for entry in told if "rule" in entry]
        assert [{**one, "expr": alike(one["expr"])} for one in mine] == [{**theirs, "expr": alike(theirs["expr"])}], (
            rule
        )


def test_what_is_not_understood_is_left_to_nft(fresh_lab: Lab) -> None:
    host, names = fresh_lab.hosts[0], [f"c{index}" for index in range(len(OTHER))]
    host.run(["nft", "-f", "-"], input=table("ip", OTHER))
    found = json.loads(host.run([sys.executable, "-c", READ, "ip", *names]).stdout)
    assert [rule for rule, told in zip(OTHER, found, strict=True) if not isinstance(told, str)] == []
