"""Lines of scripts, with variables that the shell or Slurm sets."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from nccl_doctor.launch.line import behind_dashes, joined, read_line
from nccl_doctor.model.finding import Outcome
from nccl_doctor.text.shell import split, with_variables
from tests.checks.snapshots import patched
from tests.launch.test_lines import told

SLURM = (
    "torchrun --nnodes=${SLURM_NNODES:-1} --node-rank=$SLURM_NODEID --master_addr=$MASTER_ADDR --nproc_per_node=8 t.py"
)


@pytest.mark.parametrize(
    "line",
    [
        SLURM,
        "torchrun --nnodes $SLURM_JOB_NUM_NODES --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint=$MASTER_ADDR:29500 t",
        "torchrun --nnodes=$SLURM_NNODES --node_rank=${SLURM_PROCID} --nproc_per_node=8 --master_addr=$MASTER_ADDR t.py",
    ],
)
def test_what_slurm_and_the_hosts_say_is_judged(line: str) -> None:
    report = told(line)
    assert [found.message for found in report.diagnoses] == []
    (judged,) = (check for check in report.checks if check.name == "launch-line-wrong")
    assert judged.outcome is Outcome.PASS


def test_the_mended_line_keeps_variables_for_the_shell() -> None:
    report = told(SLURM.replace("nproc_per_node=8", "nproc_per_node=16"))
    (found,) = report.diagnoses
    (command,) = found.fix.commands
    assert command.command == SLURM.replace("torchrun", "torchrun --master_port=29500")


@pytest.mark.parametrize(
    ("line", "unread"),
    [
        ("torchrun --nnodes=$N --node_rank=0 --nproc_per_node=8 --master_addr=node1 t.py", "$N for --nnodes"),
        ("torchrun --nnodes=3 --node_rank=$R --nproc_per_node=8 --master_addr=node1 t.py", "$R for --node_rank"),
        ("torchrun --nnodes=3 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=$head:1 t", "for --rdzv_endpoint"),
    ],
)
def test_what_only_the_shell_knows_is_not_judged(line: str, unread: str) -> None:
    report = told(line)
    assert [found.message for found in report.diagnoses] == []
    (judged,) = (check for check in report.checks if check.name == "launch-line-wrong")
    assert judged.outcome is Outcome.UNKNOWN
    assert unread in (judged.reason or "")


def test_a_wrong_number_beside_a_variable_is_wrong() -> None:
    (found,) = told("torchrun --nnodes=2 --node_rank=$R --nproc_per_node=8 --master_addr=node1 t.py").diagnoses
    assert found.message.startswith("The launch command specifies --nnodes=2, but there are 3 hosts")


SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=3
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
GPUS=8
DATA=$HOME/data
torchrun --nnodes=$SLURM_NNODES --node_rank=$SLURM_NODEID --nproc_per_node=$GPUS --master_addr=$MASTER_ADDR t.py $DATA
"""


@pytest.mark.parametrize("words", [["bash", "{}"], ["sbatch", "-N3", "-p", "gpu", "{}"], ["{}"]])
def test_a_script_is_read(tmp_path: Path, words: list[str]) -> None:
    path = tmp_path / "job.sh"
    path.write_text(SCRIPT)
    argv = ["hosts.yaml", "--", *(word.format(path) for word in words)]
    _, line = behind_dashes([one for one in argv if one != "--"], argv)
    cluster = patched({}).cluster
    own = read_line(line).in_cluster(cluster).options
    assert (own["nnodes"], own["nproc_per_node"], own["master_addr"]) == ("3", "8", cluster.master_addr)
    assert shlex.split(str(joined(line))) == list(line)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--nnodes=${SLURM_NNODES:-1}", "--nnodes=${SLURM_NNODES:-1}"),
        ("--endpoint=$A:29500", "--endpoint=$A:29500"),
        ("it's $X", "'it'\"'\"'s '\"$X\""),
        ("$(rm)$X", "'$(rm)$X'"),
        ("`rm`$X", "'`rm`$X'"),
        ("${X:-$(rm)}", "'${X:-$(rm)}'"),
        ("$5", "'$5'"),
    ],
)
def test_a_shell_replaces_variables_and_runs_nothing(text: str, shown: str) -> None:
    assert str(with_variables(text)) == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            ("torchrun", "--nnodes=$N", "t.py", "--note", "two words; $HOME"),
            "--nnodes=$N t.py --note 'two words; $HOME'",
        ),
        (("torchrun --nnodes=$N t.py --note '$HOME' $OUT",), "--nnodes=$N t.py --note '$HOME' $OUT"),
        (('torchrun t.py "$A" "\\$A" \\$A "it\'s $A"',), "t.py $A '$A' '$A' 'it'\"'\"'s '\"$A\""),
    ],
)
def test_a_variable_that_the_user_quoted_stays_one(words: tuple[str, ...], shown: str) -> None:
    argv = ["hosts.yaml", "--", *words]
    _, line = behind_dashes([one for one in argv if one != "--"], argv)
    read = read_line(line)
    once = str(joined(read.written(read.options, read.script, {})))
    assert once == f"torchrun {shown}"
    again = read_line(split(once))
    assert str(joined(again.written(again.options, again.script, {}))) == once
