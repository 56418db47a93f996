"""A Slurm batch script that starts the job: ``sbatch job.sh``."""

from __future__ import annotations

from nccl_doctor import shell
from nccl_doctor.errors import UsageError
from nccl_doctor.hostlist import fold
from nccl_doctor.inet import numeric
from nccl_doctor.inventory.plan import LaunchPlan
from nccl_doctor.shell import Line

HEAD = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{extra}set -euo pipefail
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT={port}
{exports}"""

TASK = """\
{counts}exec {python} -m torch.distributed.run \\
  --nnodes="$SLURM_NNODES" --node_rank="$SLURM_NODEID" --nproc_per_node={nproc} \\
  --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \\
  {script}"""


def script(job: LaunchPlan) -> Line:
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
    named = all(numeric(node.name) is None for node in nodes)
    names = [shell.script("#SBATCH --nodelist={names}\n", names=shell.host_names(fold(_names(job))))] if named else []
    gpus = [shell.script("#SBATCH --gpus-per-node={count}\n", count=counts[0])] if even and job.starts[0].gpus else []
    head = shell.script(
        HEAD,
        name=shell.argument(job.name),
        nodes=len(nodes),
        extra=_joined(names + gpus),
        port=job.cluster.master_port,
        exports=_joined([shell.script("export {one}\n", one=one) for one in shell.assignments(shared[0])]),
    )
    task = shell.script(
        TASK,
        counts=shell.script("") if even else _cases(job),
        python=shell.program(nodes[0].python),
        nproc=counts[0] if even else shell.script('"$nproc"'),
        script=shell.words(job.script, {}),
    )
    return shell.script("{head}\nsrun --kill-on-bad-exit=1 bash -c {task}\n", head=head, task=shell.nested(task))


def _joined(lines: list[Line]) -> Line:
    found = shell.script("")
    for one in lines:
        found = shell.script("{found}{one}", found=found, one=one)
    return found


def _names(job: LaunchPlan) -> list[str]:
    return [start.node.name for start in job.starts]


def _cases(job: LaunchPlan) -> Line:
    """The ranks by node's name, where they differ."""
    lines = [
        shell.script("  {name}) nproc={nproc} ;;\n", name=shell.argument(start.node.name), nproc=start.nproc)
        for start in job.starts
    ]
    return shell.script('case "$SLURMD_NODENAME" in\n{lines}esac\n', lines=_joined(lines))
