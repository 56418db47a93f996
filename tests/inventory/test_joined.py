"""Which node of a job this is, by the variables of its launcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_doctor.errors import DoctorError
from nccl_doctor.inventory.joined import Arrival, JobPlace, arrived, output_of, place, token
from nccl_doctor.model.engines.joined import JoinedOptions

MASTER = {"MASTER_ADDR": "10.0.0.1"}
OMPI = {"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}
SLURM = {"SLURM_STEP_NUM_NODES": "4", "SLURM_NODEID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "gpu[01-04]"}
NAMES = ("gpu01", "gpu02", "gpu03", "gpu04")


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({**MASTER, "NNODES": "2", "NODE_RANK": "1"}, JobPlace(2, 1, "10.0.0.1", launcher="the environment")),
        (
            {**MASTER, "PET_NNODES": "2", "PET_NODE_RANK": "0", "WORLD_SIZE": "16", "RANK": "0"},
            JobPlace(2, 0, "10.0.0.1", launcher="PyTorchJob"),
        ),
        ({**MASTER, "WORLD_SIZE": "3", "RANK": "2"}, JobPlace(3, 2, "10.0.0.1", launcher="PyTorchJob")),
        (
            {**MASTER, "GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1", "LOCAL_RANK": "3", "RANK": "11", "WORLD_SIZE": "16"},
            JobPlace(2, 1, "10.0.0.1", takes_part=False, launcher="torchrun"),
        ),
        (
            {**MASTER, "WORLD_SIZE": "16", "RANK": "9", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"},
            JobPlace(2, 1, "10.0.0.1", takes_part=False, launcher="Ray Train", processes=8),
        ),
        (SLURM, JobPlace(4, 2, "gpu01", names=NAMES, launcher="srun")),
        (
            {
                **SLURM,
                **MASTER,
                "NNODES": "4",
                "NODE_RANK": "2",
                "SLURM_LOCALID": "3",
                "SLURM_STEP_TASKS_PER_NODE": "8(x4)",
            },
            JobPlace(4, 2, "10.0.0.1", False, NAMES, "the environment", 8),
        ),
        ({**SLURM, **MASTER}, JobPlace(4, 2, "10.0.0.1", names=NAMES, launcher="srun")),
        (
            {**MASTER, **OMPI, "OMPI_COMM_WORLD_RANK": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
            JobPlace(2, 1, "10.0.0.1", launcher="Open MPI", processes=8),
        ),
        (
            {**MASTER, "PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            JobPlace(2, 1, "10.0.0.1", takes_part=False, launcher="MPICH", processes=2),
        ),
        (
            {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"},
            JobPlace(2, 1, "algo-1", names=("algo-1", "algo-2")),
        ),
        ({**MASTER, "NNODES": "4", "JOB_COMPLETION_INDEX": "3"}, JobPlace(4, 3, "10.0.0.1", launcher="an indexed Job")),
    ],
)
def test_each_launchers_variables(environ: dict[str, str], found: JobPlace) -> None:
    assert place(environ) == found


def test_options_come_before_variables() -> None:
    environ = {**MASTER, "NNODES": "2", "NODE_RANK": "1"}
    assert place(environ, 8, 7, "node0.train") == JobPlace(8, 7, "node0.train", launcher="the environment")
    assert place({}, 2, 0, "10.0.0.1") == JobPlace(2, 0, "10.0.0.1")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (MASTER, "the number of nodes (--nnodes, or NNODES) and this node's rank (--node-rank, or NODE_RANK)"),
        ({"NNODES": "2", "NODE_RANK": "0"}, "node 0's address (--master-addr, or MASTER_ADDR)"),
        ({**MASTER, "PET_NNODES": "1:4", "PET_NODE_RANK": "0"}, "give --nnodes"),
        ({**MASTER, "NNODES": "999999", "NODE_RANK": "0"}, "999999 nodes are too many"),
        ({"SM_HOSTS": '["-x"]', "SM_CURRENT_HOST": "-x"}, "SM_HOSTS"),
        ({**MASTER, "NNODES": "two", "NODE_RANK": "0"}, 'NNODES="two" is not a number'),
        ({**MASTER, "NNODES": "2", "NODE_RANK": "2"}, "node rank 2 is not below the number of nodes, 2"),
        ({"MASTER_ADDR": "-oX", "NNODES": "2", "NODE_RANK": "0"}, "MASTER_ADDR"),
    ],
)
def test_what_is_missing_or_wrong_is_said_in_one_sentence(environ: dict[str, str], words: str) -> None:
    with pytest.raises(DoctorError) as caught:
        place(environ)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_token_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("0123456789abcdef\n")
    assert token({"NCDOCTOR_TOKEN": "x" * 16}, secret) == b"0123456789abcdef"
    assert token({"NCDOCTOR_TOKEN": " " + "x" * 16}, None) == b"x" * 16
    assert token({}, None) == b""
    for environ, path in (({"NCDOCTOR_TOKEN": "short"}, None), ({}, tmp_path / "none"), ({}, tmp_path)):
        with pytest.raises(DoctorError):
            token(environ, path)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("a..b", "10.0.0.9", "-x"), ("rank-0", "10.0.0.9-rank1", "rank-2")),
        (("n" * 63, "n" * 63, "n" * 63), ("n" * 63, "n" * 40 + "-rank1", "n" * 40 + "-rank2")),
        (("node1", "node1-rank2", "node1"), ("node1", "node1-rank2", "rank-2")),
        (("rank-2", "rank-2-rank2", "rank-2"), ("rank-2", "rank-2-rank2", "rank-2x")),
    ],
)
def test_no_name_of_a_node_ends_the_check(names: tuple[str, ...], shown: tuple[str, ...]) -> None:
    came = [Arrival(rank, name, f"10.0.0.{rank}", "python3") for rank, name in enumerate(names)]
    parsed = arrived(JobPlace(3, 0, "10.0.0.1"), came, 29499)
    assert tuple(entry.name.value for entry in parsed.entries) == shown


def test_nodes_that_did_not_come_are_listed_and_names_are_unique() -> None:
    came = [Arrival(0, "pod", "10.0.0.1", "python3"), Arrival(2, "pod", "10.0.0.3", "/py")]
    parsed = arrived(JobPlace(3, 0, "10.0.0.1"), came, 29499)
    assert [(entry.name.value, entry.address.value) for entry in parsed.entries] == [
        ("pod", "10.0.0.1"), ("rank-1", "0.0.0.0"), ("pod-rank2", "10.0.0.3"),
    ]  # fmt: skip
    assert [entry.access for entry in parsed.entries] == [(JoinedOptions(rank, 29499),) for rank in range(3)]
    named = arrived(JobPlace(3, 0, "a", names=("a", "b", "c")), came, 29499)
    assert (named.entries[1].name.value, named.entries[1].address.value) == ("b", "b")


@pytest.mark.parametrize(
    ("environ", "hostname", "words"),
    [
        ({}, "node1", "the output of node rank 2"),
        ({"SLURM_JOB_ID": "77"}, "node1", "the output of node rank 2 (in slurm-77.out, if sbatch had no -o)"),
        ({}, "train-master-0", "the output of node rank 2 (kubectl logs train-worker-1)"),
        ({"SLURM_JOB_ID": "7; rm"}, "x;-master-0", "the output of node rank 2"),
        (
            {"JOB_COMPLETION_INDEX": "0"},
            "train-node-0-0",
            "the output of node rank 2 (of the pod that kubectl get pods -l batch.kubernetes.io/job-completion-index=2 shows)",
        ),
    ],
)
def test_where_the_output_of_a_missing_node_is(environ: dict[str, str], hostname: str, words: str) -> None:
    assert output_of(2, environ, hostname) == words
