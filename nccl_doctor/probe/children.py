"""Functions that start child processes and make sure that all child processes exit.

The probe is a subreaper, so every process that it starts remains its descendant, and :func:`end_all` can kill the whole
process tree. When the probe dies, the kernel kills every child process that has called :func:`die_with`
(PR_SET_PDEATHSIG, prctl(2)). Child processes that :func:`start` creates call :func:`die_with` before they run their
program. The kernel also kills the ranks of the all-reduce when the process that forked the ranks dies.

torch needs a directory for temporary files. Each temporary directory has a keeper, which is a shell process that
removes the directory when the probe exits or is killed, even by SIGKILL or SIGALRM. The temporary directory is not
removed if the keeper is killed together with the probe, for example when a whole control group is killed.
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
"""Shell script of the keeper, which waits until its stdin is closed and then removes a temporary directory.

The keeper's stdin is a pipe from the probe, which the kernel closes when the probe exits. The script retries the
removal, because ranks that are being killed can still create files in the directory.
"""
_keepers: dict[str, subprocess.Popen[bytes]] = {}
_making = threading.Lock()  # held while a directory has no keeper yet, and for good once the probe exits


def become_subreaper() -> None:
    """Make this process the parent of its orphaned descendants (prctl(2), since Linux 3.4)."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(
    argv: list[str], env: dict[str, str], output: int, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a program in a new session (setsid(2)).

    Call this function only from the main thread, because the kernel kills the program when the calling thread exits.
    """
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
    """Tell the kernel to kill this process when the thread that forked it exits.

    A later change of the user ID clears the parent-death signal, so change the user ID before calling this function.
    """
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the prctl
        os._exit(1)


def scratch() -> str:
    """Create a temporary directory for child processes.

    The directory is removed when :func:`remove_scratch` is called or when the probe exits.
    """
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
    """Kill all child processes and remove their temporary directories, including a directory that is being created.

    After this call, no thread of the probe can create a temporary directory.
    """
    _making.acquire(timeout=2.0)
    end_all()
    remove_scratch()


def remove_scratch(patience_s: float = 6.0) -> None:
    """Remove the directories that :func:`scratch` created. Call this function after the child processes have exited."""
    deadline = time.monotonic() + patience_s
    for folder, keeper in list(_keepers.items()):
        assert keeper.stdin is not None
        keeper.stdin.close()
        while keeper.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        _keepers.pop(folder, None)


def end_all(patience_s: float = 2.0) -> None:
    """Kill all descendants of this process except keepers, and retry for up to ``patience_s`` seconds."""
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
    """Return the PIDs of all descendants of a process, except zombies, according to /proc/PID/stat."""
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
    pids: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        pids += below
        waiting += below
    return pids
