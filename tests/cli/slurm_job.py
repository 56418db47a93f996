"""``nccl-doctor`` on the nodes of a Slurm job of the lab's, as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.doctor import Run
from tests.cli.program import run_in
from tests.lab.slurm import Slurm
from tests.lab.warm_torch import interpreter

PYTHON = ("--python", sys.executable)
NO_SMOKE = ("--no-smoke", *PYTHON)


def check(slurm: Slurm, *words: str, command: str = "check") -> Run:
    done = run_in(slurm.lab.controller, command, *words, "-o", "json")
    assert "Traceback" not in done.stderr, done.stderr
    return Run(done.returncode, json.loads(done.stdout), done.stderr)


@contextmanager
def started(slurm: Slurm, job: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A check whose probes all answer."""
    python = sys.executable if "--tree" in words else interpreter()  # the relay looks after its own children
    argv = ["nccl-doctor", "check", "--slurm-job", job, "--python", python, "-o", "json", *words]
    with slurm.lab.controller.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("dialling"):
                break
        yield process
