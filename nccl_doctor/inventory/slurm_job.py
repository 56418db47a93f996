"""A Slurm batch script that starts the job: ``sbatch job.sh``."""

from __future__ import annotations

import ipaddress

from nccl_doctor.errors import UsageError
from nccl_doctor.hostlist import fold
from nccl_doctor.inventory import shell
from nccl_doctor.inventory.plan import Job

HEAD = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{extra}
set -euo pipefail
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT={port}
{exports}"""

TASK = """\
{counts}exec {python} -m torch.distributed.run \\
  --nnodes="$SLURM_NNODES" --node_rank="$SLURM_NODEID" --nproc_per_node={nproc} \\
  --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \\
  {script}"""


def script(job: Job) -> str:
    """The script. Slurm orders its nodes by name, and torchrun's node ranks follow that.

    Raises:
        UsageError: one machine is two nodes, or nodes want variables or interpreters of their own.
    """
    nodes = [start.node for start in job.starts]
    if len({node.address for node in nodes}) < len(nodes):
        raise UsageError("Slurm starts a machine once: a machine that is two nodes here can't be one of its jobs")
    shared = [start.variables for start in job.starts]
    if any(variables != shared[0] for variables in shared) or len({node.python for node in nodes}) > 1:
        raise UsageError("one batch script serves all nodes: env, python and cuda_visible_devices must not differ")
    counts = [start.nproc for start in job.starts]
    even = len(set(counts)) == 1
    extra = [] if any(_is_address(node.name) for node in nodes) else [f"#SBATCH --nodelist={fold(_names(job))}"]
    if even and job.starts[0].gpus:
        extra.append(f"#SBATCH --gpus-per-node={counts[0]}")
    head = HEAD.format(
        name=shell.word(job.script[0].rpartition("/")[2].partition(".")[0] or "train"),
        nodes=len(nodes),
        extra="\n".join(extra),
        port=job.cluster.master_port,
        exports="".join(f"export {one}\n" for one in shell.assignments(shared[0])),
    )
    task = TASK.format(
        counts="" if even else _cases(job),
        python=shell.program(nodes[0].python),
        nproc=counts[0] if even else '"$nproc"',
        script=" ".join(shell.words(job.script, {})),
    )
    return f"{head}\nsrun --kill-on-bad-exit=1 bash -c {_single(task)}\n"


def _names(job: Job) -> list[str]:
    return [start.node.name for start in job.starts]


def _cases(job: Job) -> str:
    """The ranks by node's name, where they differ."""
    lines = "".join(f"  {shell.word(start.node.name)}) nproc={start.nproc} ;;\n" for start in job.starts)
    return f'case "$SLURMD_NODENAME" in\n{lines}esac\n'


def _single(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
