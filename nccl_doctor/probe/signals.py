"""A signal to one process and no other, however quickly PIDs are used again.

A pidfd (Linux 5.3, pidfd_open(2)) stays with the process it was opened for; its start is compared after opening and
right before the signal. Where the kernel has none or a container's filter refuses it, the comparison stands alone.
"""

from __future__ import annotations

import errno
import os
import signal

from nccl_doctor.probe import procs

PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434
"""System calls' numbers on every machine that Linux 5.1 and later gave new calls (all but alpha)."""


def send(pid: int, started: int, number: signal.Signals) -> bool:
    """Signals a process if it is still the one that began at ``started``, in ticks since boot.

    Returns:
        Whether it was signalled; False where it is gone or a zombie.

    Raises:
        PermissionError: it is somebody else's.
    """
    try:
        descriptor = _open(pid)
    except ProcessLookupError:
        return False
    try:
        proc = procs.read(pid)
        if proc is None or proc.started != started or proc.state == "Z":
            return False
        _deliver(pid, descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def _open(pid: int) -> int | None:
    """A pidfd; None where there are none here.

    Raises:
        ProcessLookupError: the process is gone.
    """
    own = getattr(os, "pidfd_open", None)  # Python 3.9
    try:
        descriptor: int = own(pid) if own else _call(PIDFD_OPEN, pid, 0)
    except ProcessLookupError:
        raise
    except OSError:  # ENOSYS before Linux 5.3, EPERM from a container's seccomp filter
        return None
    return descriptor


def _deliver(pid: int, descriptor: int | None, number: signal.Signals) -> None:
    own = getattr(signal, "pidfd_send_signal", None)  # Python 3.9
    if descriptor is None:
        os.kill(pid, number)
    elif own:
        own(descriptor, number)
    else:
        _call(PIDFD_SEND_SIGNAL, descriptor, number, None, 0)


def _call(number: int, *arguments: int | None) -> int:
    import ctypes

    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno() or errno.EIO
        raise OSError(code, os.strerror(code))
    return result
