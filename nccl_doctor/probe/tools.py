"""Runs a program of the host's for its output."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import Iterable

from nccl_doctor.probe.unavailable import Unavailable


def output(argv: list[str], deadline: float, accept: Iterable[int] = (0,)) -> str:
    """What a program prints, untranslated, its errors left out.

    Args:
        argv: program and arguments.
        deadline: on the clock of ``time.monotonic``.
        accept: exit statuses that are no failure.

    Raises:
        FileNotFoundError: there is no such program, or none that this user may run.
        Unavailable: no end in time, or another exit status; with what it printed.
    """
    allowed_s = max(0.1, deadline - time.monotonic())
    name = os.path.basename(argv[0])
    program = shutil.which(argv[0])  # execvp(3) says EACCES where PATH has a folder that this user may not enter
    if program is None:
        raise FileNotFoundError(argv[0])
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            timeout=allowed_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{name} gave no answer in time") from None
    said = done.stdout.decode("utf-8", "replace")
    if done.returncode not in accept:
        words = " ".join((said + done.stderr.decode("utf-8", "replace")).split())[:300]
        raise Unavailable(f"{name} ended with {done.returncode}: {words}")
    return said
