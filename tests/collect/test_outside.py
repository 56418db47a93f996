"""What the host around a container tells: its shell's words as facts, whatever it says."""

from __future__ import annotations

import math
import subprocess
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.collect.facts.host_facts import SCRIPT, look_outside, parse_outside
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.cluster import Node, access
from nccl_doctor.model.engines.containers import InsideOptions
from nccl_doctor.snapshot.surroundings import Outside
from nccl_doctor.snapshot.system import ResourceLimits
from nccl_doctor.transport.process import LocalTransport, ProcessChannel
from tests.patience import LONG_S

MARK = "ncdoctor-0123456789abcdef"
TRAIN = InsideOptions(runtime="docker", name="train")
TOLD = f"""\
{MARK} network
net:[4026531840]
{MARK} hostname
node1
{MARK} limits
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1024                 1048576              files
Max locked memory         unlimited            unlimited            bytes
{MARK} job limits
cat: /proc/-/limits: No such file or directory
{MARK} shm
Filesystem     1024-blocks  Used Available Capacity Mounted on
tmpfs             65536000     0  65536000       0% /dev/shm
{MARK} devices
/dev/nvidia0
/dev/infiniband/uverbs0
{MARK} hosts
127.0.0.1 localhost
# 10.0.0.9 node9
10.0.0.2\tnode2 n2  # the second
10.0.0.3 node3
"""


def test_all_that_it_tells() -> None:
    assert parse_outside(TOLD.splitlines(), MARK, TRAIN, {"node2", "node9"}) == Outside(
        runtime="docker",
        name="train",
        place='the Docker container "train"',
        network="net:[4026531840]",
        hostname="node1",
        limits=ResourceLimits(nofile_soft=1024, nofile_hard=1048576, memlock_soft=None, memlock_hard=None),
        shm_bytes=65536000 << 10,
        devices=("/dev/nvidia0", "/dev/infiniband/uverbs0"),
        names=("node2",),
    )


@pytest.mark.parametrize("lacking", ["network", "hostname", "limits", "shm", "devices", "hosts"])
def test_what_one_program_does_not_tell_costs_its_own_fact(lacking: str) -> None:
    lines = TOLD.splitlines()
    at = lines.index(f"{MARK} {lacking}")
    end = next((n for n in range(at + 1, len(lines)) if lines[n].startswith(MARK)), len(lines))
    found = parse_outside(lines[: at + 1] + lines[end:], MARK, TRAIN, {"node2"})
    assert isinstance(found, Outside)
    empty = {"network": None, "hostname": "", "limits": None, "shm_bytes": None, "devices": (), "names": ()}
    lost = {name for name, value in empty.items() if getattr(found, name) == value}
    assert lost == {{"shm": "shm_bytes", "hosts": "names"}.get(lacking, lacking)}


@given(st.lists(st.one_of(st.text(max_size=200), st.sampled_from(TOLD.splitlines())), max_size=40))
def test_whatever_it_says_is_typed(lines: list[str]) -> None:
    assert isinstance(parse_outside(lines, MARK, TRAIN, {"node2"}), Outside | Unknown)


def test_this_machines_own_shell(tmp_path: Path) -> None:
    node = Node(name="n", address="n", node_rank=0, access=access(InsideOptions(runtime="enter", name="1")), local=True)
    found = look_outside(LocalTransport(), {"localhost"}, node, time.monotonic() + LONG_S)
    assert isinstance(found, Outside)
    assert found.network == str(Path("/proc/self/ns/net").readlink())
    assert found.hostname == Path("/proc/sys/kernel/hostname").read_text().strip()
    assert found.limits is not None
    assert found.job_limits is not None
    assert found.shm_bytes
    assert (
        look_outside(LocalTransport(), set(), node.model_copy(update={"access": {}}), time.monotonic() + LONG_S) is None
    )
    for shell in (["dash"], ["bash"], ["busybox", "sh"]):
        text = SCRIPT.format(mark=MARK, pid="-", path="/usr/bin:/bin")
        done = subprocess.run(shell, input=text, capture_output=True, text=True, timeout=LONG_S, check=False)
        assert isinstance(parse_outside(done.stdout.splitlines(), MARK, TRAIN, set()), Outside)
        assert done.stdout.endswith(f"{MARK} end\n")


class Endless(LocalTransport):
    """A host whose shell prints long lines without end."""

    def open(self, node: Node, _command: str, deadline: float, latest: float = math.inf) -> ProcessChannel:
        return super().open(node, "exec yes $(head -c 60000 /dev/zero | tr '\\0' y)", deadline, latest)


def test_a_shell_that_prints_without_end_is_not_kept() -> None:
    node = Node(name="n", address="127.0.0.1", node_rank=0, access=access(TRAIN))
    tracemalloc.start()
    try:
        found = look_outside(Endless(), set(), node, time.monotonic() + LONG_S)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert isinstance(found, Unknown)
    assert "far more than was asked for" in found.reason
