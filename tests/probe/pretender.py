"""A process that says of itself what it likes: its command line, its variables, as long as it likes.

``pretender.py NOTES ARGUMENTS VARIABLES LENGTH``: a file for the signals that it gets, two JSON lists of words, and how
many bytes of variables it has at least. It needs no right for any of it (prctl(2), PR_SET_MM_MAP).
"""

import ctypes
import json
import mmap
import os
import signal
import sys
import time
from pathlib import Path

PR_SET_MM, PR_SET_MM_MAP = 35, 14
FIELDS = (
    *("start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack"),
    *("arg_start", "arg_end", "env_start", "env_end"),
)
STAT = {
    "start_code": 26,
    "end_code": 27,
    "start_stack": 28,
    "start_data": 45,
    "end_data": 46,
    "start_brk": 47,
    "arg_start": 48,
    "arg_end": 49,
    "env_start": 50,
    "env_end": 51,
}
"""Where proc_pid_stat(5) counts them."""


class Map(ctypes.Structure):
    """struct prctl_mm_map (include/uapi/linux/prctl.h)."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in FIELDS),
        ("auxv", ctypes.c_void_p),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def memory(text: bytes) -> tuple[mmap.mmap, int]:
    """Memory that holds a text, and its address."""
    pages = mmap.mmap(-1, max(len(text), 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.write(text)
    return pages, ctypes.addressof(ctypes.c_char.from_buffer(pages))


def pretend(words: list[str], variables: list[str], length: int) -> list[mmap.mmap]:
    """Makes /proc/self/cmdline and environ say so; the memory must be kept."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    line = "".join(f"{word}\0" for word in words).encode()
    environ = "".join(f"{word}\0" for word in variables).encode()
    environ += b"x" * (length - len(environ))
    (one, arg), (other, env) = memory(line), memory(environ)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    places = {name: int(fields[number - 3]) for name, number in STAT.items()}
    places.update(brk=libc.sbrk(0), arg_start=arg, arg_end=arg + len(line), env_start=env, env_end=env + len(environ))
    wanted = Map(**places, auxv=None, auxv_size=0, exe_fd=0xFFFFFFFF)
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(wanted), ctypes.sizeof(wanted), 0):
        raise OSError(ctypes.get_errno(), "PR_SET_MM_MAP")
    return [one, other]


def main() -> None:
    notes = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, lambda got, _: os.write(notes, b"%d " % got))
    kept = pretend(json.loads(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]))
    print(os.getpid(), flush=True)  # noqa: T201 - it is ready
    while kept:
        time.sleep(600)


main()
