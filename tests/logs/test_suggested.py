"""Whom a log's advice says to check: every host that it names, and none that SSH can't reach."""

from __future__ import annotations

import pytest

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.signs import reachable
from nccl_doctor.logs.verdict import report

LOG = """\
{0}:101:101 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
{1}:102:102 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>
{2}:103:103 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.3<0>
{1}:102:110 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.1<53211> failed : No route to host
"""


def commands(*hosts: str) -> list[str]:
    (found,) = report(diagnose([LogSource("run.log", [LOG.format(*hosts).encode()])]), 0.0).diagnoses
    return [one.command for one in found.fix.commands]


def test_every_host_of_the_log_is_named() -> None:
    assert commands("gpu01", "gpu02", "gpu03") == ["nccl-doctor check -w 'gpu[01-03]'"]


@pytest.mark.parametrize(
    "pods",
    [
        ("bert-master-0", "bert-worker-0", "bert-worker-1"),
        ("train-7c9f8d6b5-x2k7p", "train-7c9f8d6b5-zq4wn", "train-7c9f8d6b5-l8vhd"),
        ("train-0-x2k7p", "train-1-zq4wn", "train-2-l8vhd"),
        ("3f2a9c01b7de", "3f2a9c01b7df", "0a1b2c3d4e5f"),
    ],
)
def test_no_pod_is(pods: tuple[str, str, str]) -> None:
    assert commands(*pods) == []


def test_a_host_that_is_called_a_worker_is_one() -> None:
    names = ["gpu-worker-0", "gpu-worker-1", "master", "node-12", "rack-3-node", "dgx-a100-02"]
    assert reachable(names) == names


WAITED = (
    "[rank8]:[W1120 10:21:13.123 socket.cpp:764] [c10d] The client socket has timed out after 600000ms while trying to"
    " connect to (192.168.100.10, 29501).\n"
)


def test_a_host_that_has_nobody_to_dial_is_not_checked_alone() -> None:
    (found,) = report(diagnose([LogSource("run.log", [WAITED.encode()])]), 0.0).diagnoses
    assert not found.fix.commands
    assert "-w and their names" in found.fix.summary
