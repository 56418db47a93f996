"""Firewall facts for tests: captured from real managers, or written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nccl_doctor.firewall.connection import compile_rules, syn
from nccl_doctor.firewall.rules import Packet, PacketVerdict
from nccl_doctor.snapshot.network import FirewallFacts

FIXTURES = Path(__file__).parent / "fixtures"

Json = dict[str, Any]


def captured(name: str) -> FirewallFacts:
    """What the collector saw on a host with that manager (firewalld 1.3, ufw 0.36, nftables 1.0.6, iptables 1.8.9)."""
    return FirewallFacts.model_validate_json((FIXTURES / f"{name}.json").read_text())


def nft_facts(
    *rules: list[Json], policy: str = "accept", objects: list[Json] | None = None, hook: str = "input"
) -> FirewallFacts:
    """One table with one base chain, as ``nft -j list ruleset`` lists it; each rule is its ``expr``."""
    place = {"family": "inet", "table": "t"}
    listing: list[Json] = [{"table": {"family": "inet", "name": "t", "handle": 1}}, *(objects or [])]
    base = {"name": "c", "handle": 1, "type": "filter", "hook": hook, "prio": 0, "policy": policy}
    listing.append({"chain": {**place, **base}})
    for handle, expressions in enumerate(rules, 2):
        listing.append({"rule": {**place, "chain": "c", "handle": handle, "expr": expressions}})
    return FirewallFacts(nft=json.dumps({"nftables": listing}), iptables=())


def iptables_facts(
    *rules: str, policy: str = "ACCEPT", backend: str = "legacy", ipsets: str | None = None
) -> FirewallFacts:
    """The filter table with these lines, as ``iptables-save -c`` prints it."""
    text = "\n".join(["*filter", f":INPUT {policy} [7:420]", ":OUTPUT ACCEPT [0:0]", ":U - [0:0]", *rules, "COMMIT"])
    save = {"command": f"iptables-{backend}", "family": "ip", "backend": backend, "text": text}
    return FirewallFacts.model_validate({"nft": None, "iptables": [save], "ipsets": ipsets})


def arriving(saddr: str = "10.9.0.1", dport: int = 29500, **more: Any) -> Packet:
    """A SYN that comes in by eno1."""
    packet = syn(saddr, "fd09::2" if ":" in saddr else "10.9.0.2", dport, (32768, 60999))
    return Packet(**{**vars(packet), "direction": "input", "iif": "eno1", **more})


def verdict(facts: FirewallFacts, packet: Packet | None = None) -> PacketVerdict:
    """The first objection, or "accept"."""
    return next(iter(compile_rules(facts).objections(packet or arriving())), PacketVerdict("accept"))


def tcp(field: str, right: Any, op: str = "==") -> Json:
    return {"match": {"op": op, "left": {"payload": {"protocol": "tcp", "field": field}}, "right": right}}


def ip(field: str, right: Any, op: str = "==") -> Json:
    return {"match": {"op": op, "left": {"payload": {"protocol": "ip", "field": field}}, "right": right}}


DROP: Json = {"drop": None}
ACCEPT: Json = {"accept": None}
