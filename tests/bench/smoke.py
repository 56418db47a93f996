"""The all-reduce phase on three hosts, beside a bare torchrun of the same worker over plain ssh: ``scripts/bench smoke``."""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
import time
from importlib import resources

from nccl_doctor.collect.smoke.plan import SmokeLimits
from tests.lab.cluster import Lab

MAX_BYTES = 1 << 20
TIMES = 5
WORKER = "/opt/worker.py"


def main() -> None:
    """Prints medians and their ratio; runs of the two alternate, so that both meet the same machine."""
    worker = (resources.files("nccl_doctor.probe") / "allreduce_worker.py").read_text()
    with Lab.up(3) as lab:
        lab.controller.write("/root/hosts.yaml", lab.hosts_file())
        for host in lab.hosts:
            host.write(WORKER, worker)
        bare(lab)
        rows = [(bare(lab), *ours(lab)) for _ in range(TIMES)]
    plain, phase, whole = (statistics.median(column) for column in zip(*rows, strict=True))
    print(
        f"3 hosts, sizes to {MAX_BYTES >> 20} MiB: the phase {phase:.2f} s (nccl-doctor smoke as a whole {whole:.2f} s), "
        f"torchrun over ssh {plain:.2f} s, ratio {phase / plain:.2f}"
    )


def bare(lab: Lab) -> float:
    """Seconds from the first ssh to the end of the last torchrun."""
    config = {
        "mark": "@ ",
        "backend": "gloo",
        "budget_s": SmokeLimits().budget_s,
        "max_bytes": MAX_BYTES,
        "deadline_s": 60,
        "stacks": ["/dev/null"],
    }
    began = time.perf_counter()
    running = []
    for rank, host in enumerate(lab.hosts):
        command = [
            "env",
            f"NCDOCTOR_ALLREDUCE={json.dumps(config)}",
            "OMP_NUM_THREADS=1",
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=3", f"--node_rank={rank}"),
            *("--nproc_per_node=1", f"--master_addr={lab.hosts[0].name}", "--master_port=29500", WORKER),
        ]
        ssh = ["ssh", "-o", "BatchMode=yes", host.name, shlex.join(command)]
        running.append(lab.controller.popen(ssh, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    if any(process.wait(120) for process in running):
        raise RuntimeError("the bare torchrun failed")
    return time.perf_counter() - began


def ours(lab: Lab) -> tuple[float, float]:
    """Seconds of the phase, as it reports them, and of the whole command."""
    began = time.perf_counter()
    command = ["nccl-doctor", "smoke", "hosts.yaml", "-q", "-o", "json", "--max-bytes", str(MAX_BYTES)]
    done = lab.controller.run(command, timeout=120)
    whole = time.perf_counter() - began
    return float(json.loads(done.stdout)["timings"]["smoke"]), whole


if __name__ == "__main__":
    main()
