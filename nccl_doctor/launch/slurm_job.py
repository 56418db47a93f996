"""Generates a Slurm script that starts the job, for use with ``sbatch`` or, in a running job, with ``bash``."""

from __future__ import annotations

from nccl_doctor.errors import UsageError
from nccl_doctor.launch.launchers import takes_local_addr
from nccl_doctor.launch.plan import LaunchPlan, secrets
from nccl_doctor.model.engines.slurm import SlurmOptions
from nccl_doctor.text import shell
from nccl_doctor.text.hostlist import fold
from nccl_doctor.text.inet import endpoint, numeric
from nccl_doctor.text.shell import Line

HEAD = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{extra}set -euo pipefail
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT={port}
{exports}"""

HEAD_IN_A_JOB = """\
#!/bin/bash
set -euo pipefail
export MASTER_ADDR={master} MASTER_PORT={port}
{exports}"""

IN_A_JOB = """\
--jobid={number} --overlap --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --nodelist={names} {container}"""

TASK = """\
{counts}exec {python} -m torch.distributed.run \\
  --nnodes="$SLURM_NNODES" {place} --nproc_per_node={nproc} \\
  {meeting} \\
  {script}"""


def script(job: LaunchPlan, *, c10d: bool = False, preflight: bool = False) -> Line:
    """Return the script.

    Slurm sorts nodes by name. Without ``c10d``, torchrun's node ranks follow Slurm's order of the nodes.

    With ``preflight``, the script checks all nodes (``check --join``) before the job and exits if an error is found.
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
    names = fold([node.name for node in nodes])
    extra = [shell.script("#SBATCH --nodelist={names}\n", names=shell.host_names(names))] if named else []
    on_gpus = job.starts[0].gpus != ()
    extra += [shell.script("#SBATCH --gpus-per-node={count}\n", count=counts[0])] if even and on_gpus else []
    exports = _joined(
        [shell.script("export {one}\n", one=item) for item in shell.assignments(shared[0], secrets(shared[0]))]
    )
    port, running = job.cluster.master_port, nodes[0].options(SlurmOptions)
    if running.job:
        master = shell.argument(job.cluster.master_addr)
        head = shell.script(HEAD_IN_A_JOB, master=master, port=port, exports=exports)
        container = [shell.script("{one} ", one=shell.argument(option)) for option in running.container]
        number = int(running.job)
        listed = shell.host_names(names)
        where = shell.script(IN_A_JOB, number=number, nodes=len(nodes), names=listed, container=container)
    else:
        name = shell.argument(job.name)
        head = shell.script(HEAD, name=name, nodes=len(nodes), extra=_joined(extra), port=port, exports=exports)
        where = shell.script("")
    cases, nproc = shell.script(""), shell.script("{count}", count=counts[0])
    if not even:  # ranks by name of the node
        case = "  {name}) nproc={nproc} ;;\n"
        lines = [shell.script(case, name=shell.argument(item.node.name), nproc=item.nproc) for item in job.starts]
        cases = shell.script('case "$SLURMD_NODENAME" in\n{lines}esac\n', lines=_joined(lines))
        nproc = shell.script('"$nproc"')
    python, words = shell.program(nodes[0].python), shell.words(job.script, {})
    place = shell.script('--node_rank="$SLURM_NODEID"')
    meeting = shell.script('--master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT"')
    if c10d:
        place = shell.script('--local_addr="$SLURMD_NODENAME"' if takes_local_addr(job) else "")
        known = shell.argument(endpoint(job.cluster.master_addr, port))
        where_to = known if running.job else shell.script('"$MASTER_ADDR:$MASTER_PORT"')
        rendezvous = (
            '--rdzv_backend=c10d --rdzv_endpoint={endpoint} --rdzv_id="job-$SLURM_JOB_ID" '
            '--rdzv_conf="is_host=$((SLURM_NODEID == 0))"'
        )
        meeting = shell.script(rendezvous, endpoint=where_to)
    task = shell.script(TASK, counts=cases, python=python, place=place, nproc=nproc, meeting=meeting, script=words)
    first = shell.script("")
    if preflight:
        first = shell.script("srun {where}nccl-doctor check --join --python {python}\n", where=where, python=python)
    start = "{head}\n{first}srun {where}--kill-on-bad-exit=1 bash -c {task}\n"
    return shell.script(start, head=head, first=first, where=where, task=shell.nested(task))


def _joined(lines: list[Line]) -> Line:
    result = shell.script("")
    for line in lines:
        result = shell.script("{found}{one}", found=result, one=line)
    return result
