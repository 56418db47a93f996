"""``nccl-doctor hang`` on ranks that only sleep: many of them, and the tool killed at any moment."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.cli.doctor import files, ours
from tests.hang.running import hang
from tests.hang.sleepers import pids, sleepers, states
from tests.lab.cluster import Lab, MakeLab
from tests.lab.host import LabHost

pytestmark = pytest.mark.lab


def test_many_ranks_are_one_screen(make_lab: MakeLab) -> None:
    lab = make_lab(16)
    sleepers(lab, 8, behind=77)
    code, told = hang(lab, timeout=120)
    assert (code, told["verdict"]) == (1, "laggard")
    assert [one["rank"] for one in told["ranks"] if one["behind"]] == [77]
    assert len(told["ranks"]) == 128
    lab.controller.write("/root/hosts.yaml", lab.hosts_file())
    shown = lab.controller.run(
        ["nccl-doctor", "hang", "hosts.yaml", "--interval", "1"], check=False, timeout=120
    ).stdout
    assert len(shown.splitlines()) < 24
    assert "rank 77 (node10, pid" in shown.lower()
    lab.controller.run(
        ["nccl-doctor", "hang", "hosts.yaml", "--interval", "1", "--save", "seen.json"], check=False, timeout=120
    )
    again = lab.controller.run(["nccl-doctor", "hang", "--from", "seen.json"], check=False)
    assert again.returncode == 1
    assert "rank 77 (node10, pid" in again.stdout.lower()


def _nothing_of_ours(host: LabHost) -> bool:
    return not ours(host)


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    with Lab.up(2) as lab:
        sleepers(lab, 2, behind=3)
        yield lab


def test_a_py_spy_that_is_sent_along_leaves_nothing(two: Lab, bare_python: str) -> None:
    """Beside this interpreter and on PATH there is none."""
    before = {host.name: files(host) for host in two.hosts}
    hosts = two.hosts_file(python=bare_python)
    two.controller.write("/root/hosts.yaml", hosts)
    for host in two.hosts:
        host.run("pkill -KILL -f /root/train.py", check=False)
    sleepers(two, 2, behind=3, python=bare_python)
    two.controller.run(
        ["nccl-doctor", "hang", "hosts.yaml", "--interval", "1", "--save", "seen.json", "--save-whole"], check=False
    )
    seen = two.controller.read("/root/seen.json")
    assert '"py_spy": false' in seen
    assert '"function": "step"' in seen
    two.controller.run("rm seen.json")
    assert {host.name: files(host) - before[host.name] for host in two.hosts} == {
        host.name: set() for host in two.hosts
    }
    assert [ours(host) for host in two.hosts] == [[], []]


@pytest.mark.parametrize("mode", ["", "--pause", "--native"])
def test_killed_at_any_moment_it_leaves_the_ranks_as_they_were(two: Lab, mode: str) -> None:
    two.controller.write("/root/hosts.yaml", two.hosts_file())
    before = {host.name: (files(host), pids(host)) for host in two.hosts}
    dice = random.Random(mode)
    for _ in range(4):
        command = ["nccl-doctor", "hang", "hosts.yaml", "--interval", "0.5", *([mode] if mode else [])]
        process = two.controller.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(dice.uniform(0.2, 4))
        process.kill()
        process.wait()
    for host in two.hosts:
        host.wait_until(partial(_nothing_of_ours, host), "the end of the probes")
        assert (files(host), pids(host)) == before[host.name]
        assert states(host) == ["S", "S"]
