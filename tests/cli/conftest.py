"""An interpreter without torch or any other package, and a real Slurm with a job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.cluster import Lab, hosts_python
from tests.lab.slurm import Slurm


@pytest.fixture(scope="session")
def bare_python() -> Iterator[str]:
    """A virtual environment with nothing in it, where the lab's hosts see it: beside the one that runs the tests."""
    folder = Path(sys.prefix) / f"bare-{os.getpid()}"  # each of the suite's workers has its own
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    yield str(folder / "bin" / "python")
    shutil.rmtree(folder)


@pytest.fixture
def users_python() -> Iterator[None]:
    """Hosts files name the plain interpreter: of a fork the programs that run, and what it may do, would differ."""
    hosts_python.append(lambda: sys.executable)
    yield
    hosts_python.pop()


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """Four nodes that the tests of a module share; each mends what it broke."""
    with Lab.up(4) as lab:
        yield Slurm.up(lab)


@pytest.fixture
def job(slurm: Slurm) -> Iterator[str]:
    """A job that has all there is: nothing is left for a step that would not share."""
    number = slurm.allocate("-N4", "--exclusive")
    yield number
    slurm.cancel(number)
