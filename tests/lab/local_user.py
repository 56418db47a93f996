"""A hostile local user beside a healthy cluster, run after run: ``python -m tests.lab.local_user --runs 200``.

In each run alice, who has no rights on node2, keeps processes there with odd environments, names and titles, files where
their variables say, links that lead elsewhere, listeners, and connections to whatever listens; root checks the cluster
of three hosts or looks for a job that hangs. Nobody is accused but for what alice really left behind on node2, nothing
is hidden, and nothing of alice's is run.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.lab.lying_probe import VALUES
from tests.lab.warm import DOCTOR

CANARY = "/tmp/canary"
FOLDER = "/home/alice"
HERS = frozenset({"stale-process"})
"""What a check may say of node2: she did leave processes there."""
PROGRAM = f"#!/bin/sh\nid >> {CANARY}\n"
NAMES = (
    "nccl-doctor",
    "py-spy",
    "git",
    "nvidia-smi",
    "nft",
    "ip",
    "python3",
    "sh",
    "systemctl",
    "ldconfig",
    "firewall-cmd",
)
VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NCCL_RAS_ADDR"),
    *("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_WORKER_SERVER_SOCKET", "NCCL_RAS_ENABLE"),
    *("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "PET_NNODES", "PYTHONPATH", "LD_PRELOAD"),
)
WORDS = (
    *("$(id>/tmp/canary)", "10.0.0.1 10.0.0.2 ", "70000", "-1", "/root/secret", "/dev/shm/x", "0", "1", "29500", "²"),
    *(
        "127.0.0.1:22",
        "169.254.169.254:80",
        "/proc/1/root/root/secret",
        "`id>/tmp/canary`",
        "a\nb",
        "\x1b[2J",
        "x" * 5000,
    ),
)
TITLES = (
    "python -m torch.distributed.run train.py",
    "torchrun",
    "pt_main_thread",
    "sshd: root",
    "\x1b[31mroot",
    "ray::x",
)
HOSTILE = """\
import json, os, socket, sys
plan = json.load(sys.stdin)
os.chdir(plan["folder"])
if plan["listens"]:
    server = socket.create_server(("", 0))
    os.set_inheritable(server.fileno(), True)
held = []
for _ in range(plan["files"]):
    held.append(os.open("/dev/null", os.O_RDONLY))
    os.set_inheritable(held[-1], True)
os.execve(plan["python"], [plan["title"], "-c", plan["program"]], plan["env"])
"""
CROWDS = """\
import socket, time
keep, known = [], set()
while True:
    for table in ("tcp", "tcp6"):
        for line in open("/proc/net/" + table).read().splitlines()[1:]:
            fields = line.split()
            port = int(fields[1].split(":")[1], 16)
            if fields[3] == "0A" and port != 22 and port not in known:
                known.add(port)
                for _ in range(300):
                    one = socket.socket()
                    one.setblocking(False)
                    one.connect_ex(("127.0.0.1", port))
                    keep.append(one)
    time.sleep(0.002)
"""
SLEEPS = "import time; time.sleep(86400)"
END = "time.sleep("


def plan(draw: random.Random) -> dict[str, Any]:
    """Draw one process of alice's."""
    texts = [value for value in VALUES if isinstance(value, str) and "\0" not in value and "\ud800" not in value]
    names = draw.sample(VARIABLES, draw.randint(0, len(VARIABLES)))
    env = {name: draw.choice([*WORDS, *texts])[:100_000] for name in names}
    if draw.random() < 0.6:
        env |= {
            "RANK": "1",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": draw.choice(["10.77.0.1", *WORDS]),
            "MASTER_PORT": "29501",
        }
    return {
        "folder": FOLDER,
        "listens": draw.random() < 0.4,
        "files": draw.choice((0, 0, 10, 900)),
        "env": {**env, "PATH": FOLDER},
        "title": draw.choice(TITLES),
        "python": sys.executable,
        "program": CROWDS if draw.random() < 0.3 else SLEEPS,
    }


@contextmanager
def alice(host: LabHost, draw: random.Random) -> Iterator[None]:
    """Have alice do as drawn."""
    for name in NAMES:
        host.write(f"{FOLDER}/{name}", PROGRAM, 0o755)
    host.run(
        f"rm -f {CANARY}; mkfifo -m 666 {FOLDER}/pipe 2>/dev/null; chown -R alice {FOLDER};"
        f"for one in 0 1 2; do ln -sfn /root/secret {FOLDER}/trace_$one; done"
    )
    started = []
    try:
        for number in range(draw.choice((1, 3, 12))):
            file = f"/tmp/plan-{number}.json"
            host.write(file, json.dumps(plan(draw)))
            line = f"ulimit -n 4096; exec {shlex.join([sys.executable, '-c', HOSTILE])} < {file}"
            started.append(host.popen(line, user="alice", stderr=subprocess.DEVNULL))

        def are_there() -> bool:
            lines = [line for _, line in host.processes()]
            there = sum(END in line and "json.load" not in line for line in lines)
            return there + sum(one.poll() is not None for one in started) >= len(started)

        host.wait_until(are_there, "alice's processes")
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def run(lab: Lab, seed: int) -> list[str]:
    """Return what did not hold in one run."""
    draw = random.Random(seed)
    words = draw.choice((["check", "hosts.yaml", "--no-smoke"], ["hang", "hosts.yaml", "--interval", "0.5"]))
    lab.controller.write("/root/hosts.yaml", lab.hosts_file())
    node = lab.host("node2")
    with alice(node, draw):
        done = lab.controller.run([str(DOCTOR), *words, "-o", "json"], check=False)
    found = ["her program was run"] if node.run(["test", "-e", CANARY], check=False).returncode == 0 else []
    if done.returncode == 2 and " jobs run: " in done.stderr:  # hers are jobs, too, and she can't choose which is meant
        return found
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return [*found, f"no report: {done.stderr[-1000:]}"]
    if done.returncode not in (0, 1, 3) or "error" in report:
        return [*found, f"exit code {done.returncode}: {done.stderr[-1000:]}"]
    for one in report["diagnoses"]:
        hers = words[0] == "hang" or (one["name"] in HERS and one["severity"] != "error" and one["hosts"] == ["node2"])
        if not hers or one["name"] == "probe-failed":
            found.append(f"{one['severity']} {one['name']} {one['hosts']}: {one['message']}")
    if words[0] == "check":
        found += [f"{host['name']} was not reached" for host in report["hosts"] if not host["reached"]]
        for check in report["checks"]:
            others = check["outcome"] == "unknown" and not str(check["reason"]).startswith("node2: ")
            if check["outcome"] == "crash" or others:
                found.append(f"{check['name']} {check['outcome']}: {check['reason']}")
    return found


def main() -> int:
    """Run them; the exit status is 1 where one did not hold."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=200)
    options.add_argument("--start", type=int, default=0, help="the first seed")
    asked = options.parse_args()
    outcomes = Counter[str]()
    with Lab.up(3) as lab:
        for seed in range(asked.start, asked.start + asked.runs):
            found = run(lab, seed)
            outcomes["broken" if found else "held"] += 1
            sys.stdout.writelines(f"{seed}: {text}\n" for text in found)
            sys.stdout.flush()
    sys.stdout.write(f"{asked.runs} runs: {dict(outcomes)}\n")
    return 1 if outcomes["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
