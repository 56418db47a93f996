"""Another process uses a GPU that the job needs.

What it means: the job's rank on the GPU runs out of memory or is slowed down by the other process. In the
EXCLUSIVE_PROCESS compute mode, the rank can't start and prints "CUDA-capable device(s) is/are busy or unavailable".

How we know: nvidia-smi lists the processes that use memory on each GPU. The job may use the GPUs that
`cuda_visible_devices` in the hosts file lists (by default, all GPUs), and needs the first `nproc_per_node` of these
GPUs (by default, all of them). A process is reported if it uses 1 GiB of GPU memory or more, or an unknown amount. A
CUDA context alone needs only a few hundred MiB, so a monitoring process is not reported. A GPU without a visible
process is also reported if 2 GiB or more of its memory is in use. Memory in use without a visible process belongs to a
process in another container or to a process that has exited.

The parent of a process shows whether the process is a leftover or part of a running job (see stale-process).

Fix: if the process is left over from one of your jobs, end the process. If the process is part of a running job, ask
the owner of the job. To use other GPUs, name them in the hosts file (`cuda_visible_devices`).

References: nvidia-smi(1), --query-compute-apps.
"""

from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.effect import Effect, Reach
from nccl_doctor.model.finding import Details, Finding, Severity
from nccl_doctor.snapshot.hosts import visible_gpus
from nccl_doctor.snapshot.system import GpuProcess, TrainingJob
from nccl_doctor.text.hostlist import listed, nouns

TAKEN_MIB = 1024
"""Minimum GPU memory, in MiB, of a process that is reported. A CUDA context alone needs less."""
UNSEEN_MIB = 2048
"""Minimum memory in use, in MiB, for reporting a GPU on which no process is visible.

The driver itself needs less.
"""

FULL = Effect(
    ("gpu-memory", "cuda-error"),
    Reach.OWN,
    "another process occupies the GPU's memory or has exclusive access to the GPU (EXCLUSIVE_PROCESS)",
    ("nccl",),
)


@check(
    "NCD602",
    phrase="GPU is in use",
    severity=Severity.ERROR,
    needs=("gpus", "gpu_processes"),
    explains=(FULL,),
    row="GPUs",
)
def gpu_in_use(view: View) -> Findings:
    """Yield one finding per host on which other processes use GPUs that the job needs."""
    for host, facts in view.facts:
        gpu_processes = known(facts.gpu_processes)
        needed = visible_gpus(host.node, facts)[: host.node.nproc_per_node]  # in CUDA's order for the ranks
        uuids = {gpu.uuid for gpu in needed}
        matches = [use for use in gpu_processes if use.uuid in uuids]
        uses = [use for use in matches if use.memory_mib is None or use.memory_mib >= TAKEN_MIB]
        held = {use.uuid for use in gpu_processes}
        unseen = [gpu for gpu in needed if gpu.uuid not in held and (gpu.memory_used_mib or 0) >= UNSEEN_MIB]
        if not uses and not unseen:
            continue
        jobs = {} if isinstance(facts.processes, Unknown) else {pid: job for job in facts.processes for pid in job.pids}
        numbers = sorted({use.gpu for use in uses if use.gpu is not None} | {gpu.index for gpu in unseen})
        names = f"{nouns(len(numbers), 'GPU')} {listed(map(str, numbers))}"
        yield Finding(
            hosts=(host.name,),
            message=f"{names} on {host.name}, which the job needs, {'are' if len(numbers) > 1 else 'is'} already in "
            "use.",
            evidence=(
                *(_evidence(use, jobs.get(use.pid)) for use in uses),
                *(f"GPU {gpu.index}: {gpu.memory_used_mib} MiB in use, and no process shows" for gpu in unseen),
            ),
            facts={"gpus": numbers},
            details=Details(pids=tuple(sorted({use.pid for use in uses}))),
            fix="Wait for the other job, ask its owner, or name other GPUs in the hosts file "
            "(cuda_visible_devices). nccl-doctor fix-port --pid N shows whether process N is a leftover of yours.",
        )


def _evidence(use: GpuProcess, job: TrainingJob | None) -> str:
    memory = "memory" if use.memory_mib is None else f"{use.memory_mib} MiB"
    if not use.alive:
        return f"GPU {use.gpu}: {memory} of pid {use.pid}, which is not visible here"
    state = "" if job is None else ", left behind" if job.left_behind else ", of a running job"
    return f"GPU {use.gpu}: {memory}, pid {use.pid} of {use.user}{state}: {use.command}"
