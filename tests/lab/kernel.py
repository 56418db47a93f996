"""The few Linux calls that Python has no word for before 3.12: namespaces, mounts, the parent-death signal, files."""

import ctypes
import os
import struct
from pathlib import Path

CLONE_FS = 0x00000200
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_CAPABILITIES = 0x20080522  # the version with 64 of them
_libc = ctypes.CDLL(None, use_errno=True)


def _call(function: str, subject: str, *arguments: object) -> None:
    if getattr(_libc, function)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{function} {subject}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Give the calling thread namespaces of its own; `CLONE_NEWPID` counts for its children only (unshare(2))."""
    _call("unshare", hex(flags), flags)


def setns(descriptor: int, flags: int) -> None:
    """Move the calling thread into the namespaces that a namespace file or a pidfd names (setns(2), Linux 5.8)."""
    _call("setns", hex(flags), descriptor, flags)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount, bind, move or remount, as mount(2)."""
    text = [part.encode() or None for part in (source, target, kind, options)]
    _call("mount", target, text[0], text[1], text[2], ctypes.c_ulong(flags), text[3])


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process the signal as soon as its parent ends (prctl(2), `PR_SET_PDEATHSIG`)."""
    _call("prctl", "PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), 0, 0, 0)


def take_file(process: int, number: int) -> int:
    """A descriptor of ours for a file that the process of a pidfd has under a number (pidfd_getfd(2), Linux 5.6)."""
    found: int = _libc.syscall(438, process, number, 0)
    if found == -1:
        raise OSError(ctypes.get_errno(), f"pidfd_getfd {number}")
    return found


def lose_capabilities(kept: int) -> None:
    """Be without all capabilities but these, as a bounding set has them (capabilities(7))."""
    count = int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1
    lost = [number for number in range(count) if not kept >> number & 1]
    if not lost:
        return
    for number in lost:
        _call("prctl", "PR_CAPBSET_DROP", _PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    _call("capset", hex(kept), struct.pack("Ii", _CAPABILITIES, 0), struct.pack("6I", low, low, 0, high, high, 0))


def become(user: int) -> None:
    """Be a user and its group alone, with the files of this process in /proc its own as after an exec."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    _call("prctl", "PR_SET_DUMPABLE", _PR_SET_DUMPABLE, ctypes.c_ulong(1), 0, 0, 0)
