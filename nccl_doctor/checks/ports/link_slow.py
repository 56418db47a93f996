"""A host, a pair of hosts or a rail sends or receives far slower than the others, or loses packets.

What it means: every rank of a ring waits for its slowest link, so one bad cable slows the whole job: a cable or
transceiver with lost lanes, a port that fell back to a lower rate, half duplex, a NIC in a narrow PCIe slot, traffic
shaping, an MTU that differs, a lossy port. It is an error where less than a tenth is left.

How we know: `--rate` has the hosts send to each other by TCP, from and to the addresses that NCCL uses, in rounds in
which each sends to one and receives from one. What is under half of the usual rate, or has 2 % of its segments sent
again where others have not a tenth of that, is measured once more with nobody else sending. A host is named where its
whole row or column of the matrix is bad, with the direction; a pair where only it is; a rail where that is slow on all
hosts, beside the other rails or its links' own speed. Where the sending thread lacked a CPU, the reader was late or
interrupts filled a CPU, the machine was the limit: then nobody is accused, and it is said.

Fix: on the named host `ethtool -S` counts errors, `ethtool` shows the negotiated speed, `lspci -vv` the lanes
(LnkSta), `tc qdisc show` what shapes it; then the cable, and the port of the switch.
"""

from collections.abc import Iterator

from nccl_doctor.checks.rates import GRAVE, SlowLink, judge_rates, link_gbps, rails
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.model.report import gbps_span, gbps_words
from nccl_doctor.snapshot.rate import Rates
from nccl_doctor.text.hostlist import fold, grouped, plural

DOES = {("send",): "sends", ("receive",): "receives", ("send", "receive"): "sends and receives"}


@check("NCD320", severity=Severity.WARNING, needs=("rates",), explains=("allreduce-slow",), row="rate")
def link_slow(view: View) -> Findings:
    """Yields one finding a host, a pair or a rail; hosts that were too busy to be judged are gaps."""
    rates = view.rates
    judgement = judge_rates(rates)
    for slow in judgement.slow:
        yield Finding(
            hosts=slow.hosts,
            severity=Severity.ERROR if slow.share < GRAVE else None,
            message=_message(slow, rates),
            evidence=tuple(_evidence(slow, rates, view)),
            facts={
                "pairs": [{"src": one.src, "dst": one.dst} for one in slow.rates],
                "interfaces": sorted({one.interface for one in slow.rates}),
                "direction": " and ".join(slow.directions) or None,
                "gbps": round(slow.gbps, 3),
                "usual": round(slow.usual, 3),
                "retransmits": sum(one.retransmits for one in slow.rates),
            },
            fix="Look at the cable, the negotiated speed and errors (ethtool, ethtool -S), the PCIe lanes (lspci -vv) "
            "and what shapes the traffic (tc qdisc show) there, then at the port of the switch.",
        )
    for host, why in judgement.limited.items():
        yield Unjudged((host,), f"slow, and the machine itself was the limit: {why}")
    lost = grouped((f"not measured: {one.error}", one.src) for one in rates.lost)
    for why, hosts in lost.items():
        yield Unjudged(tuple(dict.fromkeys(hosts)), why)


def _message(slow: SlowLink, rates: Rates) -> str:
    by = f" by {_interfaces(slow)}" if len(rails(rates)) > 1 or slow.whole_rail else ""
    part = f"{100 * slow.share:.0f} %" if slow.share >= 0.01 else "less than 1 %"
    loss = f"{100 * max(one.loss for one in slow.rates):.0f} % of the segments had to be sent again"
    if slow.whole_rail:
        return (
            f"All hosts are slow{by}: {gbps_words(slow.gbps)}, {part} of the {gbps_words(slow.usual)} to be expected."
        )
    if len(slow.hosts) == 2:
        src, dst = slow.hosts
        both = len({one.src for one in slow.rates}) > 1
        who = f"{src} and {dst} reach each other" if both else f"{src} reaches {dst}"
        if slow.is_lossy:
            return f"Packets are lost from {src} to {dst}{' and back' if both else ''}{by}: {loss}."
        return f"{who}{by} at {part} of what other pairs do; each is as fast as the others with everybody else."
    (host,), does = slow.hosts, DOES[slow.directions]
    if slow.is_lossy:
        return f"Packets are lost that {host} {does}{by}: {loss}."
    other = {"sends": "; what it receives is as fast", "receives": "; what it sends is as fast"}.get(does, "")
    return f"{host} {does}{by} at {part} of what the others do{other}."


def _interfaces(slow: SlowLink) -> str:
    own = slow.hosts[0] if len(slow.hosts) == 1 else None
    names = (one.peer_interface if one.dst == own else one.interface for one in slow.rates)
    return " and ".join(dict.fromkeys(names))


def _evidence(slow: SlowLink, rates: Rates, view: View) -> Iterator[str]:
    """The figures beside the others', and what is known of the links."""
    bad = {(one.src, one.dst, one.rail) for one in slow.rates}
    others = [
        one for pair, one in rates.final.items() if pair not in bad and (one.rail in slow.rails) != slow.whole_rail
    ]
    usual = f"; the others {gbps_span(one.gbps for one in others)}" if others else ""
    groups = grouped(((one.src, one.rail), one) for one in slow.rates)
    if len({one.dst for one in slow.rates}) == 1:
        groups = grouped(((one.dst, one.rail), one) for one in slow.rates)
    for its in groups.values():
        ends = f"{fold(one.src for one in its)} -> {fold(one.dst for one in its)}"
        again = sum(one.retransmits for one in its)
        yield f"{ends}: {gbps_span(one.gbps for one in its)}, {plural(again, 'retransmit')}{usual}"
        usual = ""
    own = [(slow.hosts[0], slow.hosts)] if len(slow.hosts) == 1 else [(host, slow.hosts) for host in slow.hosts]
    for host, _ in own[:2]:
        for name in dict.fromkeys(one.interface if one.src == host else one.peer_interface for one in slow.rates):
            yield f"{name} of {host}: {link_words(rates, host, name, view)}"
    limit = [speed for one in slow.rates if (speed := link_gbps(rates, one)) is not None]
    if limit:
        yield f"the links could give {gbps_words(min(limit))}"
    most = max(slow.rates, key=lambda one: one.sender_busy)
    yield (
        f"measured twice, the second time with nobody else sending; the sender wanted a CPU "
        f"{100 * most.sender_busy:.0f} % of the time, so the machine was not the limit"
    )


def link_words(rates: Rates, host: str, name: str, view: View) -> str:
    """The link in words: ``10000 Mb/s, full duplex, MTU 1500, 4 of 16 PCIe lanes, without tso``."""
    link = rates.link(host, name)
    facts = next((facts for one, facts in view.facts if one.name == host), None)
    known = () if facts is None or isinstance(facts.interfaces, Unknown) else facts.interfaces.links
    mtu = next((one.mtu for one in known if one.name == name.partition(":")[0]), None)
    words = [f"MTU {mtu}"] if mtu else []
    if link is not None:
        words = [
            f"{link.speed_mbps} Mb/s" if link.speed_mbps else "speed not told by its driver",
            *([f"{link.duplex} duplex"] if link.duplex else []),
            *words,
            *([f"{link.lanes} of {link.most_lanes} PCIe lanes"] if link.lanes and link.most_lanes else []),
        ]
        missing = [name for name, on in link.offloads.items() if not on]
        words += [f"without {', '.join(missing)}"] if missing else []
    return ", ".join(words)
