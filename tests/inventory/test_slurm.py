"""What scontrol's words mean; the words themselves are of Slurm 22.05 and, with GPUs by kind, of 23.11."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.errors import UsageError
from nccl_doctor.inventory import slurm
from nccl_doctor.inventory.build import Overrides
from nccl_doctor.inventory.load import load
from nccl_doctor.inventory.slurm import SlurmRequest, request
from nccl_doctor.inventory.slurm_port import master_port
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.engine import ClusterSource
from nccl_doctor.model.engines.slurm import SlurmOptions
from nccl_doctor.transport import make_transport
from nccl_doctor.transport.slurm.transport import SlurmTransport
from tests.each import each
from tests.inventory.conftest import ELSEWHERE

JOB = """\
JobId=7 JobName=JobState=PENDING Reason=x UserId=bob(1)
   UserId={user} GroupId=alice(1000) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag={batch} Reboot=0 ExitCode=0:0
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=node[1-3]
   BatchHost=node1
   Socks/Node=* NtasksPerN:B:S:C={tasks}:0:*:* CoreSpec=*
   JOB_GRES={gres}
     Nodes=node[1-2] CPU_IDs=0-3 Mem=0 GRES={gres}
     Nodes=node3 CPU_IDs=0-3 Mem=0 GRES={last}
   Command=/home/alice/job.sh
"""
OWN = f"alice({os.getuid()})"
PLAIN = {"user": OWN, "state": "RUNNING", "reason": "None", "batch": "0", "tasks": "0", "gres": "", "last": ""}
ANSWERS = {
    ("show", "hostnames", "node[1-3]"): "node1\nnode2\nnode3\n",
    ("write", "batch_script", "7", "-"): "#!/bin/bash\nexport MASTER_PORT=$((10000 + SLURM_JOB_ID))\n",
}


@pytest.fixture
def scontrol(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has scontrol say of the job what is given, in place of :data:`PLAIN`; and srun is there."""

    def says(text: str | None = None, **other: str) -> None:
        answers = {**ANSWERS, ("-d", "show", "job", "7"): JOB.format(**PLAIN | other) if text is None else text}
        monkeypatch.setattr(slurm, "_scontrol", lambda *words: answers[words])

    monkeypatch.setattr("shutil.which", lambda _program: "/usr/bin/srun")
    return says


def cluster(where: str | None = None, exclude: str | None = None, **environ: str) -> Cluster:
    return load(None, where=where, exclude=exclude, environ=environ, engine=SlurmRequest("7"), here=ELSEWHERE)


def ranks(found: Cluster) -> list[int | None]:
    return [node.nproc_per_node for node in found.nodes]


def test_a_job_is_its_nodes_in_order_with_their_gpus(scontrol: Any) -> None:
    scontrol(gres="gpu:a100:4(IDX:0-3),shard:8(0/8)", last="gpu:2(IDX:0-1),gpu:h100:1(IDX:2)", tasks="2")
    found = cluster()
    assert [node.name for node in found.nodes] == ["node1", "node2", "node3"]
    assert ranks(found) == [4, 4, 3]
    assert (found.source, found.master_addr, found.master_port) == ("Slurm job 7", "node1", 29500)
    assert [node.options(SlurmOptions).gpus for node in found.nodes] == [4, 4, 3]
    assert not any(node.local for node in found.nodes)
    assert isinstance(make_transport("auto", found), SlurmTransport)
    assert ClusterSource(found).arguments == ("--slurm-job", "7")


def test_without_gpus_several_tasks_are_ranks_and_one_is_a_launcher(scontrol: Any) -> None:
    scontrol(tasks="8")
    assert ranks(cluster()) == [8, 8, 8]
    scontrol(tasks="1")
    assert ranks(cluster()) == [None, None, None]


def test_inside_the_job_the_environment_and_the_interpreter_are_its_own(scontrol: Any) -> None:
    scontrol(batch="1")
    inside = cluster(SLURM_JOB_ID="7", VIRTUAL_ENV="/v", MASTER_PORT="29511")
    assert inside.nodes[0].options(SlurmOptions) == SlurmOptions(job="7", inside=True)
    assert inside.master_port == 29511
    outside = cluster(SLURM_JOB_ID="8")
    assert outside.nodes[0].options(SlurmOptions) == SlurmOptions(job="7")
    assert outside.master_port == 10007
    assert outside.origins["master_port"] == "the batch script of Slurm job 7"


def test_names_choose_within_and_stand_in_the_next_command(scontrol: Any) -> None:
    scontrol()
    found = cluster(where="node[2-3],node1", exclude="node2")
    assert [(node.name, node.node_rank) for node in found.nodes] == [("node1", 0), ("node3", 1)]
    assert ClusterSource(found).arguments == ("--slurm-job", "7", "-w", "node[2-3],node1", "-x", "node2")
    with pytest.raises(UsageError, match=r"-w: node9 is not a node of Slurm job 7, which has node\[1-3\]"):
        cluster(where="node[1,9]")


STATES = [
    ({"state": "PENDING", "reason": "Resources"}, "Slurm job 7 is pending (Resources): it has no nodes yet"),
    ({"state": "COMPLETED"}, "Slurm job 7 has ended (COMPLETED)"),
    ({"state": "CONFIGURING"}, "Slurm job 7 is configuring: no step can be started in it now"),
    ({"user": "bob(77)"}, "Slurm job 7 belongs to bob, and only its own user"),
]


@each(STATES, str)
def test_a_job_that_cant_be_entered_is_a_sentence(case: tuple[dict[str, str], str]) -> None:
    other, words = case
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr("shutil.which", lambda _program: "/usr/bin/srun")
        context.setattr(slurm, "_scontrol", lambda *_words: JOB.format(**PLAIN | other))
        with pytest.raises(UsageError) as told:
            SlurmRequest("7").read(None, {})
    assert str(told.value).startswith(words)


def test_the_nodes_of_another_users_job_are_reached_over_ssh(scontrol: Any) -> None:
    scontrol(user="bob(77)")
    entries = SlurmRequest("7", steps=False).read(None, {}).entries
    assert [entry.name.value for entry in entries] == ["node1", "node2", "node3"]
    assert not any(entry.access for entry in entries)


def test_several_jobs_of_one_number_are_told_apart(scontrol: Any) -> None:
    scontrol(JOB.format(**PLAIN) + "\n" + JOB.format(**PLAIN).replace("JobId=7", "JobId=8"))
    with pytest.raises(UsageError, match="--slurm-job 7 stands for 2 jobs; name one task of the array, 7_1"):
        cluster()


def test_where_slurm_is_not_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _program: None)
    with pytest.raises(UsageError, match=r"there is no srun on this machine.*, or unset SLURM_JOB_ID, "):
        cluster()

    def away(*_argv: Any, **_options: Any) -> None:
        raise subprocess.TimeoutExpired("scontrol", 15)

    monkeypatch.setattr("shutil.which", lambda _program: "/usr/bin/srun")
    monkeypatch.setattr(subprocess, "run", away)
    with pytest.raises(
        UsageError, match=r"Slurm did not answer within 15 s: its controller \(slurmctld\) is down, busy"
    ):
        cluster()


NOTHING: dict[str, str | None] = {"slurm_job": None, "container_image": None, "container_name": None}
OURS = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-3]"}


def test_where_nobody_is_contacted_the_environment_serves_without_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _program: None)
    assert request(NOTHING, None, OURS, named=False) is None
    assert request(NOTHING, "auto", OURS, named=False) == SlurmRequest("7")
    monkeypatch.setattr("shutil.which", lambda _program: "/usr/bin/scontrol")
    assert request(NOTHING, None, OURS, named=False) == SlurmRequest("7")


def test_options_of_ssh_are_refused() -> None:
    with pytest.raises(UsageError, match="--user and --port are for SSH; a job's steps run as its own user"):
        load(None, where=None, exclude=None, environ={}, engine=SlurmRequest("7"), overrides=Overrides(user="ann"))


def test_which_job_is_meant() -> None:
    assert request(NOTHING, "auto", {}, named=False) is None
    assert request(NOTHING, "auto", OURS, named=False) == SlurmRequest("7")
    assert request(NOTHING, "openssh", OURS, named=False) is None
    assert request(NOTHING, "auto", OURS, named=True) is None
    assert request({**NOTHING, "slurm_job": "8_2"}, "auto", OURS, named=False) == SlurmRequest("8_2")
    assert request({**NOTHING, "slurm_job": "8"}, "paramiko", {}, named=False) == SlurmRequest("8", steps=False)
    image = {**NOTHING, "container_image": "nvcr.io#nvidia/pytorch"}
    assert request(image, "auto", OURS, named=False) == SlurmRequest("7", "nvcr.io#nvidia/pytorch")


WRONG = [
    ({"slurm_job": "8"}, "auto", True, "a hosts file and --slurm-job both name the hosts"),
    ({"slurm_job": "train"}, "auto", False, '--slurm-job: "train" is not a job'),
    ({"slurm_job": ""}, "auto", False, '--slurm-job: "" is not a job'),
    ({}, "slurm", False, "--transport slurm needs a job: give --slurm-job ID"),
    ({"container_name": "c"}, "auto", False, "a container of --container-image or --container-name needs a job"),
    ({"slurm_job": "8", "container_name": "c"}, "openssh", False, "a container is entered by steps of the job"),
]


@each(WRONG, str)
def test_options_that_contradict_each_other(case: tuple[dict[str, str], str, bool, str]) -> None:
    options, transport, named, words = case
    with pytest.raises(UsageError) as told:
        request({**NOTHING, **options}, transport, {}, named=named)
    assert str(told.value).startswith(words)


SCRIPTS = [
    ("export MASTER_PORT=29511", 29511),
    ('MASTER_PORT="29512" srun train.py', 29512),
    ("export MASTER_ADDR=a MASTER_PORT=29513; srun x", 29513),
    ("export MASTER_PORT=$((10000 + SLURM_JOBID % 50000))", 10000 + 1234567 % 50000),
    ("export MASTER_PORT=$((${SLURM_JOB_ID} % 16384 + 49152))", 1234567 % 16384 + 49152),
    ("export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))", 14567),
    ("export MASTER_PORT=$(expr 10000 + $(echo $SLURM_JOBID | tail -c 4))", 10567),
    ("# MASTER_PORT=1\nexport MASTER_PORT=2000\nMASTER_PORT=3000", 3000),
    ("export MASTER_PORT=$((RANDOM + 1000))", None),
    ("export MASTER_PORT=$(shuf -i 10000-65500 -n 1)", None),
    ("export MASTER_PORT=$((9 ** 9 ** 9))", None),
    ("export MASTER_PORT=$((1 / 0))", None),
    ("export MASTER_PORT=70000", None),
    ("srun train.py", None),
]


@each(SCRIPTS, lambda case: case[0])
def test_the_port_of_a_batch_script(case: tuple[str, int | None]) -> None:
    script, port = case
    assert master_port(f"#!/bin/bash\n#SBATCH -N2\n{script}\n", 1234567) == port


def test_what_scontrol_says_last_is_quoted_by_whole_words_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "scontrol: fatal: Could not establish a configuration source " + "and so on " * 30
    (tmp_path / "scontrol").write_text(
        f"#!/bin/sh\nprintf 'scontrol: error: DNS SRV lookup failed\\n{words}\\n' >&2; exit 1\n"
    )
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UsageError) as caught:
        slurm._scontrol("show", "job", "5")
    quoted, way_out = str(caught.value).split(" …. ")
    assert quoted.startswith(
        "Slurm could not be queried: scontrol: fatal: Could not establish a configuration source and"
    )
    assert words.startswith(quoted.removeprefix("Slurm could not be queried: ") + " ")
    assert way_out == "To do without Slurm, unset SLURM_JOB_ID, leave out --slurm-job, and name the hosts with -w"
