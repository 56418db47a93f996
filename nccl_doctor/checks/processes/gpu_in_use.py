"""Another process uses a GPU that the job needs.

What it means: the job's rank on the GPU runs out of memory, or is slowed down by the other process. In the compute mode
EXCLUSIVE_PROCESS, the rank can't start and prints "CUDA-capable device(s) is/are busy or unavailable".

How we know: nvidia-smi lists the processes that hold memory on each GPU. The job needs the GPUs that
`cuda_visible_devices` in the hosts file names, or else the first `nproc_per_node` GPUs, or else all GPUs. A process
counts if it holds 1 GiB of memory or more, or an unknown amount. A CUDA context takes only a few hundred MiB, so a
monitoring process does no harm. Memory of 2 GiB or more without a visible process counts, because its process is in
another container or has exited.

The parent of a process shows whether the process is a leftover or part of a running job (see stale-process).

Fix: end the process if it is your own leftover, or ask its owner if it is part of a running job. To use other GPUs,
name them in the hosts file (`cuda_visible_devices`).

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
"""Minimum memory in MiB with which a process counts as using a GPU, more than a CUDA context alone takes."""
UNSEEN_MIB = 2048
"""Memory in MiB that the driver may reserve and report as used."""

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
