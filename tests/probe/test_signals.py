"""A signal reaches the process that was named, or nobody."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_doctor.probe import procs
from nccl_doctor.probe.ports import requests
from tests.patience import LONG_S


@pytest.fixture(params=["Python's", "by number", "none"])
def pidfd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The three ways of a host: Python 3.9's functions, its system calls by number, and a kernel without them."""
    if request.param != "Python's":
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.delattr(signal, "pidfd_send_signal")
    if request.param == "none":

        def refuse(*_: object) -> int:
            raise OSError(errno.ENOSYS, "Function not implemented")

        monkeypatch.setattr(requests, "_call", refuse)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def started(pid: int) -> int:
    proc = procs.read_proc(pid)
    assert proc is not None
    return proc.started


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_named_process_is_signalled(pidfd: None, child: subprocess.Popen[bytes]) -> None:
    assert requests.send_signal(child.pid, started(child.pid), signal.SIGTERM)
    assert child.wait(LONG_S) == -signal.SIGTERM
    assert not requests.send_signal(child.pid, 1, signal.SIGKILL)


def test_another_process_under_its_pid_is_not(pidfd: None, child: subprocess.Popen[bytes]) -> None:
    assert not requests.send_signal(child.pid, started(child.pid) - 1, signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.1)


def test_a_zombie_is_not_and_no_descriptor_stays_open(pidfd: None) -> None:
    before = open_descriptors()
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not requests.send_signal(process.pid, started(process.pid), signal.SIGKILL)
    assert open_descriptors() == before
