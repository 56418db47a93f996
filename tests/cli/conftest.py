"""An interpreter without psutil and torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bare_python() -> Iterator[str]:
    """A virtual environment with nothing in it, where the lab's hosts see it: beside the one that runs the tests."""
    folder = Path(sys.prefix) / f"bare-{os.getpid()}"  # each of the suite's workers has its own
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    yield str(folder / "bin" / "python")
    shutil.rmtree(folder)
