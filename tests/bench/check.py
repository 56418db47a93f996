"""The preflight without the all-reduce, beside ``pdsh true`` on the same hosts: ``scripts/bench check``."""

from __future__ import annotations

import sys

from tests.bench.timing import median
from tests.lab.cluster import Lab

START = [sys.executable, "-c", "pass"]
TYPER = [sys.executable, "-c", "import typer"]


def main() -> None:
    """Prints one line a size."""
    for hosts in (3, 32):
        with Lab.up(hosts) as lab:
            lab.controller.write("/root/hosts.yaml", lab.hosts_file())
            names = ",".join(host.name for host in lab.hosts)
            pdsh = median(lab.controller, ["pdsh", "-R", "ssh", "-w", names, "true"])
            doctor = median(lab.controller, ["nccl-doctor", "check", "hosts.yaml", "--no-smoke", "-q"])
            start = median(lab.controller, ["nccl-doctor", "--version"])
            print(
                f"{hosts:3} hosts: nccl-doctor check --no-smoke {doctor.seconds:.2f} s "
                f"({doctor.seconds - start.seconds:.2f} s after its own start), pdsh true {pdsh.seconds:.2f} s, "
                f"ratio {doctor.seconds / pdsh.seconds:.2f}; controller {doctor.rss_mib:.0f} MiB"
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
