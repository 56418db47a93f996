"""Large packets between two hosts are lost, although small packets arrive.

What it means: connections are established but hang at the first full-size packet. The job stalls while NCCL exchanges
its first data, or at the first collective. A link on the path (a switch, a tunnel, a VPN) has a smaller MTU than the
hosts, and ICMP messages about the MTU are filtered.

How we know: on a connection between the addresses that NCCL will use, full-size packets were never acknowledged. TCP
sets the "don't fragment" bit in its packets. The same data was then sent again in full-size packets, which were lost
again, and in packets of 1,200 bytes, which arrived. If the small packets were also lost, or the full-size packets
arrived the second time, the path loses packets of any size (see round-trip-long).

Fix: lower the MTU of the interfaces to the path's MTU (1500, or 1450 inside a tunnel), or raise the MTU of the
switches. Allow ICMP "fragmentation needed" messages on the path.

See RFC 2923.
"""

from collections.abc import Iterable, Sequence

from nccl_doctor.checks.effects import SILENCE
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.base import Skipped, Unknown
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.snapshot.mesh import Stall, accused
from nccl_doctor.snapshot.network import Interfaces
from nccl_doctor.text.hostlist import fold, grouped
from nccl_doctor.text.shell import line

HEADERS = 100  # bytes: IPv6 and TCP with options, or less


@check("NCD214", phrase="large packets are lost", severity=Severity.ERROR, needs=("mesh",), explains=(SILENCE,))
def mtu_blackhole(view: View) -> Findings:
    """Yield one finding for each host that is part of many stalled pairs, or one finding for all stalled pairs."""
    mesh = view.mesh
    if isinstance(mesh.stalls, Skipped):
        return
    if isinstance(mesh.stalls, Unknown):
        yield Unjudged((), mesh.stalls.reason)
        return
    shares: dict[str, list[Stall]] = {}
    candidates = [stall for stall in mesh.stalls if not is_lossy(view, stall)]
    rest = list(candidates)
    while rest:
        ends = [name for stall in rest for name in (stall.src, stall.dst)]
        worst = max(sorted(set(ends)), key=ends.count)
        shares[worst] = [stall for stall in rest if worst in (stall.src, stall.dst)]
        rest = [stall for stall in rest if worst not in (stall.src, stall.dst)]
    everybody = _ends(candidates)
    if len(shares) > 1 and len(everybody) <= 2 * len(shares):
        # No single host: a switch between all of them, or a link between two groups.
        yield _finding(view, everybody, fold(everybody), candidates)
        return
    for host, stalls in shares.items():
        others = tuple(name for name in _ends(stalls) if name != host)
        hosts = accused((host,) if len(others) > 1 else _ends(stalls), ((entry.src, entry.dst) for entry in stalls))
        yield _finding(view, hosts, f"{host} and {fold(others)}", stalls)


def is_lossy(view: View, stall: Stall) -> bool:
    """Return whether the path loses packets regardless of their size."""
    ends = {stall.src, stall.dst}
    # a first packet is small; where many are lost, a full one that is lost twice proves no size
    losses = any({loss.src, loss.dst} == ends and not loss.by_port for loss in view.mesh.lost_connections)
    if losses or stall.by_size is not None:
        return losses or not stall.by_size
    mtus = [
        link.mtu
        for host, facts in view.facts
        if host.name in (stall.src, stall.dst) and isinstance(facts.interfaces, Interfaces)
        for link in facts.interfaces.links
        if host.name in view.nccl.interfaces and link.name == view.nccl.interfaces[host.name].name
    ]
    return stall.sent - stall.unacked >= stall.segment >= min(mtus) - HEADERS if mtus else False


def _ends(stalls: Iterable[Stall]) -> tuple[str, ...]:
    return tuple(sorted({name for stall in stalls for name in (stall.src, stall.dst)}))


def _mtus(view: View, hosts: Iterable[str]) -> str:
    """Return the MTUs of the interfaces that NCCL uses on ``hosts``, such as ``9000 of eno1 on node[1-3]``."""
    alike: dict[str, list[str]] = {}
    for host, facts in view.facts:
        chosen = view.nccl.interfaces.get(host.name)
        if host.name in hosts and chosen is not None and not isinstance(facts.interfaces, Unknown):
            for link in (link for link in facts.interfaces.links if link.name == chosen.name):
                alike.setdefault(f"{link.mtu} of {link.name}", []).append(host.name)
    return "; ".join(f"{what} on {fold(names)}" for what, names in alike.items())


def _lowered(view: View) -> str:
    """Return the command that sets an MTU of 1500, with the interface's name if all hosts use the same name."""
    names = {chosen.name for chosen in view.nccl.interfaces.values()}
    return f"`{line('ip link set dev {name} mtu 1500', name=names.pop() if len(names) == 1 else 'NAME')}`"


def _finding(view: View, hosts: tuple[str, ...], where: str, stalls: Sequence[Stall]) -> Finding:
    mtus = _mtus(view, _ends(stalls))
    groups = grouped(((stall.src, stall.unacked, stall.sent, stall.segment), stall.address) for stall in stalls)
    return Finding(
        hosts=hosts,
        message=f"Large packets between {where} are lost, so connections hang after they are established.",
        evidence=tuple(
            f"{src} -> {', '.join(addresses)}: {unacked} of {sent} bytes never arrived, in segments of {segment}"
            for (src, unacked, sent, segment), addresses in groups.items()
        ),
        facts={"pairs": [{"src": stall.src, "dst": stall.dst, "segment": stall.segment} for stall in stalls]},
        fix=f"Choose: lower the MTU of NCCL's interfaces{f' ({mtus})' if mtus else ''} on all hosts to what the path "
        f"passes, {_lowered(view)} where the switches carry no jumbo frames, and 1450 or less inside a "
        "tunnel; or raise it on what lies between (jumbo frames on the switches' ports). Let "
        'ICMP "fragmentation needed" through.',
    )
