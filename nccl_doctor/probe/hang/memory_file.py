"""Programs without a file on disk: memfd_create(2)."""

from __future__ import annotations

import os

MEMFD_CREATE = {"x86_64": 319, "aarch64": 279, "riscv64": 279, "ppc64le": 360}
"""The system call's number, by machine (the kernel's syscall tables)."""
MFD_CLOEXEC = 1


def write_memory_file(data: bytes) -> int:
    """Returns the descriptor of a file that exists in memory only.

    Raises:
        OSError: the kernel refuses.
    """
    # Pythons built against a glibc before 2.27, such as conda's, don't have the call.
    file = os.memfd_create("py-spy") if hasattr(os, "memfd_create") else _create_by_number()
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    return file


def _create_by_number() -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    file: int = libc.syscall(MEMFD_CREATE[os.uname().machine], b"py-spy", MFD_CLOEXEC)
    if file < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return file
