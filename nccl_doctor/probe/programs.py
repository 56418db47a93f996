"""What a process runs, as its command line tells: Python, a launcher of training jobs, one of its ranks, a service."""

from __future__ import annotations

import os
import re
from typing import Sequence

PYTHON = re.compile(r"(?:python|pypy)[0-9.]*[a-z]?")
WITH_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs"})
"""Options of the interpreter whose value is the next argument (python --help)."""

LAUNCHERS = frozenset(
    {
        *("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "accelerate-launch"),
        *("accelerate.commands.launch", "accelerate.commands.accelerate_cli", "deepspeed", "deepspeed.pt"),
        *("deepspeed.launcher.launch", "deepspeed.launcher.runner", "mpirun", "mpiexec", "mpiexec.hydra", "orterun"),
        *("prterun", "orted", "prted", "hydra_pmi_proxy", "pmi_proxy", "horovodrun", "horovod.runner", "colossalai"),
    }
)
"""Programs and modules that start the ranks of a job and wait for them."""

SERVICES = {
    "http.server": "a web server",
    "uvicorn": "a web server",
    "gunicorn": "a web server",
    "hypercorn": "a web server",
    "waitress-serve": "a web server",
    "flask": "a web server",
    "manage.py": "a web server",
    "streamlit": "a web server",
    "tensorboard": "TensorBoard",
    "tensorboard.main": "TensorBoard",
    "jupyter": "a notebook server",
    "jupyter-lab": "a notebook server",
    "jupyter-notebook": "a notebook server",
    "jupyter-server": "a notebook server",
    "jupyterhub": "a notebook server",
    "jupyterlab": "a notebook server",
    "notebook": "a notebook server",
    "ipykernel_launcher": "a notebook's kernel",
    "ipykernel": "a notebook's kernel",
    "ipython": "an interactive Python",
    "IPython": "an interactive Python",
    "ptpython": "an interactive Python",
    "bpython": "an interactive Python",
    "pdb": "a debugger",
    "ipdb": "a debugger",
    "pudb": "a debugger",
    "debugpy": "a debugger",
    "supervisord": "a supervisor of services",
    "celery": "a task queue's worker",
    "dask-scheduler": "Dask's scheduler",
    "dask-worker": "a worker of Dask's",
}
"""Python programs that serve people or others and are no training, by what :func:`program` says of them."""

HELPERS = frozenset({"wandb-core", "gpu_stats", "torch_shm_manager"})
"""Programs that a rank's libraries start beside it, and that end with it: of wandb, and of torch (torch/bin)."""

SPAWNED = ("multiprocessing.spawn", "multiprocessing.forkserver", "multiprocessing.resource_tracker")
"""In the command line of what Python's multiprocessing starts (Lib/multiprocessing)."""


def is_python(executable: str) -> bool:
    """Whether the base name of a program is a Python interpreter's."""
    return PYTHON.fullmatch(executable) is not None


def program(argv: Sequence[str]) -> str:
    """What runs: the module behind ``-m``, the base name of the script, or of the program itself; "-c" for a text."""
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
    """Whether a command line is that of a launcher, which starts ranks."""
    return program(argv) in LAUNCHERS


def service(argv: Sequence[str]) -> str | None:
    """The service that a command line is of, "sshd"; None for none that is known."""
    return SERVICES.get(program(argv))


def is_spawned(argv: Sequence[str]) -> bool:
    """Whether a command line is one that Python's multiprocessing starts."""
    return any(mark in word for word in argv for mark in SPAWNED)
