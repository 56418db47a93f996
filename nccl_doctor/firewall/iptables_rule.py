"""One iptables rule, already split into words, as steps: its options in order, then its target."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from nccl_doctor.firewall.ipset import Ipsets
from nccl_doctor.firewall.iptables_match import OPTIONS, match_set
from nccl_doctor.firewall.packet import Journey, Packet
from nccl_doctor.firewall.rules import (
    Accept,
    Drop,
    Jump,
    NoTrack,
    Redirect,
    Reject,
    Return,
    SetMark,
    Step,
    Test,
    Unclear,
    When,
    unsure,
)
from nccl_doctor.firewall.tri import Tri, negate

_FREE_TEXT = frozenset({"--comment", "--log-prefix", "--nflog-prefix", "--ulog-prefix", "--string", "--name"})
"""Options whose value may look like an option: somebody's words."""

_SILENT_MODULES = frozenset({"socket", "rpfilter", "eui64", "cluster", "tcpmss"})
"""Modules that test even with no option printed."""

_GO_ON = frozenset(
    {"LOG", "NFLOG", "ULOG", "AUDIT", "TRACE", "CLASSIFY", "TOS", "DSCP", "TTL", "HL", "SECMARK", "CONNSECMARK"}
    | {"CHECKSUM", "TEE", "RATEEST", "IDLETIMER", "LED", "SET", "TCPMSS", "TCPOPTSTRIP", "ECN", "CONTINUE"}
)


@dataclass(frozen=True)
class Option:
    """``! --name value value``."""

    name: str
    values: tuple[str, ...]
    negated: bool


def options(words: list[str]) -> Iterator[Option]:
    """Splits a rule's words; a value belongs to the option before it.

    Raises:
        IndexError: an option that takes words of somebody's own has none.
    """
    at, negated = 0, False
    while at < len(words):
        name, at = words[at], at + 1
        if name == "!":
            negated = True
            continue
        start = at
        if name in _FREE_TEXT:
            words[at]
            at += 1
        else:
            while at < len(words) and words[at] != "!" and not words[at].startswith("-"):
                at += 1
        yield Option(name, tuple(words[start:at]), negated)
        negated = False


def steps(words: list[str], chains: Collection[str], ipsets: Ipsets) -> tuple[Step, ...]:
    """The steps of a rule.

    Args:
        words: what stands behind ``-A CHAIN``.
        chains: the names of the table's chains, which a target may be.
        ipsets: for ``--match-set``.
    """
    parts = list(options(words))
    target = next((index for index, part in enumerate(parts) if part.name in {"-j", "-g"}), len(parts))
    tests = tuple(When(_negatable(part, ipsets)) for part in parts[:target])
    if target == len(parts):
        return tests
    return tests + _target(parts[target], parts[target + 1 :], chains)


def _negatable(part: Option, ipsets: Ipsets) -> Test:
    test = _test(part, ipsets)
    if not part.negated:
        return test

    def negated(packet: Packet, journey: Journey) -> Tri:
        return negate(test(packet, journey))

    return negated


def _test(part: Option, ipsets: Ipsets) -> Test:
    if part.name == "--match-set":
        return match_set(part.values[0], part.values[1], ipsets)
    if part.name == "-m" and part.values[0] in _SILENT_MODULES:
        return unsure
    handler = OPTIONS.get(part.name)
    try:
        return handler(part.values) if handler else unsure
    except (IndexError, ValueError):  # a name where a number is known, an unheard-of notation
        return unsure


def _target(part: Option, rest: list[Option], chains: Collection[str]) -> tuple[Step, ...]:
    name = part.values[0]
    details = {option.name: option.values for option in rest}
    port = "".join(details.get("--to-ports", ()))
    plain: dict[str, Step] = {
        "DNAT": Redirect(),
        "REDIRECT": Redirect(int(port) if port.isdigit() else None) if port else Accept(),  # without one it is kept
        "ACCEPT": Accept(),
        "DROP": Drop(),
        "RETURN": Return(),
        "NOTRACK": NoTrack(),
        "MASQUERADE": Accept(),  # masquerading a host's own packet keeps the address of its interface
        "REJECT": Reject(" ".join(details.get("--reject-with", ("icmp-port-unreachable",)))),
    }
    if name in chains:
        return (Jump(name, back=part.name == "-j"),)
    if name in plain:
        return (plain[name],)
    if name == "CT":
        return (NoTrack(),) if "--notrack" in details else ()
    if name in {"MARK", "CONNMARK"}:
        return _mark(name, details)
    return () if name in _GO_ON else (Unclear(),)


def _mark(target: str, details: dict[str, tuple[str, ...]]) -> tuple[Step, ...]:
    if target == "CONNMARK":
        return (SetMark(lambda _packet, _journey: None),) if "--restore-mark" in details else ()
    value, mask = (int(part, 0) for part in f"{details['--set-xmark'][0]}/0xffffffff".split("/")[:2])

    def mark(_packet: Packet, journey: Journey) -> int | None:
        return None if journey.mark is None else (journey.mark & ~mask & 0xFFFFFFFF) ^ value

    return (SetMark(mark),)
