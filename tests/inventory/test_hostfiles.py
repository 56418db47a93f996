from __future__ import annotations

import pytest

from nccl_doctor.model.engines.ssh import SshOptions
from tests.inventory.conftest import Refusal, Understand

MPI = """\
# two racks
node1 slots=8
node2 slots=8 max_slots=16   # the new one
node3 slots = 4
node4:2

user@node5 max-slots=2
10.0.0.6
"""


def test_open_mpi_and_mpich(understand: Understand) -> None:
    cluster = understand(MPI)
    assert [(n.name, n.nproc_per_node, n.options(SshOptions).user) for n in cluster.nodes] == [
        ("node1", 8, None),
        ("node2", 8, None),
        ("node3", 4, None),
        ("node4", 2, None),
        ("node5", None, "user"),
        ("10.0.0.6", None, None),
    ]
    assert cluster.origins["node2.nproc_per_node"] == "hosts.yaml:3"


def test_deepspeed(understand: Understand) -> None:
    cluster = understand("worker-0 slots=4\nworker-1 slots=4\n")
    assert [(n.address, n.nproc_per_node) for n in cluster.nodes] == [("worker-0", 4), ("worker-1", 4)]


def test_pbs_names_a_host_for_each_rank(understand: Understand) -> None:
    cluster = understand("gpu1\ngpu1\ngpu1\ngpu2\n")
    assert [(n.name, n.nproc_per_node, n.node_rank) for n in cluster.nodes] == [("gpu1", 3, 0), ("gpu2", None, 1)]
    assert cluster.origins["gpu1.nproc_per_node"] == "hosts.yaml:1 (the times it stands there)"


def test_patterns_expand_here_too(understand: Understand) -> None:
    assert [(n.name, n.nproc_per_node) for n in understand("node[1-2]:8").nodes] == [("node1", 8), ("node2", 8)]


LINES = "is not understood; a hostfile has lines like node1, node1 slots=8 or node1:8"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node1 slots=eight", ':1: "eight" is not a valid number of processes (1 to 1024)'),
        ("node1 slots=0", ':1: "0" is not a valid number of processes (1 to 1024)'),
        ("node1\nnode2 8", f':2: "8" {LINES}'),
        ("node1 cores=8", f':1: "cores=8" {LINES}'),
        ("node1 slots=", f':1: "slots=" {LINES}'),
        ("node1 slots=8 node2", f':1: "node2" {LINES}'),
        (
            "node1\n$(reboot)",
            (
                ':2: "$(reboot)" is not a host name: letters, digits, "-" and "_" in parts of up to 63, joined by '
                '"."; or an IPv4 or IPv6 address'
            ),
        ),
        (
            "node1 slots=4\nnode1 slots=4",
            (
                ':2: host "node1" is listed twice (first on line 1); keep one, or give one machine '
                "that is two nodes two names"
            ),
        ),
        ("# nothing\n#", ": names no host; a line of a hostfile is node1 slots=8"),
        ("node1\n" * 1025, ':1: "1025" is not a valid number of processes (1 to 1024)'),
    ],
)
def test_refuses(refusal: Refusal, text: str, message: str) -> None:
    assert refusal(text) == "hosts.yaml" + message
