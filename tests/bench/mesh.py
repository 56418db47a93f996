"""The port mesh beside the same dials by ``nc -z`` in a loop on each host, over ssh: ``scripts/bench mesh``.

Prints the mesh phase's seconds out of the JSON report's ``timings``: with all ports open, over one interface of each
host and over two, and with all of them dropped.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

from nccl_doctor.collect.mesh.mesh import MeshLimits
from tests.lab.cluster import Lab
from tests.lab.faults import fault

MANY, FEW = 64, 8
PORTS = (32768, 45000, 60999)
"""What nc dials: as many on a host as the mesh."""

TIMES = 3
LIMIT_S = 3.0
"""For the phase when all is well, and for what it may take beyond one dial's time-out when all is dropped."""

RAILS = 1.6
"""Times the phase over one interface that it may take over two."""

LISTEN = """
import selectors, socket, sys
ready = selectors.DefaultSelector()
for port in map(int, sys.argv[1:]):
    ready.register(socket.create_server(("", port), backlog=1024), selectors.EVENT_READ)
while True:
    for key, _ in ready.select():
        key.fileobj.accept()[0].close()
"""
DROP = "table inet f { chain input { type filter hook input priority 0; ct state new tcp dport != 22 drop; }; }"


def main() -> None:
    """Prints one line a comparison."""
    with Lab.up(FEW) as lab:
        nc(lab)
        rows = [(phase(lab), nc(lab)) for _ in range(TIMES)]
        fault("second-network")(lab, lab.hosts[0])
        rails = [(phase(lab, eth="=eth0"), phase(lab, eth="=eth0,eth1")) for _ in range(3 * TIMES)]
    ours, theirs = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"{FEW} hosts: the mesh phase {ours:.2f} s, nc -z over ssh {theirs:.2f} s, ratio {ours / theirs:.2f}")
    one, two = (statistics.median(column) for column in zip(*rails, strict=True))
    print(
        f"{FEW} hosts: the mesh phase over one interface {one:.3f} s, over two {two:.3f} s, ratio {two / one:.2f} "
        f"(at most {RAILS})",
        flush=True,
    )
    with Lab.up(MANY) as lab:
        well = statistics.median(phase(lab) for _ in range(TIMES))
        theirs = nc(lab)
        for host in lab.hosts:
            host.run(["nft", DROP])
        dropped = statistics.median(phase(lab, open_=False) for _ in range(TIMES))
    dial_s = MeshLimits().dial_s
    print(
        f"{MANY} hosts, {MANY * (MANY - 1)} pairs, {len(PORTS)} ports each: the mesh phase {well:.2f} s (at most "
        f"{LIMIT_S:.0f}), nc -z over ssh {theirs:.2f} s, ratio {well / theirs:.2f}; all dropped {dropped:.2f} s (at most "
        f"{dial_s + LIMIT_S:.0f}: the dials' time-out and {LIMIT_S:.0f})"
    )


def phase(lab: Lab, *, open_: bool = True, eth: str = "=eth0") -> float:
    """Seconds of the mesh phase of a check whose dials all succeed, or all fail; ``eth`` is NCCL_SOCKET_IFNAME."""
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(env={"NCCL_SOCKET_IFNAME": eth}))
    command = ["nccl-doctor", "check", "hosts.yaml", "--no-smoke", "-q", "-o", "json"]
    report: dict[str, Any] = json.loads(lab.controller.run(command, check=False, timeout=300).stdout)
    mesh = report["mesh"]
    dials = sum(map(len, mesh["ports"].values())) * (len(lab.hosts) - 1)
    failed = len(mesh["failed"])  # the master may be dialled twice: by its own address, and as the job names it
    if mesh["tested"] != mesh["pairs"] or (failed > 0 if open_ else failed < dials):
        raise RuntimeError(f"{failed} of {dials} dials failed, {mesh['tested']} pairs were tested")
    return float(report["timings"]["mesh"])


def nc(lab: Lab) -> float:
    """Seconds until every host, all of them at once, has dialled three ports of every other one."""
    ports = [str(port) for port in PORTS]
    listeners = [host.popen([sys.executable, "-c", LISTEN, *ports]) for host in lab.hosts]
    for host in lab.hosts:
        host.wait_until(lambda host=host: ("0.0.0.0", PORTS[0]) in host.listeners(), "the listeners")  # type: ignore[misc]
    began = time.perf_counter()
    loops = [
        lab.controller.popen(
            [
                "ssh",
                host.name,
                f"for h in {others(lab, host.name)}; do for p in {' '.join(ports)}; do nc -z -w 3 $h $p || exit 1; done; done",
            ],
            stdin=subprocess.DEVNULL,
        )
        for host in lab.hosts
    ]
    failed = sum(loop.wait(300) != 0 for loop in loops)
    seconds = time.perf_counter() - began
    for listener in listeners:
        listener.kill()
        listener.wait()
    if failed:
        raise RuntimeError(f"nc failed on {failed} hosts")
    return seconds


def others(lab: Lab, name: str) -> str:
    """The addresses of all other hosts, as words."""
    return " ".join(host.address for host in lab.hosts if host.name != name)


if __name__ == "__main__":
    main()
