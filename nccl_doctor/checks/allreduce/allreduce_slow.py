"""The all-reduce is far slower than the link between the hosts allows.

What it means: training will spend most of its time waiting for gradients. A ring all-reduce of K bytes over links of
bandwidth B takes T = 2(N-1)/N * K/B, which hardly depends on the number N of ranks. Common causes are a cable or switch
port at a reduced rate, traffic over an unintended interface, a busy host, and a small MTU. On a fast link, a single TCP
connection might also be too slow (`NCCL_SOCKET_NTHREADS`, `NCCL_NSOCKS_PERTHREAD`).

How we know: the highest bus bandwidth that was reached with any message size is compared with the speed that the
slowest host's interface or RDMA device reports. An all-reduce at less than a quarter of the link's speed counts as
slow. With gloo, at most 10 Gbit/s is expected on any link, because a single thread adds and copies the data. The speed
is not evaluated if all ranks run on a single machine, or if all messages were so small that latency dominated. If the
link's speed is unknown, as for virtual interfaces, gloo counts as slow below 10 Mbit/s. If the link's speed is unknown
and the ranks used or waited for a lot of CPU time, gloo's speed is not evaluated, because the CPU might have been the
bottleneck.

If the all-reduce uses RDMA, nccl-doctor reads the counters of the RDMA ports (/sys/class/infiniband) before and after
the all-reduce. The advice depends on which counters increased: link errors, or packets that were lost, out of sequence
or not acknowledged. An increase in congestion notifications is normal if no other counter increased.

If one rank spent far more time than the others between the all-reduces, the diagnosis names this rank, because all
other ranks waited for it.

Fix: check the negotiated speed with `ethtool` on the named host. To find out at which message sizes the all-reduce is
slow, measure other sizes with `nccl-doctor smoke --max-bytes`.
"""

from nccl_doctor.checks.allreduce.link import MEASURED, LinkSpeed, best, counters, ideal_seconds, link, straggler
from nccl_doctor.checks.allreduce.symptoms import everywhere
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.text.hostlist import figure

SHARE = 0.25
GLOO_GB_PER_S = 1.25
LATENCIES = 10
"""Minimum ratio of the ideal time for the largest message to the latency.

The latency is the shortest time that was measured for any message size.

At smaller ratios, the speed of the all-reduce depends on the latency rather than on the link.
"""


@check("NCD704", severity=Severity.WARNING, needs=("smoke",))
def allreduce_slow(view: View) -> Findings:
    """Yield a finding if the all-reduce is far slower than the link, or if all other ranks wait for one rank."""
    smoke, speed = view.smoke, link(view.snapshot)
    late = straggler(smoke)
    if smoke.outcome == "ok" and speed is None and late is None and _waits_for_bytes(smoke):
        yield _without_speed(smoke)
        return
    slow = speed is not None and _far_under(smoke, speed)
    if smoke.outcome != "ok" or not (slow or late):
        return
    reached, (counted, advice) = best(smoke), ((), None) if late else counters(smoke)
    evidence, message = [], ""
    if speed is not None:
        evidence.append(f"{speed.name} on {speed.host} could give {figure(speed.gb_per_s, 3)} GB/s")
        way = "that --rate measured" if speed.name == MEASURED else f"possible over {speed.name}"
        most = f"the {figure(speed.gb_per_s)} GB/s {way} on {speed.host}"
        message = (
            f"The all-reduce reached only {figure(reached)} GB/s, {100 * reached / speed.gb_per_s:.0f}% of {most}."
        )
    evidence.append(f"the best of {len(smoke.sizes)} sizes reached {figure(reached, 3)} GB/s of bus bandwidth")
    if late is not None:
        others = sorted(rank.own_s or 0.0 for rank in smoke.ranks if rank is not late)
        phrase = f"rank {late.rank} ({late.host}) spent {late.own_s:.1f} s between the all-reduces"
        evidence.append(f"{phrase}, the others {others[0]:.1f} to {others[-1]:.1f} s")
        message = (
            f"Rank {late.rank} on {late.host} spent far more time between the all-reduces than the other ranks, which "
            "had to wait for it."
        )
    evidence += counted
    hosts = (late.host,) if late else (speed.host,) if speed else ()
    yield Finding(
        hosts=hosts,
        message=message,
        evidence=tuple(evidence),
        facts={"busbw": reached, "link": speed.gb_per_s if speed else None, "straggler": late.rank if late else None},
        symptoms=(everywhere("slow", hosts, smoke),),
        fix="Find out what else that host is busy with."
        if late
        else advice or "Check the negotiated speed (ethtool), the MTU, and what else uses the link.",
    )


LEAST_GB_PER_S = 0.00125  # 10 Mbit/s, the slowest Ethernet
IDLE = 0.5  # CPUs; gloo at full rate needs 0.8 and more
GROWTH = 2  # seconds of the largest message as a multiple of those of the smallest


def _waits_for_bytes(smoke: Smoke) -> bool:
    """Return whether a network slower than 10 Mbit/s, rather than the latency or a CPU, limits gloo's ranks."""
    hosts = {rank.host for rank in smoke.ranks}
    if smoke.backend != "gloo" or len(smoke.sizes) < 2 or len(hosts) < 2 or best(smoke) >= LEAST_GB_PER_S:
        return False
    first, last = (pick(smoke.sizes, key=lambda size: size.bytes) for pick in (min, max))
    grows = last.seconds >= GROWTH * first.seconds
    return grows and all(rank.busy is not None and rank.busy < IDLE for rank in smoke.ranks)


def _without_speed(smoke: Smoke) -> Finding:
    reached, busy = best(smoke), max(rank.busy or 0.0 for rank in smoke.ranks)
    hosts = tuple(dict.fromkeys(rank.host for rank in smoke.ranks))
    return Finding(
        hosts=hosts,
        message=f"The all-reduce reached only {figure(reached * 8000, 2)} Mbit/s, which is below the speed of the "
        "slowest Ethernet (10 Mbit/s), so a link between the hosts is slow.",
        evidence=(f"each rank used or wanted at most {figure(busy, 2)} CPUs meanwhile, so the ranks waited for bytes",),
        facts={"busbw": reached, "link": None, "straggler": None},
        symptoms=(everywhere("slow", hosts, smoke),),
        fix="Measure each pair with nccl-doctor check --rate, which names the slow one.",
    )


def _far_under(smoke: Smoke, speed: LinkSpeed) -> bool:
    expected = min(speed.gb_per_s, GLOO_GB_PER_S) if smoke.backend == "gloo" else speed.gb_per_s
    if len(smoke.sizes) < 2 or best(smoke) >= SHARE * expected:
        return False
    latency = min(size.seconds for size in smoke.sizes)
    largest = max(size.bytes for size in smoke.sizes)
    return ideal_seconds(largest, smoke.world_size, expected) > LATENCIES * latency
