"""``check --rate`` over all pairs of eight hosts, and beside iperf3 on the same pair: ``scripts/bench rate``.

The kernel shapes the links, far below what this machine could do: what is compared is the links, not its processors.
"""

from __future__ import annotations

import json
import statistics
import sys

from tests.cli.doctor import doctor
from tests.lab.cluster import Lab

HOSTS, MBIT, TIMES = 8, 100, 5
LIMIT_S = 10.0
NEAR = 0.1
"""How far the two may be apart."""


def main() -> None:
    """Ends with 1 where a promise is not kept."""
    with Lab.up(HOSTS) as lab:
        for host in lab.hosts:
            host.run(f"tc qdisc replace dev eth0 root tbf rate {MBIT}mbit burst 64kb latency 50ms")
        runs = [_run(lab) for _ in range(TIMES)]
        theirs = statistics.median(iperf3(lab) for _ in range(TIMES))
    seconds = statistics.median(took for took, _ in runs)
    ours = statistics.median(rate for _, rate in runs)
    print(f"{HOSTS} hosts, all {HOSTS * (HOSTS - 1)} pairs: {seconds:.1f} s (at most {LIMIT_S:.0f})")
    print(f"node1 -> node2: {ours:.0f} Mb/s, iperf3 {theirs:.0f} Mb/s, ratio {ours / theirs:.3f} (within {NEAR:.0%})")
    sys.exit(seconds > LIMIT_S or abs(ours / theirs - 1) > NEAR)


def _run(lab: Lab) -> tuple[float, float]:
    """Seconds of the phase, and Mb/s from node1 to node2."""
    report = doctor(lab, "check", "--rate", "--no-smoke", "--only", "link-slow").report
    rate = next(one for one in report["rates"] if (one["src"], one["dst"]) == ("node1", "node2"))
    return report["timings"]["rate"], rate["gbps"] * 1e3


def iperf3(lab: Lab) -> float:
    """Mb/s from node1 to node2 in two seconds, after slow start."""
    server, client = lab.host("node2"), lab.host("node1")
    with server.popen(["iperf3", "-s", "-1", "-p", "5201"], stdout=-3):
        server.wait_until(lambda: any(port == 5201 for _, port in server.listeners()), "iperf3")
        done = client.run(["iperf3", "-c", server.address, "-p", "5201", "-t", "2", "-O", "1", "-J"])
    return float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]) / 1e6


if __name__ == "__main__":
    main()
