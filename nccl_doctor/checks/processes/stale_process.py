"""A training process still exists although its launcher has exited.

What it means: the process occupies GPU memory, ports and shared memory until it ends. The diagnosis is only a warning,
because the process affects only jobs that need the same resources. A process that occupies the master port, or a GPU
that the job needs, is reported as an error (port-in-use, gpu-in-use).

How we know: the check lists the processes of every host and groups them into jobs by their parents and by the variables
that launchers set. The following are considered to be left behind:

- ranks of torchrun, torch.distributed.launch, DeepSpeed, Accelerate, MPI or multiprocessing (recognized by
  `LOCAL_RANK`, `--local_rank` or `multiprocessing.spawn`) whose parent is now PID 1 or another process that adopts
  orphans;
- Ray workers on a host without a raylet;
- zombies whose parent is alive but does not reap them (a zombie occupies only a PID, unless one of its threads hangs in
  the driver);
- GPU memory that is listed for a PID that no longer exists.

A job whose launcher is alive counts as running, however old the job is. Even without a launcher, a job counts as
running if it used CPU time, exchanged data with peers, accessed files or kept a GPU busy between two samples. Running
jobs are not reported by this check.

Fix: run `nccl-doctor fix-port --host node2 --pid N@START --kill`, which ends the whole job if the job is yours and PID
N still belongs to the same process. START is the start time of the process in clock ticks since boot. A zombie
disappears when its parent reaps it or exits. GPU memory of a process that no longer exists is freed when no other
process has the GPU's device file open any more, or when root resets the GPU (`nvidia-smi --gpu-reset`). The command
`fuser -v /dev/nvidia*` lists the processes that have the device files open.

References: proc_pid_stat(5); torch/distributed/elastic/agent/server/local_elastic_agent.py.
"""

from collections.abc import Iterator

from nccl_doctor.checks.view import Findings, View, check, described, endable, ending
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.finding import Details, Finding, Fix, Severity
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.snapshot.system import GpuProcess, TrainingJob


@check(
    "NCD601",
    phrase="leftover processes",
    severity=Severity.WARNING,
    needs=("processes",),
    explains=("gpu-in-use",),
    row_words="nothing left behind",
)
def stale_process(view: View) -> Findings:
    """Yield one finding per host with processes that were left behind."""
    for host, facts in view.facts:
        processes = known(facts.processes)
        left = [job for job in processes if job.left_behind]
        gone = _gone(facts)
        if not left and not gone:
            continue
        count = sum(len(job.pids) for job in left)
        were = "processes were" if count > 1 else "process was"
        leftovers = f"{count} training {were} left behind on {host.name}."
        memory = f"GPU memory of a process that has ended is still allocated on {host.name}."
        mine = [job for job in left if job.kind != "zombie" and endable(job)]
        commands = tuple(command for job in mine for command in ending(view.snapshot.cluster, host.node, job))
        lost = [f"GPU {use.gpu}: {use.memory_mib} MiB under pid {use.pid}, which is gone" for use in gone]
        yield Finding(
            hosts=(host.name,),
            message=" ".join([leftovers] * bool(left) + [memory] * bool(gone)),
            evidence=(*map(_evidence, left), *lost),
            facts={"jobs": [job.model_dump() for job in left], "gpus": [use.model_dump() for use in gone]},
            details=Details(pids=tuple(sorted({pid for job in left for pid in job.pids} | {use.pid for use in gone}))),
            fix=Fix(
                summary=" ".join(_remedies(left, gone, whole=len(mine) == len(left))),
                risk="disruptive" if commands else "manual",
                commands=commands if len(mine) == len(left) and not gone else (),
            ),
        )


def _evidence(job: TrainingJob) -> str:
    if job.kind == "zombie":
        return f"pid {job.pid} of {job.user} is a zombie; its parent is pid {job.ppid}: {job.parent}"
    why = "no raylet runs here" if job.kind == "ray-worker" else "its launcher is gone"
    return f"{described(job)} ({why})"


def _remedies(left: list[TrainingJob], gone: list[GpuProcess], *, whole: bool) -> Iterator[str]:
    running = [job for job in left if job.kind != "zombie"]
    if running and whole and not gone:
        yield "Nothing waits for them any more. End them:" if len(running) > 1 else "Nothing waits for it. End it:"
    elif running:
        pids = [str(job.pid) for job in running if endable(job)]
        if pids:
            yield f"End your own processes: pid {', '.join(pids)} (nccl-doctor fix-port --pid shows each)."
        for job in running:
            if job.own and job.refusal:
                yield f"fix-port ends pid {job.pid} only with --force: {job.refusal}."
        others = sorted({job.user for job in running if not job.own})
        if others:
            yield f"Ask {', '.join(others)}, or root, to end the others."
    parents = sorted({job.ppid for job in left if job.kind == "zombie"})
    if parents:
        yield f"A zombie disappears when its parent (pid {', '.join(map(str, parents))}) reaps it or exits."
    if gone:
        yield 'As root, see with "fuser -v /dev/nvidia*" which processes have the GPU open; if none, reset it.'


def _gone(facts: HostFacts) -> list[GpuProcess]:
    """Return the GPU memory entries of processes that no longer exist. In a container, the list is always empty."""
    if isinstance(facts.gpu_processes, Unknown) or isinstance(facts.identity, Unknown) or facts.identity.container:
        return []
    return [use for use in facts.gpu_processes if not use.alive]
