"""A host that lies, run after run: ``python -m tests.lab.liar --runs 500 --through-cli 120``.

Each run has one of three hosts answer through tests/lab/lying_probe.py, with another seed. Some go through the real
command line in a lab, the others over three local probes without the tool's start-up. Whatever the host says, there is
a report with an exit code of 0, 1 or 3, no check crashes, the honest hosts are judged, the liar is named where nothing
of it could be used, and memory stays bounded.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccl_doctor.cli.choices import FailOn
from nccl_doctor.cli.output import exit_code
from nccl_doctor.cli.progress import Silent
from nccl_doctor.cluster import Cluster, Node
from nccl_doctor.collect.options import RunOptions
from nccl_doctor.collect.run import looked
from nccl_doctor.collect.smoke import SmokeLimits
from nccl_doctor.diagnose import judge
from nccl_doctor.report.render import render
from nccl_doctor.snapshot import Snapshot
from nccl_doctor.transport.local import LocalTransport
from tests.lab.cluster import Lab

LYING_PROBE = Path(__file__).with_name("lying_probe.py")
PROJECT = LYING_PROBE.parents[2]
NAMES = ("node1", "node2", "node3")
MOST_MIB = 300
"""That a run may take: the tool's whole process, or what a process that had other tests before grows by."""
SMOKE_EVERY = 8
"""Of so many runs one has an all-reduce, and the lie is about that."""
WATCHED = (
    "import resource,subprocess,sys;done=subprocess.run(sys.argv[1:]);"
    "print('@peak',resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss//1024,file=sys.stderr);"
    "sys.exit(done.returncode)"
)


@dataclass(frozen=True)
class Lie:
    """One run: which host lies, by which seed; "s" in front of that for a lie about the all-reduce."""

    seed: str
    liar: str

    @property
    def smoke(self) -> bool:
        """Whether the run has an all-reduce."""
        return self.seed.startswith("s")

    @property
    def script(self) -> str:
        """What stands in the place of the liar's interpreter."""
        return f'#!/bin/sh\nexec {sys.executable} {LYING_PROBE} {self.seed} {sys.executable} "$@"\n'


def lie(number: int, start: int) -> Lie:
    """The run of this number, from a first seed on."""
    mark = "s" if number % SMOKE_EVERY == 0 else "f"
    return Lie(f"{mark}{start + number}", random.Random(start + number).choice(NAMES))


def in_process(one: Lie, folder: Path) -> list[str]:
    """What went wrong in a run over local probes; nothing where all held."""
    program = folder / f"liar-{one.seed}"
    program.write_text(one.script)
    program.chmod(0o755)
    nodes = tuple(
        Node(
            name=name,
            address="127.0.0.1",
            node_rank=rank,
            python=str(program) if name == one.liar else sys.executable,
            nproc_per_node=1,
            local=True,
        )
        for rank, name in enumerate(NAMES)
    )
    cluster = Cluster(nodes=nodes, master_addr="127.0.0.1", master_port=random.Random(one.seed).randrange(20000, 30000))
    options = RunOptions(
        smoke=one.smoke,
        smoke_limits=SmokeLimits(deadline_s=10, imports_s=40, budget_s=0.2, max_bytes=4096),
        total_s=200,
    )
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here (proc(5))
    before = peak_mib()
    try:
        with looked(cluster, LocalTransport, options, Silent()) as run:
            snapshot = run.snapshot()
        report = judge(snapshot, "check")
        texts = [render("check", form, report) for form in ("human", "junit", "prometheus", "json")]
        grown = peak_mib() - before
        Snapshot.model_validate_json(snapshot.model_dump_json(by_alias=True))
    except Exception:  # noqa: BLE001 - that is what is looked for
        return [traceback.format_exc()]
    finally:
        program.unlink()
    malformed = any("malformed" in text for text in reasons(json.loads(snapshot.model_dump_json(by_alias=True)), one))
    found = [f"{grown} MiB more"] if grown > MOST_MIB else []
    found += faults(one, exit_code(report, FailOn.ERROR), json.loads(texts[-1]), malformed=malformed)
    return [*found, told(snapshot)] if found else []


def through_cli(one: Lie, lab: Lab) -> list[str]:
    """The same by the real command line, from a lab's controller."""
    program = "/root/liar"
    lab.host(one.liar).write(program, one.script)
    lab.host(one.liar).run(["chmod", "755", program])
    hosts: list[Any] = [
        {"name": host.name, "python": program} if host.name == one.liar else host.name for host in lab.hosts
    ]
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(hosts=hosts, nproc_per_node=1))
    command = [
        "env",
        f"PYTHONPATH={PROJECT}",
        "nccl-doctor",
        "check",
        "hosts.yaml",
        "-o",
        "json",
        "--save",
        "seen.json",
        "--save-whole",
    ]
    command += ["--timeout", "100"]
    command += ["--smoke-timeout", "10"] if one.smoke else ["--no-smoke"]
    done = lab.controller.run([sys.executable, "-c", WATCHED, *command], check=False, timeout=200)
    peak = int(done.stderr.rpartition("@peak ")[2].strip() or 0)
    found = [f"{peak} MiB"] if peak > MOST_MIB else []
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return [*found, f"no report: {done.stdout[-500:]} {done.stderr[-2000:]}"]
    if done.returncode == 2:
        return [*found, done.stderr[-2000:]]
    snapshot = json.loads(lab.controller.run(["cat", "seen.json"]).stdout)
    malformed = any("malformed" in text for text in reasons(snapshot, one))
    return found + faults(one, done.returncode, report, malformed=malformed)


def told(snapshot: Snapshot) -> str:
    """What a run that broke saw of the hosts that it lost, and how busy this machine was."""
    lost = [f"{host.name}: {host.failure.detail}" for host in snapshot.hosts if host.failure is not None]
    load = snapshot.load and snapshot.load.controller
    return f"{'; '.join(lost)}; {snapshot.timings}; {load}"


def reasons(snapshot: dict[str, Any], one: Lie) -> list[str]:
    """Why facts of the liar are unknown."""
    told = next(host for host in snapshot["hosts"] if host["node"]["name"] == one.liar)["facts"] or {}
    return [fact["$unknown"] for fact in told.values() if isinstance(fact, dict) and "$unknown" in fact]


def faults(one: Lie, code: int, report: dict[str, Any], *, malformed: bool) -> list[str]:
    """What a report lacks."""
    found = [] if code in (0, 1, 3) else [f"exit code {code}"]
    found += [f"crash: {check}" for check in report["checks"] if check["outcome"] == "crash"]
    reached = {host["name"]: host["reached"] for host in report["hosts"]}
    found += [f"{name} was not judged" for name in NAMES if name != one.liar and not reached.get(name)]
    named = [diagnosis for diagnosis in report["diagnoses"] if diagnosis["hosts"] == [one.liar]]
    unjudged = [check["reason"] for check in report["checks"] if one.liar in (check["reason"] or "")]
    if not reached.get(one.liar) and not named:
        found.append(f"{one.liar} is not named")
    if malformed and code == 0 and not (named or unjudged):
        found.append(f"what {one.liar} said is taken for fine")
    return found


def main() -> int:
    """Runs them; the exit status is 1 where one did not hold."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=500)
    options.add_argument("--through-cli", type=int, default=120, help="how many of them by the real command line")
    options.add_argument("--start", type=int, default=0, help="the first seed")
    asked = options.parse_args()
    lies = [lie(number, asked.start) for number in range(asked.runs)]
    outcomes = Counter[str]()
    with tempfile.TemporaryDirectory() as folder, Lab.up(3) as lab:
        for number, one in enumerate(lies):
            real = number < asked.through_cli
            found = through_cli(one, lab) if real else in_process(one, Path(folder))
            outcomes["held" if not found else "broken"] += 1
            for text in found:
                sys.stdout.write(f"{'cli' if real else 'local'} {one}: {text}\n")
            if number % 10 == 9 or number + 1 == asked.runs:
                sys.stdout.write(f"{number + 1} runs: {dict(outcomes)}\n")
            sys.stdout.flush()
    return 1 if outcomes["broken"] else 0


def peak_mib() -> int:
    """The most memory that this process had since its peak was last reset."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


if __name__ == "__main__":
    sys.exit(main())
