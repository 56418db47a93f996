"""Training jobs of this machine, real ones among them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from nccl_doctor.crew.start import command
from nccl_doctor.probe import progress
from nccl_doctor.probe.facts import processes
from nccl_doctor.probe.procs import ProcessTable
from nccl_doctor.snapshot.system import GpuProcess, TrainingJob
from tests.probe.tables import RUN, Fake, FakeTable, rank


def collected(monkeypatch: pytest.MonkeyPatch, *fakes: Fake) -> list[TrainingJob]:
    monkeypatch.setattr(processes, "ProcessTable", lambda: FakeTable(*fakes))
    monkeypatch.setattr(progress, "watch", lambda jobs: ["CPU time" if 70 in pids else None for pids in jobs])
    return [TrainingJob.model_validate(row) for row in processes.find_jobs()]


def test_jobs_that_run_an_orphan_and_what_another_probe_started(monkeypatch: pytest.MonkeyPatch) -> None:
    running, left, computing = collected(
        monkeypatch,
        Fake(20, 1, "python /opt/bin/torchrun train.py"),
        rank(30, 20, 0),
        rank(31, 20, 1),
        Fake(40, 1, "python serve.py"),
        Fake(41, 1, "bash", {"LOCAL_RANK": "0"}),
        rank(50, 1, 0, MASTER_PORT="29511"),
        Fake(60, 50, "nvidia-smi", {**RUN, "LOCAL_RANK": "0"}),
        rank(70, 1, 0, MASTER_PORT="29512"),
        Fake(80, 1, command("/opt/" + 500 * "x", "0123456789abcdef0123456789abcdef", 8).partition("exec ")[2]),
        rank(81, 80, 0, MASTER_PORT="29513"),
        Fake(82, 80, "", state="Z", executable="python"),
    )
    assert (running.pid, running.pids, running.ranks, running.launcher) == (20, (20, 30, 31), 2, "torchrun")
    assert not running.left_behind
    assert (left.pid, left.pids, left.ranks, left.launcher) == (50, (50, 60), 1, None)
    assert left.left_behind
    assert (computing.pid, computing.left_behind) == (70, False)


@pytest.mark.parametrize("raylet", [True, False])
def test_a_ray_worker_is_left_behind_where_no_raylet_runs(raylet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = [Fake(10, 1, "/ray/raylet --x", name="raylet", executable="raylet")] if raylet else []
    (worker,) = collected(monkeypatch, *daemon, Fake(20, 10 if raylet else 1, "ray::train_func"))
    assert (worker.kind, worker.left_behind) == ("ray-worker", not raylet)


@pytest.mark.parametrize(("name", "found_as"), [("pt_main_thread", ["zombie"]), ("python3", [])])
def test_a_zombie_that_trained_is_left_behind_and_no_other_python(name: str, found_as: list[str]) -> None:
    named = f"open('/proc/self/comm', 'w').write('{name}')"
    code = f"import os, time\nif os.fork() == 0: {named}; os._exit(0)\nprint(flush=True); time.sleep(60)"
    # a child of a child: what descends from the probe itself is none of the host's jobs
    shell = ["sh", "-c", '"$0" -c "$1" & exec 1>&-; wait', sys.executable, code]
    with subprocess.Popen([*shell], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        ask = "import json; from nccl_doctor.probe.facts import processes; print(json.dumps(processes.find_jobs()))"
        found = json.loads(subprocess.run([sys.executable, "-c", ask], capture_output=True, check=True).stdout)
        below = set(ProcessTable().descendants(parent.pid))
        for pid in below:
            os.kill(pid, 9)
    mine = [TrainingJob.model_validate(row) for row in found if row["pid"] in below]
    assert [row.kind for row in mine if row.left_behind] == found_as


def test_gpu_processes_are_told_with_their_owner_or_that_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = [{"pid": pid, "gpu": 0, "uuid": "GPU-a", "memory_mib": 5} for pid in (os.getpid(), 4_000_000)]
    monkeypatch.setattr(processes, "list_gpu_processes", lambda _deadline: uses)
    mine, gone = (GpuProcess.model_validate(row) for row in processes.on_gpus(0.0))
    assert (mine.alive, mine.own) == (True, True)
    assert (gone.alive, gone.user, gone.command) == (False, None, None)
