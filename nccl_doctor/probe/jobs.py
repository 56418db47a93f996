"""Functions that find the processes of a job, such as a launcher and its ranks, or ranks that have lost their launcher.

For a given process, the search finds the launcher or the Python process that forked or spawned the given process. A job
consists of its first process, such as a launcher, and the descendants of the first process. The job of a rank whose
launcher has exited also includes orphans of the same user and run that started at about the same time as the rank, and
the descendants of these orphans.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Sequence

from nccl_doctor.probe import procs
from nccl_doctor.probe.procs import Proc, ProcessTable

PYTHON = re.compile(r"(?:python|pypy)[0-9.]*[a-z]?")
WITH_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs"})
"""Options of the Python interpreter whose value is the next argument (``python --help``)."""

TORCH_LAUNCHERS = frozenset(  # torch's own launchers, whose options say how nodes meet
    {"torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "accelerate-launch"}
    | {"accelerate.commands.launch", "accelerate.commands.accelerate_cli"}
)
LAUNCHERS = TORCH_LAUNCHERS | {  # programs and modules that start the ranks of a job and wait for them
    *("deepspeed", "deepspeed.pt", "deepspeed.launcher.launch", "deepspeed.launcher.runner", "mpirun", "mpiexec"),
    *("mpiexec.hydra", "orterun", "prterun", "orted", "prted", "hydra_pmi_proxy", "pmi_proxy", "horovodrun"),
    *("horovod.runner", "colossalai"),
}

SERVICES = {  # Python programs that serve people or other programs and are not training, by :func:`program`'s name
    **dict.fromkeys(("http.server", "uvicorn", "gunicorn", "hypercorn", "waitress-serve"), "a web server"),
    **dict.fromkeys(("flask", "manage.py", "streamlit"), "a web server"),
    **dict.fromkeys(("tensorboard", "tensorboard.main"), "TensorBoard"),
    **dict.fromkeys(("jupyter", "jupyter-lab", "jupyter-notebook", "jupyter-server"), "a notebook server"),
    **dict.fromkeys(("jupyterhub", "jupyterlab", "notebook"), "a notebook server"),
    **dict.fromkeys(("ipykernel_launcher", "ipykernel"), "a notebook's kernel"),
    **dict.fromkeys(("ipython", "IPython", "ptpython", "bpython"), "an interactive Python"),
    **dict.fromkeys(("pdb", "ipdb", "pudb", "debugpy"), "a debugger"),
    "supervisord": "a supervisor of services",
    "celery": "a task queue's worker",
    "dask-scheduler": "Dask's scheduler",
    "dask-worker": "a worker of Dask's",
}

HELPERS = frozenset({"wandb-core", "gpu_stats", "torch_shm_manager"})
"""Programs that wandb and torch (torch/bin) start in a rank, and that exit when the rank exits."""

SPAWNED = ("multiprocessing.spawn", "multiprocessing.forkserver", "multiprocessing.resource_tracker")
"""Modules in the command lines of processes that Python's multiprocessing starts (Lib/multiprocessing)."""


PROBE = "<nccl-doctor>"  # in the command line of every probe (crew/start.py)


def is_probe(pid: int, table: ProcessTable) -> bool:
    """Return whether a process has the command line of a probe.

    Any process can imitate a probe's command line.
    """
    return any(PROBE in word for word in table.argv(pid))


def is_command(pid: int, table: ProcessTable) -> bool:
    """Return whether a process has the command line of the ``nccl-doctor`` command.

    The result is not proof, because any process can imitate the command line of ``nccl-doctor``.
    """
    return program(table.argv(pid)) == "nccl-doctor"


def of_check(pid: int, table: ProcessTable) -> bool:
    """Return whether a process or one of its ancestors has the command line of a probe.

    The ranks of a check are descendants of a probe.
    """
    return any(is_probe(candidate, table) for candidate in (pid, *table.ancestors(pid)) if candidate in table.procs)


PUBLISHERS = frozenset({"docker-proxy", "rootlessport", "rootlessport-child", "slirp4netns", "pasta", "conmon"})
"""Programs of Docker and Podman that keep a port open for a container."""


def is_publisher(executable: str) -> bool:
    return executable in PUBLISHERS


def is_python(executable: str) -> bool:
    return PYTHON.fullmatch(executable) is not None


def program(argv: Sequence[str]) -> str:
    """Return the program that a command line runs, such as a module (``-m``), a script's base name, or "-c"."""
    if not argv:
        return ""
    name = os.path.basename(argv[0].partition(" ")[0].rstrip(":"))
    if not is_python(name):
        return name
    words = iter(argv[1:])
    for word in words:
        if word == "-c":
            return word
        if word == "-m" or (word.startswith("-") and not word.startswith("--") and word.endswith("m")):
            return next(words, "")
        if word in WITH_VALUE:
            next(words, "")
        elif not word.startswith("-"):
            return os.path.basename(word)
    return name


def is_launcher(argv: Sequence[str]) -> bool:
    return program(argv) in LAUNCHERS


def service(argv: Sequence[str]) -> str | None:
    """Return the kind of service that a command line starts, such as "a web server", or None for other programs."""
    return SERVICES.get(program(argv))


def is_spawned(argv: Sequence[str]) -> bool:
    return any(mark in word for word in argv for mark in SPAWNED)


RUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "GROUP_RANK")
"""Environment variables that torchrun sets to the same value for all ranks of a node
(torch/distributed/elastic/agent/server).
"""
RANK_VARIABLES = frozenset({"LOCAL_RANK", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})
"""Environment variables that torchrun, DeepSpeed, Accelerate and MPI launchers set for each rank, but that users rarely
set manually.
"""
RANK_MARKS = ("--local_rank", "--local-rank", "multiprocessing.spawn", "multiprocessing.forkserver")
"""Strings that identify a rank's command line. Each string is an option from torch.distributed.launch or a module of
multiprocessing.
"""
RAY_WORKER, RAYLET = "ray::", "raylet"
"""Prefix of the process titles of Ray workers (python/ray/_private/workers), and the name of the daemon that starts and
ends Ray workers.
"""
SUBREAPERS = frozenset({"systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "conmon", "s6-svscan"})
"""Names of processes other than PID 1 that adopt orphans (PR_SET_CHILD_SUBREAPER, prctl(2))."""
TOGETHER_S = 60  # ranks of one node start together; orphans that started further apart belong to two runs


class JobProcesses(NamedTuple):
    """The processes of one job."""

    root: int  # the launcher, or the first process of what it left
    pids: tuple[int, ...]  # all processes, the root first, parents before their children


def job_of(pid: int, table: ProcessTable) -> JobProcesses:
    root = table.procs[pid]
    while (parent := table.procs.get(root.ppid)) is not None and parent.pid != 1 and _started(parent, root, table):
        root = parent
    roots = [root.pid, *_orphans_of_the_same_run(root, table)]
    members = [member for root_pid in roots for member in (root_pid, *table.descendants(root_pid))]
    return JobProcesses(root.pid, tuple(dict.fromkeys(members)))


def jobs_of(pids: list[int], table: ProcessTable) -> list[JobProcesses]:
    """Return the jobs of the given processes without duplicates.

    If one job contains another job, only the larger job is returned.
    """
    jobs: list[JobProcesses] = []
    for pid in pids:
        if pid in table.procs and not any(pid in job.pids for job in jobs):
            job = job_of(pid, table)
            jobs = [job, *(other for other in jobs if not set(other.pids) <= set(job.pids))]
    return sorted(jobs)


def is_adopted(proc: Proc, table: ProcessTable) -> bool:
    """Return whether a process was adopted by PID 1 or a subreaper because its original parent has exited.

    In a container, PID 1 might have started the given process, because PID 1 can be a launcher, a shell or an init
    process. A process is not regarded as adopted if it is in the same session as PID 1. A process is also not regarded
    as adopted if it inherited from its parent an environment variable that normally only a launcher sets.
    """
    parent = table.procs.get(proc.ppid)
    if parent is None or not (parent.pid == 1 or parent.name in SUBREAPERS):
        return False
    if parent.pid == 1 and proc.session == parent.session != 0:
        return False
    mine, theirs = table.environ(proc.pid), table.environ(parent.pid)
    inherited = any(name in theirs and mine.get(name) == theirs[name] for name in RANK_VARIABLES)
    return not inherited and not is_launcher(table.argv(parent.pid))


def is_orphan(pid: int, table: ProcessTable) -> bool:
    """Return whether a process is a rank that has lost its launcher, or a Ray worker on a host without a raylet."""
    if is_ray_worker(pid, table) and any(proc.name == RAYLET for proc in table.procs.values()):
        return False
    return is_adopted(table.procs[pid], table) and (is_rank(pid, table) or is_ray_worker(pid, table))


def is_ray_worker(pid: int, table: ProcessTable) -> bool:
    return table.command(pid).startswith(RAY_WORKER)


def is_rank(pid: int, table: ProcessTable) -> bool:
    """Return whether a process was started by a launcher or by Python's multiprocessing."""
    line = " ".join(table.argv(pid))
    return not RANK_VARIABLES.isdisjoint(table.environ(pid)) or any(mark in line for mark in RANK_MARKS)


def tops(job: JobProcesses, table: ProcessTable) -> list[int]:
    """Return those processes of a job that still exist and have a parent process outside the job."""
    alive = [pid for pid in job.pids if pid in table.procs]
    return [pid for pid in alive if table.procs[pid].ppid not in alive]


def _started(parent: Proc, child: Proc, table: ProcessTable) -> bool:
    """Return whether ``parent`` is the launcher of ``child`` or the Python process that forked or spawned ``child``."""
    if table.uid(parent.pid) != table.uid(child.pid):
        return False
    above, below = table.argv(parent.pid), table.argv(child.pid)
    if is_launcher(above):
        return True
    forked = above == below != ()
    return is_python(table.executable(parent.pid)) and (forked or is_spawned(below))


def _orphans_of_the_same_run(root: Proc, table: ProcessTable) -> list[int]:
    if not is_adopted(root, table):
        return []
    ticks = TOGETHER_S * os.sysconf("SC_CLK_TCK")
    near = (
        proc
        for proc in table.procs.values()
        if proc.pid != root.pid and abs(proc.started - root.started) <= ticks and is_adopted(proc, table)
    )
    mine = [proc for proc in near if table.uid(proc.pid) == table.uid(root.pid) and _same_run(root, proc, table)]
    place = procs.surroundings(root.pid, table) if mine else ()
    return sorted(proc.pid for proc in mine if procs.surroundings(proc.pid, table) == place)


def _same_run(first: Proc, second: Proc, table: ProcessTable) -> bool:
    """Return whether two processes are ranks of the same launcher or were spawned by the same Python process."""
    mine, theirs = table.environ(first.pid), table.environ(second.pid)
    together = (first.group, first.session) == (second.group, second.session)
    # two processes with one LOCAL_RANK in a process group: one is the other's data loader
    ranks = mine.get("LOCAL_RANK"), theirs.get("LOCAL_RANK")
    if None not in ranks and "MASTER_PORT" in mine:
        return (together or ranks[0] != ranks[1]) and all(mine.get(name) == theirs.get(name) for name in RUN)
    spawned = is_spawned(table.argv(first.pid)) and is_spawned(table.argv(second.pid))
    return together and spawned and table.argv(first.pid)[:1] == table.argv(second.pid)[:1]
