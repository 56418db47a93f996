"""Words that people met and took for something else: each is named for what it is, with what mends it."""

from __future__ import annotations

import pytest

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.verdict import report

CASES = [
    ("train.py: error: unrecognized arguments: --local-rank=0", "launcher-env-missing", "passes --local-rank to rank 0", "torchrun"),
    ("train.py: error: unrecognized arguments: --local_rank=1", "launcher-env-missing", "does not accept it", "LOCAL_RANK"),
    ("ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
     "launcher-env-missing", "before init_process_group", "Call init_process_group first"),
    ("zsh: killed     python train.py", "killed", "killed from outside", "dmesg"),
    ("fish: Job 1, 'python train.py' terminated by signal SIGKILL (Forced quit)", "killed", "killed from outside", "dmesg"),
    ("ssh: connect to host node2 port 22: Connection refused", "ssh-unreachable", "it refused the connection", "Start sshd"),
    ("ssh: connect to host node2 port 22: Connection timed out", "ssh-unreachable", "it does not answer", "open its port"),
    ("ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
     "port-in-use", "It is not a port that the ranks use", "give the server another port"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks have been OOM Killed.",
     "out-of-memory", "Host memory ran out", "--mem"),
    ("[c10d] The client socket has failed to connect to [localhost]:23456 (errno: 111 - Connection refused).",
     "connection-refused", "this address refers to each host itself", "Use the master's address"),
    ("AssertionError: --batch-size 63 must be multiple of CUDA device count 2",
     "script-failed", "batch size 63, which does not divide evenly among 2 GPUs", "Use batch size 62 or 64."),
    ("RuntimeError: makeDeviceForHostname(): unsupported gloo device",
     "gloo-ifname-invalid", "torch found no gloo transport", "Unset GLOO_DEVICE_TRANSPORT"),
    ("RuntimeError: [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:17",
     "hostname-loopback", "resolves to 127.x", "map the host's name to its real address"),
    ("RuntimeError: Every node should have a unique IP address. Got 2 nodes with node ids ['a', 'b'] and 1 unique IP addresses",
     "advertised-address-wrong", "several hosts give the same address", "SGLANG_HOST_IP for SGLang"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "name", "said", "mends"), CASES, ids=[case[0][:40] for case in CASES])
def test_it_is_named_for_what_it_is(line: str, name: str, said: str, mends: str) -> None:
    (found, *_) = report(diagnose([LogSource("log", [line.encode() + b"\n"])]), 0.1).diagnoses
    assert found.name == name
    assert said in found.message
    assert mends in found.fix.summary
