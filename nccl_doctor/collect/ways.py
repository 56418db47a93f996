"""Where dials failed: which way both hosts' kernels send their packets, and whether they take in each other's.

The dialling host is asked first, for the address that it sends from; then both, for the way back and what comes in.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable

from nccl_doctor.collect import answers
from nccl_doctor.collect.answers import MalformedError
from nccl_doctor.collect.asking import ask_once
from nccl_doctor.collect.session import ProbeSession
from nccl_doctor.firewall.routing import interface_of
from nccl_doctor.snapshot import Dial, HostFacts, Interfaces, Way

AT_MOST = 64
"""Packets that a host is asked about: a host that is cut off from all others shows it with a few of them."""

ANSWER_S = 5.0

Packet = tuple[str, str | None, str | None]
"""Where to, from which address, by which interface it comes in."""


def run(sessions: list[ProbeSession], facts: dict[str, HostFacts], failed: Iterable[Dial]) -> dict[str, HostFacts]:
    """The facts of the hosts at both ends of dials that failed, with their ways."""
    pairs = list(dict.fromkeys((dial.src, dial.dst, dial.address) for dial in failed if _is_literal(dial.address)))
    out: dict[str, dict[Packet, None]] = {}
    for src, _, address in pairs:
        out.setdefault(src, {})[address, None, None] = None
    first = _ask(sessions, out)
    back: dict[str, dict[Packet, None]] = {}
    for src, dst, address in pairs:
        way = next((way for way in first.get(src, ()) if way.to == address), None)
        if way is None or way.prefers is None or way.dev is None or dst not in facts:
            continue
        # connect(2) looks the way up again once it has a source: a rule may ask for that one
        back.setdefault(src, {})[address, way.prefers, None] = None
        back.setdefault(dst, {})[way.prefers, address, None] = None
        arrives = _between(facts[src], way.dev, facts[dst]) or interface_of(facts[dst], address)
        if arrives is not None:
            back[dst][address, way.prefers, arrives] = None
        home = interface_of(facts[src], way.prefers)
        returns = interface_of(facts[dst], address)
        if home is not None and returns is not None:
            back[src][way.prefers, address, _between(facts[dst], returns, facts[src]) or home] = None
    second = _ask(sessions, back)
    return {
        name: facts[name].model_copy(update={"ways": (*first.get(name, ()), *second.get(name, ()))})
        for name in first.keys() | second.keys()
        if name in facts
    }


def _ask(sessions: list[ProbeSession], wanted: dict[str, dict[Packet, None]]) -> dict[str, tuple[Way, ...]]:
    """The answers of the hosts that gave some; a host of which nothing is known explains nothing."""

    def ask(session: ProbeSession) -> tuple[Way, ...]:
        packets = list(wanted[session.node.name])[:AT_MOST]
        asked = [{"to": to, "source": source, "iif": iif} for to, source, iif in packets]
        told = session.ask(answers.WAYS, "ways", time.monotonic() + ANSWER_S, packets=asked)
        if [(way.to, way.source, way.iif) for way in told] != packets:
            raise session.gone(MalformedError("ways of packets that it was not asked about"))
        return told

    concerned = [session for session in sessions if session.node.name in wanted]
    found = ask_once(ask, concerned)
    named = zip((session.node.name for session in concerned), found, strict=True)
    return {name: answer for name, answer in named if not isinstance(answer, Exception)}


def _between(sender: HostFacts, dev: str, receiver: HostFacts) -> str | None:
    """The receiver's interface in a network that the sender's interface is in."""
    if not isinstance(sender.interfaces, Interfaces) or not isinstance(receiver.interfaces, Interfaces):
        return None
    nets = [
        ipaddress.ip_network(f"{entry.address}/{entry.netmask}", strict=False)
        for entry in sender.interfaces.addresses
        if entry.interface.partition(":")[0] == dev and entry.family == "inet" and entry.netmask is not None
    ]
    for entry in receiver.interfaces.addresses:
        if entry.family == "inet" and any(ipaddress.ip_address(entry.address) in net for net in nets):
            return entry.interface.partition(":")[0]
    return None


def _is_literal(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True
