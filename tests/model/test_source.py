from __future__ import annotations

import shlex
from typing import Any

import pytest

from nccl_doctor.checks.view import fix_port
from nccl_doctor.errors import UsageError
from nccl_doctor.inventory.build import Overrides
from nccl_doctor.model.cluster import Cluster, Node, access
from nccl_doctor.model.engine import ClusterSource
from nccl_doctor.model.engines.slurm import SlurmOptions
from nccl_doctor.text.shell import line
from tests.checks.snapshots import patched

OPTIONS = Overrides("/opt/py", 29511, "10.0.0.2", 2, "bob", 2222, ("NCCL_DEBUG=INFO",), "docker:train")
SAID = (
    *("--master-port", "29511", "--master-addr", "10.0.0.2", "--python", "/opt/py"),
    *(
        "--nproc-per-node",
        "2",
        "--user",
        "bob",
        "--port",
        "2222",
        "--inside",
        "docker:train",
        "--env",
        "NCCL_DEBUG=INFO",
    ),
)


def cluster(source: str, **more: Any) -> Cluster:
    return patched({"cluster": {"source": source, **more}}).cluster


def test_a_file_names_itself_and_options_are_said_again() -> None:
    one = cluster("hosts.yaml", master_port=29400)
    assert ClusterSource(one).arguments == ("hosts.yaml",)
    assert ClusterSource(OPTIONS.applied(one)).arguments == ("hosts.yaml", *SAID)


def test_what_was_left_out_stays_left_out() -> None:
    assert ClusterSource(cluster("hosts.yaml", origins={"-x": "node4"})).arguments == ("hosts.yaml", "-x", "node4")


@pytest.mark.parametrize("source", ["-w", "SLURM_JOB_NODELIST", "Slurm job 7", "/dev/fd/63", "/proc/self/fd/11"])
def test_without_a_file_to_read_again_all_of_it_is_said(source: str) -> None:
    words = ClusterSource(OPTIONS.applied(cluster(source))).arguments
    assert words[:2] == ("-w", "node[1-3]")
    assert set(SAID) <= set(words)
    assert ClusterSource(cluster(source)).file is None


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (Overrides(master_port=70000), "--master-port: "),
        (Overrides(master_addr="-oProxy"), "--master-addr: "),
        (Overrides(env=("A",)), "--env: 'A' is not a NAME=VALUE"),
        (Overrides(env=("1A=b",)), "--env: "),
        (Overrides(user="a b"), "--user: "),
    ],
)
def test_an_option_is_judged_as_the_file_is(overrides: Overrides, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        overrides.applied(cluster("-w"))


def test_a_container_is_named_where_no_file_does() -> None:
    said = OPTIONS.applied(cluster("hosts.yaml"))
    assert ClusterSource(said).container(said.nodes[0]) == (("--inside", "docker:train"),)
    plain = cluster("hosts.yaml")
    assert ClusterSource(plain).container(plain.nodes[0]) == ()
    (command,) = fix_port(said, said.nodes[0], line("29500"))
    assert command.command == "nccl-doctor fix-port --hosts hosts.yaml --host node1 --inside docker:train 29500"


def test_a_slurm_job_is_named_again_as_one_word_each() -> None:
    """A snapshot from elsewhere may hold anything."""
    said = access(SlurmOptions(job="7; reboot", container_image="nvcr.io#nvidia/pytorch", gpus=2))
    node = Node(name="node1", address="node1", node_rank=0, access=said)
    cluster = Cluster(nodes=(node,), master_addr="node1", source="Slurm job 7", origins={"-w": "node1"})
    container = ("--container-image", "nvcr.io#nvidia/pytorch")
    assert ClusterSource(cluster).file is None
    assert ClusterSource(cluster).arguments == ("--slurm-job", "7; reboot", *container, "-w", "node1")
    (command,) = fix_port(cluster, node, line("{*port}", port=[29500]))
    assert shlex.split(command.command) == [
        "nccl-doctor",
        "fix-port",
        "--slurm-job",
        "7; reboot",
        "--host",
        "node1",
        "29500",
    ]
