"""Random rule sets: what the evaluation says against what the kernel does."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from nccl_doctor.firewall.connection import Ends, Objection, compile_rules, handshake, syn
from tests.firewall import generate
from tests.firewall.netbox import Box, Pair

EPHEMERAL = (32768, 60999)
QUICK_S, RETRANSMITTED_S = 0.3, 1.4
"""connect(2) misses an ICMP error that its own host sends while it holds the socket; the SYN is sent again after 1 s."""

RESET = """
nft flush ruleset
if grep -q . /proc/net/ip_tables_names; then
iptables-legacy-restore <<'END'
*filter
:INPUT ACCEPT
:OUTPUT ACCEPT
COMMIT
*mangle
:PREROUTING ACCEPT
:POSTROUTING ACCEPT
COMMIT
*raw
:PREROUTING ACCEPT
COMMIT
END
fi
for _ in $(seq 50); do
    ipset flush lists 2>/dev/null || true
    ipset destroy 2>/dev/null && break
    sleep 0.02
done
"""


@dataclass(frozen=True)
class Trial:
    """One connection: what was expected of it, and what became of it."""

    seed: int
    flow: generate.Flow
    objections: tuple[Objection, ...]
    seen: str

    @property
    def unknown(self) -> bool:
        return bool(self.objections) and self.objections[0].verdict.kind == "unknown"

    @property
    def expected(self) -> frozenset[str]:
        """How the connection may end: chains of one hook with equal priority run in an order that nothing tells."""
        if not self.objections:
            return frozenset({"connected"})
        first = self.objections[0]
        equals = [other for other in self.objections if _place(other) == _place(first)]
        return frozenset[str]().union(*(other.outcomes for other in equals))

    @property
    def agrees(self) -> bool:
        return self.unknown or self.seen in self.expected

    def __str__(self) -> str:
        why = "; ".join(f"{o.side} {o.segment} {o.verdict.kind}: {o.verdict.rule}" for o in self.objections[:1])
        return f"seed {self.seed} {self.flow}: expected {sorted(self.expected)}, saw {self.seen}: {why}"


def _place(objection: Objection) -> tuple[str, str, str]:
    rule = objection.verdict.rule
    return objection.side, objection.segment, rule.hook if rule else ""


def trials(seeds: Iterable[int], at_once: int = 4) -> list[Trial]:
    """All connections of all seeds' rule sets, on several pairs of boxes at once."""
    with ExitStack() as stack:
        pairs: queue.SimpleQueue[Pair] = queue.SimpleQueue()
        for _ in range(at_once):
            pairs.put(stack.enter_context(Pair(generate.PORTS)))

        def work(seed: int) -> list[Trial]:
            pair = pairs.get()
            try:
                return _case(pair, seed)
            finally:
                pairs.put(pair)

        with ThreadPoolExecutor(at_once) as pool:
            return [trial for found in pool.map(work, seeds) for trial in found]


def _case(pair: Pair, seed: int) -> list[Trial]:
    case = generate.case(seed)
    pair.a.sh(RESET + case.a)
    pair.b.sh(RESET + case.b)
    a, b = (compile_rules(box.facts(managers=False)) for box in (pair.a, pair.b))
    assert a.missing + b.missing == ()
    across = [
        (flow, handshake(syn(*flow, EPHEMERAL), Ends("eno1", "eno1", True, 64, 64, is_direct=True), a, b))
        for flow in case.flows
    ]
    within = [
        (flow, handshake(syn(*flow, EPHEMERAL), Ends("lo", "lo", True, 64, 64, is_direct=True), b, b))
        for flow in case.within_b
    ]
    return [*_dial(seed, pair.a, across), *_dial(seed, pair.b, within)]


def _dial(seed: int, box: Box, expected: list[tuple[generate.Flow, tuple[Objection, ...]]]) -> list[Trial]:
    first = [objections[0] for _, objections in expected if objections]
    own = any((o.verdict.kind, o.side, o.segment) == ("reject", "dialler", "SYN") for o in first)
    seen = box.dial([flow for flow, _ in expected], RETRANSMITTED_S if own else QUICK_S)
    return [Trial(seed, flow, found, outcome) for (flow, found), outcome in zip(expected, seen, strict=True)]
