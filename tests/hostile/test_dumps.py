from __future__ import annotations

import subprocess
import sys

import pytest

from tests.patience import LONG_S

pytestmark = pytest.mark.slow


def test_hostile_dumps_and_answers_are_read_within_bounds() -> None:
    """In a process of its own, whose memory is bound and measured."""
    command = [sys.executable, "-m", "tests.hostile.dumps", "--runs", "60", "--seed", "7"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 0, done.stdout + done.stderr
