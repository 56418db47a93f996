"""The processes of a job, found by their command lines: a launcher and its ranks, or what is left of them.

The search goes up from a process to its launcher or to the Python process that forked or spawned it; down to all
descendants; and, if the launcher is gone, to the orphans that it had started together with the process. Nothing is
guessed: each member is a descendant, or an orphan of the same user whose variables show the same run.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Sequence

from nccl_doctor.probe import procs
from nccl_doctor.probe.procs import Proc, Table

PYTHON = re.compile(r"(?:python|pypy)[0-9.]*[a-z]?")
WITH_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs"})
"""Options of the Python interpreter whose value is the next argument (python --help)."""

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
"""Programs that a rank's libraries start and that end with it: those of wandb and of torch (torch/bin)."""

SPAWNED = ("multiprocessing.spawn", "multiprocessing.forkserver", "multiprocessing.resource_tracker")
"""Modules in the command lines of processes that Python's multiprocessing starts (Lib/multiprocessing)."""


PROBE = "<nccl-doctor>"  # in the command line of every probe (crew/start.py)


def is_probe(pid: int, table: Table) -> bool:
    """Return whether a process says that it is a probe; any process may say so."""
    return any(PROBE in word for word in table.argv(pid))


def of_check(pid: int, table: Table) -> bool:
    """Return whether a process says that it is a probe, or has such an ancestor, as the ranks of a check have."""
    return any(is_probe(one, table) for one in (pid, *table.ancestors(pid)) if one in table.procs)


PUBLISHERS = frozenset({"docker-proxy", "rootlessport", "rootlessport-child", "slirp4netns", "pasta", "conmon"})
"""Programs that hold a port for a container, of Docker and Podman."""


def is_publisher(executable: str) -> bool:
    """Return whether the base name is that of a program that publishes containers' ports."""
    return executable in PUBLISHERS


def is_python(executable: str) -> bool:
    return PYTHON.fullmatch(executable) is not None


def program(argv: Sequence[str]) -> str:
    """Return the module after ``-m``, the base name of the script or of the program itself, or "-c"."""
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
    """Return whether a command line is that of a launcher, which starts ranks."""
    return program(argv) in LAUNCHERS


def service(argv: Sequence[str]) -> str | None:
    """Return the service that a command line belongs to, such as "sshd"; None if there is none."""
    return SERVICES.get(program(argv))


def is_spawned(argv: Sequence[str]) -> bool:
    """Return whether Python's multiprocessing started the process with this command line."""
    return any(mark in word for word in argv for mark in SPAWNED)


RUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "GROUP_RANK")
"""Variables that torchrun sets to the same value for all ranks of a node (torch/distributed/elastic/agent/server)."""
RANK_VARIABLES = frozenset({"LOCAL_RANK", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})
"""Variables that torchrun, DeepSpeed, Accelerate and MPI's launchers set for each rank.

People seldom set them by hand.
"""
RANK_MARKS = ("--local_rank", "--local-rank", "multiprocessing.spawn", "multiprocessing.forkserver")
"""Marks of a rank in a command line: torch.distributed.launch's argument, or a child that multiprocessing started."""
RAY_WORKER, RAYLET = "ray::", "raylet"
"""The process title of Ray's workers (python/ray/_private/workers), and the daemon that starts and ends them."""
SUBREAPERS = frozenset({"systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "conmon", "s6-svscan"})
"""Names of processes that adopt orphans besides pid 1 (prctl(2), PR_SET_CHILD_SUBREAPER)."""
TOGETHER_S = 60  # ranks of one node start together; orphans that started further apart belong to two runs


class JobProcesses(NamedTuple):
    """Processes that belong together."""

    root: int  # the launcher, or the first process of what it left
    pids: tuple[int, ...]  # all processes, the root first, parents before their children


def job_of(pid: int, table: Table) -> JobProcesses:
    root = table.procs[pid]
    while (parent := table.procs.get(root.ppid)) is not None and parent.pid != 1 and _started(parent, root, table):
        root = parent
    roots = [root.pid, *_orphans_of_the_same_run(root, table)]
    members = [member for one in roots for member in (one, *table.descendants(one))]
    return JobProcesses(root.pid, tuple(dict.fromkeys(members)))


def jobs_of(pids: list[int], table: Table) -> list[JobProcesses]:
    """Return the jobs of several processes, each once; a process in two of them belongs to the bigger one."""
    found: list[JobProcesses] = []
    for pid in pids:
        if pid in table.procs and not any(pid in job.pids for job in found):
            job = job_of(pid, table)
            found = [job, *(other for other in found if not set(other.pids) <= set(job.pids))]
    return sorted(found)


def is_adopted(proc: Proc, table: Table) -> bool:
    """Return whether the parent has adopted the process: it is pid 1 or a subreaper, and did not start it.

    Pid 1 of a container may be a launcher, or the shell or init that started the process. Then they share a session,
    which orphans seldom do, or variables that otherwise only a launcher sets.
    """
    parent = table.procs.get(proc.ppid)
    if parent is None or not (parent.pid == 1 or parent.name in SUBREAPERS):
        return False
    if parent.pid == 1 and proc.session == parent.session != 0:
        return False
    mine, theirs = table.environ(proc.pid), table.environ(parent.pid)
    inherited = any(name in theirs and mine.get(name) == theirs[name] for name in RANK_VARIABLES)
    return not inherited and not is_launcher(table.argv(parent.pid))


def is_orphan(pid: int, table: Table) -> bool:
    """Return whether a process is a rank without its launcher, or a Ray worker on a host without a raylet."""
    if is_ray_worker(pid, table) and any(proc.name == RAYLET for proc in table.procs.values()):
        return False
    return is_adopted(table.procs[pid], table) and (is_rank(pid, table) or is_ray_worker(pid, table))


def is_ray_worker(pid: int, table: Table) -> bool:
    return table.command(pid).startswith(RAY_WORKER)


def is_rank(pid: int, table: Table) -> bool:
    """Return whether a launcher or Python's multiprocessing started a process."""
    line = " ".join(table.argv(pid))
    return not RANK_VARIABLES.isdisjoint(table.environ(pid)) or any(mark in line for mark in RANK_MARKS)


def tops(job: JobProcesses, table: Table) -> list[int]:
    """Return the job's living processes whose parent is outside the job."""
    alive = [pid for pid in job.pids if pid in table.procs]
    return [pid for pid in alive if table.procs[pid].ppid not in alive]


def _started(parent: Proc, child: Proc, table: Table) -> bool:
    """Return whether the parent is the child's launcher, or the Python process that started the child."""
    if table.uid(parent.pid) != table.uid(child.pid):
        return False
    above, below = table.argv(parent.pid), table.argv(child.pid)
    if is_launcher(above):
        return True
    forked = above == below != ()
    return is_python(table.executable(parent.pid)) and (forked or is_spawned(below))


def _orphans_of_the_same_run(root: Proc, table: Table) -> list[int]:
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


def _same_run(first: Proc, second: Proc, table: Table) -> bool:
    """Return whether both are ranks of one launcher, or were spawned by one Python process."""
    mine, theirs = table.environ(first.pid), table.environ(second.pid)
    together = (first.group, first.session) == (second.group, second.session)
    # two processes with one LOCAL_RANK in a process group: one is the other's data loader
    ranks = mine.get("LOCAL_RANK"), theirs.get("LOCAL_RANK")
    if None not in ranks and "MASTER_PORT" in mine:
        return (together or ranks[0] != ranks[1]) and all(mine.get(name) == theirs.get(name) for name in RUN)
    spawned = is_spawned(table.argv(first.pid)) and is_spawned(table.argv(second.pid))
    return together and spawned and table.argv(first.pid)[:1] == table.argv(second.pid)[:1]
