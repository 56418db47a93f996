"""``nccl-doctor hang`` where less can be seen: no root, no recorder, no py-spy, no ptrace. Weaker, and never wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.doctor import files, ours
from tests.hang.running import BAD, OWN_SPY, Training, hang, release, with_spy
from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab

AS_ALICE = ("--user", "alice")
PY_SPY = Path(sys.executable).with_name("py-spy")
REFUSING = f"""#!{sys.executable}
# An interpreter that may not look into processes, as in a container with Docker's own seccomp profile.
import ctypes, os, platform, struct, sys
ptrace, read = {{"x86_64": (101, 310), "aarch64": (117, 270)}}[platform.machine()]
def op(code, yes, no, value):
    return struct.pack("=HBBI", code, yes, no, value)
refused, allowed = 0x00050000 | 1, 0x7FFF0000
program = op(0x20, 0, 0, 0) + op(0x15, 2, 0, ptrace) + op(0x15, 1, 0, read) + op(6, 0, 0, allowed) + op(6, 0, 0, refused)
text = ctypes.create_string_buffer(program)
filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filters) == 0, os.strerror(ctypes.get_errno())
os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
"""
WITHOUT_CAPABILITY = f'#!/bin/sh\nexec setpriv --bounding-set=-sys_ptrace --inh-caps=-all {sys.executable} "$@"\n'


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    """Alice's job on two hosts, without a recorder; its rank 3 sleeps."""
    with Lab.up(2) as lab:
        for host in lab.hosts:
            host.write("/usr/local/bin/refusing", REFUSING, 0o755)
        with_spy(lab)
        job = Training(lab, recorder=False, user="alice")
        job.bring("sleep")
        yield job
        release(job, "sleep")
        job.went_on()
        job.end()


def behind(told: dict[str, Any]) -> list[int]:
    return [one["rank"] for one in told["ranks"] if one["behind"]]


def test_as_the_user_and_without_a_recorder(training: Training) -> None:
    code, told = hang(training.lab, *AS_ALICE)
    assert (code, told["verdict"], behind(told)) == (1, "outside-nccl", [BAD])
    assert (
        "the flight recorder of ranks 0-3: torch's worker server is off (TORCH_WORKER_SERVER_SOCKET is not set)"
        in told["not_seen"]
    )


def test_where_ptrace_is_refused(training: Training) -> None:
    """By a filter of system calls, and for the memory's file, by its mode, as Yama's ptrace_scope does."""
    memories = [(training.host(rank), f"/proc/{pid}/mem") for rank, pid in training.pids().items()]
    for host, path in memories:
        host.run(f"install -m 000 /dev/null /run/closed; mount --bind /run/closed {path}")
    refusing = training.lab.hosts_file(python="/usr/local/bin/refusing")
    code, told = hang(training.lab, *AS_ALICE, hosts=refusing)
    for host, path in memories:
        host.run(f"umount {path}")
    assert (code, told["verdict"], behind(told)) == (3, "unknown", [])
    assert any("the stacks of ranks 0-3: py-spy: Permission" in one for one in told["not_seen"]), told["not_seen"]
    assert f"rank {BAD} (node2, pid {training.pid(BAD)})" in told["message"]


def test_a_py_spy_that_is_sent_along_runs_from_memory(training: Training) -> None:
    before = {host.name: files(host) for host in training.lab.hosts}
    for host in training.lab.hosts:
        host.run(["rm", OWN_SPY])
    code, told = hang(training.lab, *AS_ALICE)
    assert (code, told["verdict"], behind(told)) == (1, "outside-nccl", [BAD])
    assert {host.name: files(host) - before[host.name] for host in training.lab.hosts} == {
        "node1": set(),
        "node2": set(),
    }
    assert not [line for host in training.lab.hosts for _, line in ours(host) if "train.py" not in line]


def test_without_any_py_spy(training: Training) -> None:
    """The last one: the controller's is taken away as well."""
    training.lab.controller.run(f"mount --bind /dev/null {PY_SPY}")
    code, told = hang(training.lab, *AS_ALICE)
    assert (code, told["verdict"], behind(told)) == (3, "unknown", [])
    missing = "py-spy is not installed on the host, and nccl-doctor's own py-spy has no program to send along"
    assert f"the stacks of ranks 0-3: {missing}" in told["not_seen"]
    assert f"rank {BAD} (node2, pid {training.pid(BAD)})" in told["message"]
    assert told["next_time"]
