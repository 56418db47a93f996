"""Packets to and from a host take far longer than packets between other hosts, or are retransmitted.

What it means: the job runs, but its many small messages are delayed on the connections of one host. Possible causes are
a path through another site or a VPN, an overloaded switch, a duplex mismatch, or a port that loses packets.

How we know: for each connection in the port test, the kernel measures the round-trip time and counts the
retransmissions (TCP_INFO). A host is reported if its shortest round-trip time is at least ten times the median of the
other hosts' shortest round-trip times, and at least 5 ms longer than this median. A host is also reported if packets
were retransmitted on at least half of its connections, but on at most a tenth of the connections between other hosts.
Long round trips and retransmissions of a busy host are not reported. A host is busy if it has at least two runnable
processes per CPU, or if a thread of nccl-doctor wakes up at least 0.5 s late. The diagnosis is a warning if many of a
host's 64 simultaneous connections (32 in clusters of more than 16 hosts) got no answer, or got an answer only after
their first packet was resent. The diagnosis is also a warning if 32 KiB of data did not arrive within 1.5 s although
full-size packets arrived. If answers or data are late or missing, the path between the hosts loses packets at random or
limits new connections.

Fix: examine the path to the other hosts with `tracepath`, and the error counters of the network interface with `ethtool
-S`. `nccl-doctor check --rate` measures the TCP throughput between the hosts.
"""

from collections.abc import Iterator
from statistics import median

from nccl_doctor.checks.interfaces.mtu_blackhole import is_lossy
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.firewall.blame import admits
from nccl_doctor.firewall.manager import printable
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Absent
from nccl_doctor.snapshot.mesh import Trips, accused, groups

TIMES = 10
LEAST_US = 5000  # more than the others' median
LEAST_PAIRS = 4
OTHERS = 0.1  # share of the others' dials that may have had retransmissions


@check("NCD321", severity=Severity.INFO, needs=("mesh",))
def round_trip_long(view: View) -> Findings:
    """Yield one finding per slow host, provided that at least two other hosts are available for comparison."""
    trips = view.mesh.trips
    lossy = list(_lossy(view))
    yield from lossy
    named = {name for finding in lossy for name in finding.hosts}
    if not trips and not lossy:
        yield Absent("no round trips were kept")
    load = view.snapshot.load
    busy = {name for name, entry in load.hosts.items() if entry.busy} if load is not None else set[str]()
    for host, stats in trips.items():
        others = [entry for name, entry in trips.items() if name != host]
        if len(others) < 2 or stats.pairs < LEAST_PAIRS or host in busy | named:
            continue
        usual = median(entry.shortest_us for entry in others)
        if stats.shortest_us >= max(TIMES * usual, usual + LEAST_US):
            words = (
                f"Round trips to {host} take at least {stats.shortest_us / 1e3:.0f} ms, "
                f"but round trips between other hosts take only {usual / 1e3:.2f} ms"
            )
        elif not lossy and _resends(stats, others):
            words = f"Packets to and from {host} had to be retransmitted on {stats.again} of {stats.pairs} connections"
        else:
            continue
        yield Finding(
            hosts=(host,),
            message=f"{words}.",
            evidence=tuple(f"{name}: {_words(entry)}" for name, entry in trips.items()),
            facts={"rtt_us": stats.shortest_us, "usual_us": usual, "again": stats.again, "pairs": stats.pairs},
            fix="Look at the path to it (tracepath) and its port's errors (ethtool -S). --rate measures each pair.",
        )


def _lossy(view: View) -> Iterator[Finding]:
    """Yield a warning for each group of hosts between which packets are lost.

    If firewall rate limits explain the loss, no warning is yielded.
    """
    doubted = {item: rule for item, rule in view.dials.firewall.doubted.items() if admits(rule) < 0}
    limited = view.dials.firewall.doubted.keys() - doubted.keys()
    losses = [item for item in view.mesh.lost_connections if not item.by_port and item not in limited]
    stalls = [
        item for item in (view.mesh.stalls if isinstance(view.mesh.stalls, tuple) else ()) if is_lossy(view, item)
    ]
    pairs = [*((item.src, item.dst) for item in losses), *((item.src, item.dst) for item in stalls)]
    for group in groups(pairs):
        mine = [item for item in losses if item.src in group.hosts]
        tried, late = sum(item.tried for item in mine), sum(item.resent + item.lost for item in mine)
        what = f"are lost: for {late} of {tried} connections, the first packet had to be resent"
        if not mine:
            what = "are lost or severely delayed: 32 KiB of data did not arrive within 1.5 s"
        evidence = [
            f"{item.src} -> {item.address}:{item.port}: of {item.tried} connections made at once, {item.resent} were "
            f"answered late, and {item.lost} not within some seconds"
            for item in mine
        ]
        evidence += [
            f"{item.src} -> {item.address}: {item.unacked} of {item.sent} bytes had not arrived at the end"
            for item in stalls
            if item.src in group.hosts
        ]
        rules = dict.fromkeys(printable(doubted[item].text) for item in mine if item in doubted)
        yield Finding(
            hosts=accused(sorted(group.minimal_cover), [pair for pair in pairs if pair[0] in group.hosts]),
            message=f"Packets between {group.words} {what}.",
            evidence=(*evidence, *(f"this rule might drop them: {rule}" for rule in rules)),
            facts={"late": late, "tried": tried},
            fix="Look for a bad cable, a duplex mismatch, port errors (ethtool -S), or a limit on new connections on "
            "the path; nccl-doctor check --rate measures each pair.",
            severity=Severity.WARNING,
        )


def _resends(trips: Trips, others: list[Trips]) -> bool:
    """Return whether at least half of the host's connections, but few other connections, had retransmissions."""
    # each of its dials is also counted for the host at the other end
    elsewhere = sum(other.again for other in others) - trips.again
    dials = sum(other.pairs for other in others) - trips.pairs
    return 2 * trips.again >= trips.pairs and elsewhere <= OTHERS * dials


def _words(trips: Trips) -> str:
    again = f", retransmitted in {trips.again}" if trips.again else ""
    return (
        f"{trips.shortest_us / 1e3:.2f} ms, median {trips.usual_us / 1e3:.2f} ms, of {trips.pairs} connections{again}"
    )
