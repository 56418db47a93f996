"""``nccl-doctor hang`` on a start of torchrun's that comes to no rank."""

from __future__ import annotations

import subprocess

import pytest

from tests.hang.running import PATIENCE_S, hang
from tests.lab.cluster import Lab
from tests.lab.warm import interpreter

pytestmark = pytest.mark.lab

PORT = 29577
DROP = f"table ip cut {{ chain sent {{ type filter hook output priority 0; tcp dport {PORT} drop; }}; }}"


def start(lab: Lab, number: int) -> None:
    meet = ["--nnodes=3", "--rdzv_backend=c10d", f"--rdzv_endpoint={lab.hosts[0].address}:{PORT}", "--rdzv_id=7"]
    command = [interpreter(), "-m", "torch.distributed.run", *meet, "/bin/true"]
    lab.hosts[number].popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def waited(lab: Lab, *arguments: str) -> tuple[int, str, list[str]]:
    """What is said as soon as all launchers wait: exit code, message and hosts."""
    for _ in range(int(PATIENCE_S)):
        code, told = hang(lab, "--interval", "1", *arguments)
        if told["verdict"] == "not-started":
            return code, told["message"], told["diagnoses"][0]["hosts"]
        assert (code, told["diagnoses"]) == (3, []), told
    raise AssertionError(told)


def test_a_node_is_missing_and_then_does_not_reach_the_others(fresh_lab: Lab) -> None:
    for number in (0, 1):
        start(fresh_lab, number)
    assert waited(fresh_lab) == (1, "torchrun on node[1-2] waits for 3 nodes; none runs on node3.", ["node3"])
    (waits,) = [pid for pid, line in fresh_lab.hosts[1].processes() if "torch.distributed.run" in line]
    assert waited(fresh_lab, "--pid", str(waits))[0] == 1
    fresh_lab.hosts[2].run(["nft", "-f", "-"], input=DROP)
    start(fresh_lab, 2)
    address = fresh_lab.hosts[0].address
    message = f"node3 can't reach the nodes' store at {address}:{PORT}."
    for _ in range(int(PATIENCE_S)):
        told = waited(fresh_lab)
        if told[2] != ["node3"] or "none runs" not in told[1]:
            break
    assert told == (1, message, ["node3"])
