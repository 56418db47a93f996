"""The Slurm step, container or login session has fewer resources on a node than the job's ranks need.

What it means: Slurm gives a job step only the resources that the job requested. With `--ntasks-per-node=1` and without
`--cpus-per-task`, all ranks of a node, their data loaders and NCCL's threads share one CPU, so the GPUs are idle most
of the time. If the ranks exceed the memory limit, the kernel kills a rank ("Killed", "oom_kill event in StepId="). If
the job step does not see all GPUs of the job, at least one rank has no GPU.

How we know: the check starts a job step. From sched_getaffinity(2) and the CPU limit of the control group, the check
determines how many CPUs a process of the step may use. The check uses the lowest memory limit among the process's
control group and the ancestors of that group. The GPUs that nvidia-smi shows in the step are compared with those that
`scontrol -d show job` lists for the node. The check's job step has no CPU binding, and gets all resources of the job on
the node, like any step that srun starts without `--exact`. Less than one CPU or less than 2 GiB of memory per rank is
reported as a warning. Less than 512 MiB of memory per rank is reported as an error, because loading torch and CUDA
requires more memory. Outside Slurm, the memory limit of the container's or login session's control group is checked.
With vm.overcommit_memory=2, the memory that processes may still allocate (CommitLimit minus Committed_AS) is also
checked.

Fix: request more resources with `--cpus-per-task=N`, `--mem=0` (all memory of a node) or `--gpus-per-node=N`. Repeat
`--cpus-per-task` for srun, which has ignored sbatch's value since Slurm 22.05. For a container, raise `docker run
--memory` or the pod's `resources.limits.memory`.

References: srun(1): --cpus-per-task, --exact, --mem. cgroup.conf(5): ConstrainDevices, ConstrainRAMSpace. proc(5):
/proc/sys/vm/overcommit_memory.
"""

from collections.abc import Callable
from functools import partial

from nccl_doctor.checks.effects import CUDA, SLOW
from nccl_doctor.checks.view import Findings, View, check, on_each, pasted
from nccl_doctor.model.base import known
from nccl_doctor.model.effect import Effect, Reach
from nccl_doctor.model.engine import engines_of
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.operations.system import SysctlSet
from nccl_doctor.text.hostlist import fold, grouped, plural

GIB = 1 << 30
ENOUGH = 2 * GIB
"""Bytes of host memory that a rank needs, since torch with CUDA uses 1 to 3 GiB before the script loads anything."""
FATAL = GIB // 2

MEMORY = Effect(
    ("SIGKILL", "out-of-memory"),
    Reach.OWN,
    "the kernel kills a process in a control group that has reached its memory limit (kernel: cgroup-v2, memory.max)",
)

OVERCOMMIT = Effect(
    ("out-of-memory",),
    Reach.OWN,
    "the kernel refuses allocations beyond CommitLimit (kernel: Documentation/mm/overcommit-accounting.rst)",
)


@check(
    "NCD607",
    phrase="job step limits are low",
    severity=Severity.WARNING,
    needs=("step", "gpus", "limits"),
    explains=("gpu-count-low", MEMORY, OVERCOMMIT, CUDA, SLOW),
    row="limits",
)
def step_limits_low(view: View) -> Findings:
    """Yield one finding per shortage of a resource, with all hosts that have the same shortage."""
    low: list[tuple[tuple[str, int, int], str]] = []
    for host, facts in view.facts:
        limits, ranks, gpus = known(facts.step), view.nproc(host, facts), known(facts.gpus)
        room = known(facts.limits).commit_bytes
        if room is not None and room < ENOUGH * ranks:
            low.append((("overcommit", room, ranks), host.name))
        if limits is None:
            continue
        if limits.memory_bytes is not None and limits.memory_bytes < ENOUGH * ranks:
            low.append((("memory" if limits.is_job else "group", limits.memory_bytes, ranks), host.name))
        if not limits.is_job:
            continue
        gpu_count = sum(engine.gpus(host.node) for engine in engines_of(host.node))
        if limits.cpus < ranks:
            low.append((("cpus", limits.cpus, ranks), host.name))
        if len(gpus) < gpu_count:
            low.append((("gpus", len(gpus), gpu_count), host.name))
    for (what, has, wants), names in grouped(low).items():
        yield _FINDINGS[what](names, has, wants)


def _each(names: list[str]) -> str:
    return f"{'each of ' * (len(names) > 1)}{fold(names)}"


def _few_cpus(names: list[str], has: int, ranks: int) -> Finding:
    return Finding(
        hosts=tuple(names),
        message=f"The job can use only {plural(has, 'CPU')} on {_each(names)} for {ranks} ranks, which will compete "
        f"for {'it' if has == 1 else 'them'}.",
        evidence=(f"a step's process runs on {plural(has, 'CPU')}",),
        facts={"cpus": has, "nproc_per_node": ranks},
        explains=(SLOW,),
        fix="Request several CPUs per rank, with sbatch and with srun: with --ntasks-per-node=1, --cpus-per-task "
        "covers all ranks of a node together.",
    )


OF_A_JOB = "Request more memory: --mem=0 for all of a node, --mem-per-gpu or --mem for a part."
OF_OTHERS = (
    "Raise the memory limit of the container (docker run --memory, a pod's resources.limits.memory), or of the login "
    "(systemctl show -p MemoryMax user.slice, and that of the user's own slice)."
)


def _little_memory(names: list[str], has: int, ranks: int, who: str = "the job", advice: str = OF_A_JOB) -> Finding:
    return Finding(
        hosts=tuple(names),
        message=f"On {_each(names)}, {who} can use at most {has / GIB:.2g} GiB of memory (for "
        f"{plural(ranks, 'rank')}); if it needs more, the kernel kills a rank.",
        evidence=(f"control group: {has} bytes",),
        facts={"memory_bytes": has, "nproc_per_node": ranks},
        severity=Severity.ERROR if has < FATAL * ranks else None,
        explains=(MEMORY,),
        fix=advice,
    )


def _strict(names: list[str], has: int, ranks: int) -> Finding:
    return Finding(
        hosts=tuple(names),
        message=f"With vm.overcommit_memory=2, processes on {fold(names)} can allocate only {has / GIB:.2g} GiB of "
        f"additional memory for {plural(ranks, 'rank')}. Torch and CUDA reserve more memory than they use and fail "
        'with "Cannot allocate memory".',
        evidence=(f"CommitLimit less Committed_AS (/proc/meminfo): {has} bytes",),
        facts={"commit_bytes": has, "nproc_per_node": ranks},
        severity=Severity.ERROR if has < FATAL * ranks else None,
        explains=(OVERCOMMIT,),
        fix=pasted(
            "Allow overcommitting (for good: in a .conf file in /etc/sysctl.d):",
            on_each(names, SysctlSet((("vm.overcommit_memory", "0"),), ("2",))),
            needs_root=True,
        ),
    )


def _missing_gpus(names: list[str], has: int, count: int) -> Finding:
    return Finding(
        hosts=tuple(names),
        message=f"Slurm allocated {plural(count, 'GPU')} to the job on {_each(names)}, but a job step there sees "
        f"{plural(has, 'GPU') if has else 'none'}.",
        evidence=(f"nvidia-smi in the step: {has or 'no'} GPU{'s' * (has > 1)}",),
        facts={"gpus": has, "given": count},
        severity=Severity.ERROR,
        explains=("gpu-count-low", CUDA),
        fix="See whether the driver works on the node (nvidia-smi outside the job). If it does, Slurm's gres.conf or "
        "its device constraint is at fault, or the container lacks the driver (NVIDIA_VISIBLE_DEVICES).",
    )


_FINDINGS: dict[str, Callable[[list[str], int, int], Finding]] = {
    "cpus": _few_cpus,
    "memory": _little_memory,
    "group": partial(_little_memory, who="the container or login session", advice=OF_OTHERS),
    "overcommit": _strict,
    "gpus": _missing_gpus,
}
