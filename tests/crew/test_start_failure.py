"""Why a probe did not come up, from the words of shells, of ld.so and of Python itself."""

from __future__ import annotations

import pytest

from nccl_doctor.crew.start import SILENT, ProbeStart, start_failure

PYTHON = "/opt/env/bin/python"


def start(
    *stderr: str,
    status: int | None = 1,
    ready: bool = False,
    late: bool = False,
    shell_ready: bool = True,
    login: bool = True,
    chatter: str = "",
    error: str = "",
) -> ProbeStart:
    words = error or "the connection ended"
    return ProbeStart(
        python=PYTHON,
        place="",
        error=words,
        login=login,
        shell_ready=shell_ready,
        ready=ready,
        late=late,
        lied=False,
        status=status,
        stderr=stderr,
        chatter=[chatter] * bool(chatter),
    )


@pytest.mark.parametrize(
    ("seen", "problem", "detail"),
    [
        (start("sh: 1: exec: /opt/env/bin/python: not found", status=127), "missing", "does not exist"),
        (
            start(f"bash: line 1: exec: {PYTHON}: cannot execute: required file not found", status=126),
            "missing",
            "does not exist",
        ),
        (start("zsh:1: no such file or directory: /opt/env/bin/python", status=127), "missing", "does not exist"),
        (start(f"{PYTHON}: Command not found."), "missing", "does not exist"),
        (
            start(f"sh: 1: exec: {PYTHON}: Permission denied", status=126),
            "permission",
            "may not run /opt/env/bin/python",
        ),
        (start("zsh:1: permission denied: /opt/env/bin/python", status=126), "permission", "permission denied"),
        (start(f"bash: {PYTHON}: Is a directory", status=126), "directory", "is a directory, not an interpreter"),
        (start(f"sh: 1: exec: {PYTHON}: Exec format error", status=126), "architecture", "another kind of processor"),
        (start(f"bash: {PYTHON}: cannot execute binary file: Exec format error", status=126), "architecture", "kind"),
        (
            start(f"{PYTHON}: error while loading shared libraries: libm.so.6: failed to map segment", status=127),
            "memory",
            "it gets no memory",
        ),
        (start("ModuleNotFoundError: No module named 'zlib'"), "incomplete", "a Python built without zlib"),
        (start("ModuleNotFoundError: No module named '_ctypes'", ready=True), "incomplete", "built without _ctypes"),
        (
            start(f"{PYTHON}: error while loading shared libraries: libpython3.10.so.1.0: cannot open", status=127),
            "library",
            "the library libpython3.10.so.1.0 can't be loaded",
        ),
        (
            start("Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding"),
            "broken",
            "does not start: failed to get the Python codec",
        ),
        (start("SyntaxError: invalid syntax"), "too-old", "is Python 2, and 3.8"),
        (start(ready=True, error="Python 3.8 or later is needed, this is 3.6.8"), "too-old", "is Python 3.6.8"),
    ],
)
def test_the_interpreter_is_at_fault(seen: ProbeStart, problem: str, detail: str) -> None:
    failure = start_failure(seen)
    assert (failure.kind, getattr(failure.facts, "problem", None)) == ("python-missing", problem)
    assert detail in failure.detail


@pytest.mark.parametrize(
    ("seen", "stage", "detail"),
    [
        (start(chatter="This account is currently not available."), "login", 'said "This account is currently not'),
        (start("Permission denied by policy", status=0), "login", "its login ended without starting"),
        (start(status=None, shell_ready=False), "login", "its login ended without starting /opt/env/bin/python"),
        (start(status=None), "start", "did not start the probe: the connection ended"),
        (start("Connection to node2 closed by remote host.", status=255), "start", "did not start the probe"),
        (start("Killed", status=137), "start", "did not start the probe"),
        (
            start(".bashrc: line 2: module: command not found", status=127, shell_ready=False),
            "login",
            "login ended without",
        ),
        (start("Error: /proc/4711/ns/mnt: no such file or directory", status=1), "login", "its login ended without"),
        (start("crun: open /sys/fs/cgroup/x: No such file or directory", status=127), "login", "ended without"),
        (
            start("Try --help", status=1, login=False),
            "start",
            f'{PYTHON} ended with exit status 1 and did not start the probe, and said "Try --help"',
        ),
        (start(late=True, login=False), "start", "did not start in time: that interpreter hangs"),
        (start(late=True), "login", "did not start in time: that interpreter hangs"),
        (start(late=True, shell_ready=False), "login", "did not start in time: the login waits or runs something else"),
        (start(SILENT, ready=True, late=True), "start", "large packets seem to vanish on the way"),
        (start("MemoryError", ready=True), "start", "did not start the probe: the connection ended"),
        (
            start("ModuleNotFoundError: No module named 'nccl_doctor.probe'", ready=True),
            "start",
            "did not start the probe",
        ),
    ],
)
def test_the_interpreter_is_not_at_fault(seen: ProbeStart, stage: str, detail: str) -> None:
    failure = start_failure(seen)
    assert (failure.kind, getattr(failure.facts, "stage", None)) == ("probe-failed", stage)
    assert detail in failure.detail
