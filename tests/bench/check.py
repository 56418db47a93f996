"""The preflight without the all-reduce, beside ``pdsh true`` on the same hosts: ``scripts/bench check``."""

from __future__ import annotations

import os
import sys

from tests.bench.timing import median, medians, own_group
from tests.lab.cluster import Lab

SIZES = (3, 32, 100)
TIMES = 3
CHECK = ["nccl-doctor", "check", "hosts.yaml", "--no-smoke", "-q"]
START = [sys.executable, "-c", "pass"]
TYPER = [sys.executable, "-c", "import typer"]


def main() -> None:
    """Prints one line a size; runs of the two alternate, so that a busy moment meets them alike."""
    own_group()
    for hosts in [int(word) for word in sys.argv[1:]] or SIZES:
        with Lab.up(hosts) as lab:
            lab.controller.write("/root/hosts.yaml", lab.hosts_file())
            names = ",".join(host.name for host in lab.hosts)
            commands = [["pdsh", "-R", "ssh", "-w", names, "true"], CHECK, ["nccl-doctor", "--version"]]
            pdsh, doctor, start = medians(lab.controller, commands, TIMES)
            cpu = (doctor.cpu_s - start.cpu_s) * 1000 / hosts
            print(
                f"{hosts:3} hosts: nccl-doctor check --no-smoke {doctor.seconds:.2f} s "
                f"({doctor.seconds - start.seconds:.2f} s after its own start), pdsh true {pdsh.seconds:.2f} s, "
                f"ratio {doctor.seconds / pdsh.seconds:.2f} (at most 1.0); controller {doctor.rss_mib:.0f} MiB, "
                f"{cpu:.0f} ms of CPU a host (at most 25), each host {doctor.hosts_s * 1000 / hosts:.0f} ms (at most 110), "
                f"for pdsh {pdsh.hosts_s * 1000 / hosts:.0f} ms; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    with Lab.up(1) as lab:
        interpreter = median(lab.controller, START, 9)
        with_typer = median(lab.controller, TYPER, 9)
        help_page = median(lab.controller, ["nccl-doctor", "--help"], 9)
    print(
        f"nccl-doctor --help {help_page.seconds * 1000:.0f} ms; python -c pass {interpreter.seconds * 1000:.0f} ms, "
        f"with typer {with_typer.seconds * 1000:.0f} ms; above that {(help_page.seconds - with_typer.seconds) * 1000:.0f} ms"
    )


if __name__ == "__main__":
    main()
