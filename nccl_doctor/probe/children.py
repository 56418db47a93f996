"""Starts the probe's child processes and makes sure that they end.

There are three safeguards. Everything is a descendant of the probe, which is a subreaper, so :func:`end_all` finds and
kills the whole tree. The kernel kills every child when the probe dies (PR_SET_PDEATHSIG, prctl(2)). Likewise, it kills
the all-reduce's ranks when the process that forked them dies.

torch needs a folder for its files. Each folder has a keeper, a shell that waits for the probe's end, also by SIGKILL or
SIGALRM, and then removes the folder and exits. The folder stays only if the keeper is killed at the same moment, as
when a whole control group is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time

from nccl_doctor.probe import tools

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
KEEPER = 'trap "" HUP INT TERM; read _; n=0; while ! rm -rf -- "$0" && [ $n -lt 50 ]; do n=$((n+1)); sleep 0.1; done'
"""Script of the keeper. Its stdin closes when the probe ends; dying ranks may still be writing to the folder."""
_keepers: dict[str, subprocess.Popen[bytes]] = {}
_making = threading.Lock()  # held while a directory has no keeper yet, and for good once the probe exits


def become_subreaper() -> None:
    """Make orphaned descendants children of this process (prctl(2), since Linux 3.4)."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(
    argv: list[str], env: dict[str, str], output: int, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a program in its own session; call only from the main thread, because the program dies with the caller."""
    parent = os.getpid()
    return subprocess.Popen(
        argv,
        env=env,
        cwd="/",
        stdin=stdin,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=lambda: die_with(parent),  # noqa: PLW1509 - one prctl, no lock taken; PDEATHSIG is of the forking thread
    )


def die_with(parent: int) -> None:
    """Have the kernel kill this child when the thread that forked it dies. A later change of user would undo this."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the prctl
        os._exit(1)


def scratch() -> str:
    """Create a folder for a child's files, which :func:`remove_scratch` or the end of the probe removes."""
    import tempfile

    env = {**os.environ, "PATH": os.pathsep.join([*tools.SYSTEM, *tools.login_folders()])}
    null = subprocess.DEVNULL
    with _making:
        folder = tempfile.mkdtemp(prefix="nccl-doctor-")
        argv = ["/bin/sh", "-c", KEEPER, folder]
        _keepers[folder] = subprocess.Popen(
            argv, env=env, stdin=subprocess.PIPE, stdout=null, stderr=null, cwd="/", start_new_session=True
        )
    return folder


def leave() -> None:
    """End all children and remove their folders, including any that is being created; no child can start afterwards."""
    _making.acquire(timeout=2.0)
    end_all()
    remove_scratch()


def remove_scratch(patience_s: float = 6.0) -> None:
    """Remove the folders from :func:`scratch` after the children have ended; concurrent callers wait, too."""
    deadline = time.monotonic() + patience_s
    for folder, keeper in list(_keepers.items()):
        assert keeper.stdin is not None
        keeper.stdin.close()
        while keeper.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        _keepers.pop(folder, None)


def end_all(patience_s: float = 2.0) -> None:
    """Kill all descendants of this process, until none is left or ``patience_s`` seconds have passed."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        family = set(descendants(os.getpid())) - {keeper.pid for keeper in list(_keepers.values())}
        if not family:
            return
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        time.sleep(0.01)


def descendants(root: int) -> list[int]:
    """Return the PIDs of all living descendants of a process, without zombies (from /proc/PID/stat)."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    # the command in parentheses may contain spaces and parentheses
                    state, ppid = file.read().rpartition(b")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != b"Z":
                children.setdefault(int(ppid), []).append(int(entry))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
