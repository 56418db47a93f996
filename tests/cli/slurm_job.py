"""``nccl-doctor`` on the nodes of a Slurm job of the lab's, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.doctor import Run
from tests.cli.program import Started, run_in, start_in
from tests.lab.slurm import Slurm
from tests.lab.warm import interpreter

PYTHON = ("--python", sys.executable)
NO_SMOKE = ("--no-smoke", *PYTHON)


def check(slurm: Slurm, *words: str, command: str = "check") -> Run:
    done = run_in(slurm.lab.controller, command, *words, "-o", "json")
    assert "Traceback" not in done.stderr, done.stderr
    return Run(done.returncode, json.loads(done.stdout), done.stderr)


@contextmanager
def started(slurm: Slurm, job: str, *words: str) -> Iterator[Started]:
    """A check whose probes all answer."""
    python = interpreter()
    argv = ("check", "--slurm-job", job, "--python", python, "-o", "json", *words)
    with start_in(slurm.lab.controller, *argv) as process:
        for line in process.stderr:
            if line.startswith("dialling"):
                break
        yield process
