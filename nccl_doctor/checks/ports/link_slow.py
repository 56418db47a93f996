"""A host, a pair of hosts or a rail is far slower than usual or loses packets, or a GPU or NIC has lost PCIe lanes.

What it means: all ranks of a ring wait for the slowest link of the ring, so one bad link slows the whole job. Typical
causes are a cable or transceiver with lost lanes, a port at a reduced rate, half duplex, or a NIC in a narrow PCIe
slot. Traffic shaping, an MTU mismatch or a lossy port also slows a link. The diagnosis is an error instead of a warning
if the rate is below a tenth of the usual rate.

How we know: with `--rate`, the hosts send data to each other over TCP, between the addresses that NCCL uses. In each
round, every host sends to one host and receives from another. A pair of hosts is measured again, alone, if its rate is
below a threshold that lies between a third and half of the usual rate. A pair of hosts is also measured again if it
retransmitted at least 0.8% of its segments and this share is at least ten times the usual share. If nearly all
connections from or to a host are slow or lose packets, the diagnosis names this host and the direction. A pair of hosts
is named if only the connections between these two hosts are slow or lose packets. A rail is named if its rate on all
hosts is low compared with other rails or with the speed of its links. If the sending thread lacked CPU time, the
receiver read the data too slowly, or interrupts occupied a CPU, the report attributes the low rate to the host itself
instead of a link.

In every run, the current_link_width of each GPU that the job sees is compared with the maximum that both ends of the
PCIe link support. A reduced PCIe link speed proves nothing, because GPUs reduce the link speed when idle. An idle GPU
can also reduce its number of lanes. Missing lanes at a reduced link speed are reported only as a note, unless another
idle GPU has all its lanes. GPUs that share memory with the CPU (GB10, GH200) are ignored. The PCIe lanes of the NIC
that NCCL's sockets use are reported if their total rate is lower than the speed of the NIC's port. For the lanes of
RDMA devices, see rdma-link-slow.

Fix: if a GPU or NIC has missing lanes, reseat the card without a riser, and check the lanes of the slot in the firmware
settings. If no lanes are missing, check the named host, the cable and the switch port. On the named host, run `ethtool
-S` for error counts, `ethtool` for the negotiated speed, `lspci -vv` for the lanes (LnkSta), and `tc qdisc show` for
traffic shaping.

References: nvidia-smi(1), pcie.link.width.current: "These may be reduced when the GPU is not in use".
"""

import re
from collections.abc import Iterator

from nccl_doctor.checks.effects import SLOW
from nccl_doctor.checks.rates import GRAVE, SlowLink, judge_rates, link_gbps, rails
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.rule import Grade, likely
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.base import PENDING, Unknown, skipped
from nccl_doctor.model.effect import Symptom
from nccl_doctor.model.finding import Details, Finding, Severity
from nccl_doctor.model.register import Absent, Unjudged
from nccl_doctor.model.report import gbps_span, gbps_words
from nccl_doctor.snapshot.hosts import Host, HostFacts, visible_gpus
from nccl_doctor.snapshot.mesh import accused
from nccl_doctor.snapshot.network import PciLink
from nccl_doctor.snapshot.rate import Rates
from nccl_doctor.text.hostlist import fold, grouped, listed, plural

LOST = {("send",): "from", ("receive",): "to", ("send", "receive"): "to and from"}
DOES = {("send",): "sends", ("receive",): "receives", ("send", "receive"): "sends and receives"}


SHARED = re.compile(r"\bG[BH]\d\d")
"""Pattern for the names of GPUs that are connected to the CPU by NVLink."""


# NCCL's own measurement of each rank's network (NCCL DIAG).
RULES = (
    likely(
        r"NCCL DIAG \[INFO\] net bw: \S{1,40} rank (?P<rank>\d+) \((?P<host>[\w.-]{1,253})\): [\d.]{1,12} Gbit/s, "
        r">30% off",
        "n1:1 NCCL DIAG [INFO] net bw: ib rank 3 (gpu-04): 121.4 Gbit/s, >30% off median 390.2 Gbit/s in comm 0x5f",
    ),
    likely(
        r"NCCL DIAG \[INFO\] net bw: .{0,60}\d more ranks >30% off median",
        "n1:1 NCCL DIAG [INFO] net bw: ib 3 more ranks >30% off median 390.2 Gbit/s in comm 0x5f",
    ),
    likely(
        r"NET/IB: WQE slow: peer=",
        "n1:1:2 [0] NCCL INFO NET/IB: WQE slow: peer=10.0.0.7<41> | local: qpn=7 dev=mlx5_0 | thr=9ns delta=10ns",
    ),
)

SIGNS = LogSigns(
    RULES,
    make_advice(
        "The network of {who} is far slower than that of the other ranks (NCCL's diagnostics).",
        "Look there at the link's speed, lanes and errors (ibstat, ethtool, ethtool -S), then at the cable and the "
        "switch's port. nccl-doctor check --rate on all hosts measures it by TCP.",
        None,
    ),
    warning_up_to=Grade.LIKELY,
)


@check("NCD320", phrase="PCIe link slow", severity=Severity.WARNING, explains=(SLOW,), also=("rates",), row="rate")
def link_slow(view: View) -> Findings:
    """Yield findings about PCIe links and about slow hosts, pairs and rails."""
    rates = view.snapshot.rates
    if rates == skipped(PENDING):
        yield Absent(PENDING, skipped=True)
        return
    yield from _lanes(view, rates if isinstance(rates, Rates) else None)
    if isinstance(rates, Rates):
        yield from _by_rates(view, rates)
    elif isinstance(rates, Unknown):
        yield Unjudged((), rates.reason)
    elif not any(True for host, facts in view.facts for _ in _gpu_links(host, facts)):
        yield Absent(rates.reason, skipped=True)


def _by_rates(view: View, rates: Rates) -> Findings:
    judgement = judge_rates(rates)
    for slow in judgement.slow:
        yield Finding(
            hosts=slow.hosts if slow.whole_rail else accused(slow.hosts, ((pair.src, pair.dst) for pair in slow.rates)),
            severity=Severity.ERROR if slow.share < GRAVE else None,
            message=_message(slow, rates),
            evidence=tuple(_evidence(slow, rates, view)),
            facts={
                "pairs": [{"src": pair.src, "dst": pair.dst} for pair in slow.rates],
                "interfaces": sorted({pair.interface for pair in slow.rates}),
                "whole_rail": slow.whole_rail,
                "direction": " and ".join(slow.directions) or None,
                "gbps": round(slow.gbps, 3),
                "usual": round(slow.usual, 3),
                "retransmits": sum(pair.retransmits for pair in slow.rates),
            },
            details=Details(directions=slow.directions, phrase=_phrase(slow)),
            fix="Look at the cable, the negotiated speed and errors (ethtool, ethtool -S), the PCIe lanes (lspci -vv) "
            "and what shapes the traffic (tc qdisc show) there, then at the port of the switch.",
        )
    for host, why in judgement.limited.items():
        yield Unjudged((host,), f"slow, but limited by the machine itself: {why}")
    lost = grouped((f"not measured: {pair.error}", pair.src) for pair in rates.lost)
    for why, hosts in lost.items():
        yield Unjudged(tuple(dict.fromkeys(hosts)), why)


def _lanes(view: View, rates: Rates | None) -> Findings:
    """Yield findings about GPUs and NICs that use fewer PCIe lanes than possible."""
    gpus = [(host.name, *entry) for host, facts in view.facts for entry in _gpu_links(host, facts)]
    for host, facts in view.facts:
        if isinstance(facts.gpu_driver, Unknown):
            yield Unjudged((host.name,), facts.gpu_driver.reason)
    wide_when_idle = any(link.lost_speed and not link.lost_lanes for _, _, link in gpus)
    lost = grouped(
        (link.lost_speed and not wide_when_idle, (host, f"GPU {address}", link))
        for host, address, link in gpus
        if link.lost_lanes
    )
    for note, links in lost.items():
        yield _without_lanes(links, note=note)
    accused = {host for slow in judge_rates(rates).slow for host in slow.hosts} if rates is not None else set()
    # the finding about rates already names their PCIe lanes
    nics = [entry for entry in _nic_links(view) if entry[0] not in accused]
    if nics:
        yield _without_lanes(nics, note=False)


def _gpu_links(host: Host, facts: HostFacts) -> Iterator[tuple[str, PciLink]]:
    """Yield the PCI address and the link of each GPU that is visible to the job and bound to a driver."""
    driver, gpus, health = facts.gpu_driver, facts.gpus, facts.gpu_health
    if driver is None or isinstance(driver, Unknown):
        return
    known = () if isinstance(gpus, Unknown) else gpus
    if any(SHARED.search(gpu.name) for gpu in known):
        return
    indexes = {gpu.index for gpu in visible_gpus(host.node, facts)}
    places = () if isinstance(health, Unknown) else health
    hidden = {place.bus_id[-12:] for place in places if place.bus_id and known and place.index not in indexes}
    for gpu in driver.gpus:
        if gpu.link is not None and gpu.driver in ("nvidia", "amdgpu") and gpu.address not in hidden:
            yield gpu.address, gpu.link


def _nic_links(view: View) -> Iterator[tuple[str, str, PciLink]]:
    """Yield the host, name and PCIe link of each NCCL socket interface whose PCIe link is slower than its port."""
    for host, _ in view.facts:
        host_nccl, side = view.nccl.by_host.get(host.name), view.nccl.rdma.sides.get(host.name)
        if host_nccl is None or host_nccl.chosen is None or (side is not None and side.rdma.entries):
            continue
        link = host_nccl.link(host_nccl.chosen.name)
        if link is None or link.pci is None or not link.speed_mbps:
            continue
        if (link.pci.lost_lanes or link.pci.lost_speed) and link.pci.gbps * 1000 < link.speed_mbps:
            yield host.name, link.name, link.pci


def _without_lanes(links: list[tuple[str, str, PciLink]], *, note: bool) -> Finding:
    hosts = tuple(dict.fromkeys(host for host, _, _ in links))
    names = listed(dict.fromkeys(name for _, name, _ in links))
    first = links[0][2]
    link, is_ = ("The PCIe link", "is") if len(links) == 1 else ("The PCIe links", "are")
    idle = ". The driver might have reduced the link speed because the GPU is idle" if note else ""
    return Finding(
        hosts=hosts,
        severity=Severity.INFO if note else None,
        message=f"{link} of {names} on {fold(hosts)} {is_} running at {first.speed:g} GT/s "
        f"x{first.width} instead of {first.most}{idle}.",
        evidence=tuple(
            f"{host}: {name}: {link.speed:g} GT/s x{link.width} of {link.most}, {link.gbps:.0f} Gb/s"
            for host, name, link in links
        ),
        facts={"devices": [{"host": host, "device": name} for host, name, _ in links]},
        symptoms=(Symptom("link-slow", frozenset()),),  # the cause of one device's slow link affects no other device
        explains=() if note else None,
        fix="Check again under load (lspci -vv as root, LnkSta)."
        if note
        else "Reseat the card, without a riser; check the slot's lanes in the firmware settings.",
    )


def _message(slow: SlowLink, rates: Rates) -> str:
    by = f" over {_interfaces(slow)}" if len(rails(rates)) > 1 or slow.whole_rail else ""
    part = f"{100 * slow.share:.0f}%" if slow.share >= 0.01 else "less than 1%"
    loss = f"{100 * max(rate.loss for rate in slow.rates):.0f}% of the TCP segments were retransmitted"
    if slow.whole_rail:
        return f"All hosts send{by} at only {gbps_words(slow.gbps)}, {part} of the expected {gbps_words(slow.usual)}."
    if len(slow.hosts) == 2:
        src, dst = slow.hosts
        both = len({rate.src for rate in slow.rates}) > 1
        who = f"{src} and {dst} send to each other" if both else f"{src} sends to {dst}"
        if slow.is_lossy:
            return f"Packets from {src} to {dst}{' and back' * both}{by} are lost: {loss}."
        if len({frozenset((rate.src, rate.dst)) for rate in rates.rates}) == 1:  # there are no other pairs
            return f"{who}{by} at {part} of the rate {'in the opposite direction' if both else f'from {dst} to {src}'}."
        rest = ", although both exchange data with all other hosts at full speed"
        return f"{who}{by} at {part} of the other pairs' rate{rest * _are_fast_elsewhere(slow, rates)}."
    (host,), does = slow.hosts, DOES[slow.directions]
    if slow.is_lossy:
        return f"Packets {LOST[slow.directions]} {host}{by} are lost: {loss}."
    other = {"sends": ", but receives at full speed", "receives": ", but sends at full speed"}.get(does, "")
    return f"{host} {does}{by} at {part} of the other hosts' rate{other}."


def _are_fast_elsewhere(slow: SlowLink, rates: Rates) -> bool:
    """Return whether all rates between the two hosts and the other hosts were measured, and none of them is bad."""
    others = set(rates.hosts).difference(slow.hosts)
    pairs = {pair for host in slow.hosts for other in others for pair in ((host, other), (other, host))}
    measured = [(pair, rail.is_bad(rate)) for rail in rails(rates) for pair, rate in rail.rates.items()]
    return pairs <= {pair for pair, _ in measured} and not any(is_bad and pair in pairs for pair, is_bad in measured)


def _phrase(slow: SlowLink) -> str:
    """Return a phrase such as ``node3 sends at 0.9 Gb/s, the others at 9.4 Gb/s``."""
    if slow.whole_rail:
        by = " and ".join(sorted({rate.interface for rate in slow.rates}))
        return f"all hosts reach {gbps_words(slow.gbps)} of {gbps_words(slow.usual)} by {by}"
    ways = {(rate.src, rate.dst) for rate in slow.rates}
    if slow.directions:
        who = f"{slow.hosts[0]} {DOES[slow.directions]}"
    else:
        who = " reaches ".join(*ways) if len(ways) == 1 else f"{fold(slow.hosts)} reach each other"
    if slow.is_lossy:
        return f"{who} with {plural(sum(rate.retransmits for rate in slow.rates), 'retransmit')}"
    return f"{who} at {gbps_words(slow.gbps)}, the others at {gbps_words(slow.usual)}"


def _interfaces(slow: SlowLink) -> str:
    host = slow.hosts[0] if len(slow.hosts) == 1 else None
    names = (rate.peer_interface if rate.dst == host else rate.interface for rate in slow.rates)
    return " and ".join(dict.fromkeys(names))


def _evidence(slow: SlowLink, rates: Rates, view: View) -> Iterator[str]:
    bad = {(rate.src, rate.dst, rate.rail) for rate in slow.rates}
    others = [
        rate for pair, rate in rates.final.items() if pair not in bad and (rate.rail in slow.rails) != slow.whole_rail
    ]
    usual = f"; the others {gbps_span(rate.gbps for rate in others)}" if others else ""
    groups = grouped(((rate.src, rate.rail), rate) for rate in slow.rates)
    if len({rate.dst for rate in slow.rates}) == 1:
        groups = grouped(((rate.dst, rate.rail), rate) for rate in slow.rates)
    for group in groups.values():
        by = f" by {group[0].interface}" if len(slow.rails) > 1 else ""
        ends = f"{fold(rate.src for rate in group)} -> {fold(rate.dst for rate in group)}{by}"
        again = sum(rate.retransmits for rate in group)
        yield f"{ends}: {gbps_span(rate.gbps for rate in group)}, {plural(again, 'retransmit')}{usual}"
        usual = ""
    entries = [(slow.hosts[0], slow.hosts)] if len(slow.hosts) == 1 else [(host, slow.hosts) for host in slow.hosts]
    for host, _ in entries[:2]:
        for name in dict.fromkeys(rate.interface if rate.src == host else rate.peer_interface for rate in slow.rates):
            yield f"{name} of {host}: {link_words(rates, host, name, view)}"
    limit = [speed for rate in slow.rates if (speed := link_gbps(rates, rate)) is not None]
    if limit:
        yield f"the links allow {gbps_words(min(limit))}"
    if dropped := sum(rate.dropped for rate in slow.rates):
        yield f"the sender's own queues dropped {plural(dropped, 'packet')}: tc -s qdisc show"
    most = max(slow.rates, key=lambda rate: rate.sender_busy)
    yield (
        f"measured twice, the second time with no other host sending; the sender used a CPU "
        f"{100 * most.sender_busy:.0f}% of the time, so the machine was not the limit"
    )


def link_words(rates: Rates, host: str, name: str, view: View) -> str:
    """Return a description such as ``10000 Mb/s, full duplex, MTU 1500, 4 of 16 PCIe lanes, without tso``."""
    link = rates.link(host, name)
    facts = next((facts for item, facts in view.facts if item.name == host), None)
    known = () if facts is None or isinstance(facts.interfaces, Unknown) else facts.interfaces.links
    nic = next((item for item in known if item.name == name.partition(":")[0]), None)
    words = [f"MTU {nic.mtu}"] if nic else []
    if link is not None:
        words = [
            f"{link.speed_mbps} Mb/s" if link.speed_mbps else "speed not reported by its driver",
            *([f"{link.duplex} duplex"] if link.duplex else []),
            *words,
            *([f"{nic.pci.width} of {nic.pci.max_width} PCIe lanes"] if nic and nic.pci and nic.pci.max_width else []),
        ]
        missing = [name for name, on in link.offloads.items() if not on]
        words += [f"without {', '.join(missing)}"] if missing else []
    return ", ".join(words)
