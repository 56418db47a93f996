"""``nccl-doctor hang`` on jobs whose ranks have no variables that say so."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.hang.faults import unnoticed
from tests.hang.running import OWN_SPY, hang, with_spy
from tests.lab.cluster import Lab, MakeLab
from tests.lab.host import LabHost
from tests.lab.warm import interpreter

pytestmark = pytest.mark.lab

SCRIPT = Path(__file__).parents[1] / "hang/spawn.txt"
SLEEPS = 32
"""The script's line where the last rank stays."""
BARRIER = "barrier (torch/distributed/"
"""The frame where the others do."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two hosts with two spawned ranks each, which wait for rank 3."""
    with Lab.up(2) as lab:
        with_spy(lab)
        for number, host in enumerate(lab.hosts):
            host.write("/root/spawn.py", SCRIPT.read_text())
            host.background([interpreter(), "spawn.py", str(number), "2", lab.hosts[0].address])
        for number, host in enumerate(lab.hosts):
            last = f"run (spawn.py:{SLEEPS})" if host is lab.hosts[-1] else BARRIER
            host.wait_until(partial(_stand, host, number * 2, BARRIER, last), "ranks that wait", timeout=240)
        yield lab


def _stand(host: LabHost, first: int, *frames: str) -> bool:
    """Whether the ranks from this one on have come where they stay: to these frames, after their first batches."""
    if host.run(
        " && ".join(f"test -e /run/spawned-{first + one}" for one in range(len(frames))), check=False
    ).returncode:
        return False
    pids = host.run("pgrep -f multiprocessing.spawn").stdout.split()
    stacks = [host.run([OWN_SPY, "dump", "--pid", pid], check=False).stdout for pid in pids]
    return all(sum(frame in stack for stack in stacks) >= frames.count(frame) for frame in frames)


def test_spawned_ranks_are_found_by_the_store_that_they_share(lab: Lab) -> None:
    code, told = hang(lab)
    assert (code, told["verdict"]) == (1, "outside-nccl"), told
    assert told["job"] == {"master_addr": lab.hosts[0].address, "master_port": 29666, "world_size": 4}
    assert [(one["rank"], one["host"]) for one in told["ranks"]] == [
        (0, "node1"), (1, "node1"), (2, "node2"), (3, "node2"),
    ]  # fmt: skip
    (late,) = [one for one in told["ranks"] if one["behind"]]
    assert (late["rank"], late["frame"]) == (3, f"spawn.py:{SLEEPS} in run")
    assert "Rank 3 (node2, " in told["diagnoses"][0]["message"]
    assert "numbered here" in told["not_seen"][0]
    spawner = next(pid for pid, line in lab.hosts[1].processes() if "spawn.py 1 2" in line)
    assert hang(lab, "--pid", str(spawner))[1]["job"] == told["job"]


def test_with_one_of_its_hosts_alone_the_others_are_not_seen(lab: Lab) -> None:
    """The store's host tells that others are connected to it."""
    code, told = hang(lab, "-x", "node2")
    assert (code, told["verdict"], told["job"]["world_size"]) == (3, "unknown", 4)
    assert "ranks 2-3 could not be examined" in told["message"]


def test_a_spawned_rank_that_has_ended(lab: Lab) -> None:
    """The last one."""
    host = lab.hosts[1]
    parent = next(pid for pid, line in host.processes() if "spawn.py 1 2" in line)
    ranks = host.run(f"pgrep -P {parent} -f multiprocessing.spawn").stdout.split()
    with unnoticed(host, parent):
        host.run(f"kill -KILL {max(map(int, ranks))}")
        code, told = hang(lab)
    assert (code, told["verdict"]) == (1, "gone")
    assert [one["rank"] for one in told["ranks"] if one["behind"]] == [3]
    assert "zombie" in told["diagnoses"][0]["message"]


def test_a_job_in_a_container(make_lab: MakeLab) -> None:
    """Own PIDs, mounts and network, as a container engine makes them; the look is from the host."""
    lab = make_lab(1)
    with_spy(lab)
    (host,) = lab.hosts
    host.write("/root/spawn.py", SCRIPT.read_text())
    inside = f"ip link set lo up; exec {interpreter()} spawn.py 0 1 127.0.0.1"
    apart = ["unshare", "--pid", "--mount", "--net", "--ipc", "--fork", "--mount-proc", "sh", "-c", inside]
    host.background(apart)
    host.wait_until(partial(_stand, host, 0, BARRIER, f"run (spawn.py:{SLEEPS})"), "ranks that wait", timeout=240)
    code, told = hang(lab)
    assert (code, told["verdict"]) == (1, "outside-nccl"), told
    (late,) = [one for one in told["ranks"] if one["behind"]]
    assert (late["rank"], late["frame"]) == (1, f"spawn.py:{SLEEPS} in run"), told
    assert "spawn_main" in host.read(f"/proc/{late['pid']}/cmdline")
