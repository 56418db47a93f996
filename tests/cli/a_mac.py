"""nccl-doctor on a controller that is said to be a Mac: no Linux, and none of its own calls; its psutil stays Linux'."""

from __future__ import annotations

import os
import select
import signal
import sys
import sysconfig

import psutil  # noqa: F401 - before the platform is another: macOS' can't be loaded here

from nccl_doctor.cli.main import main

LINUX_ALONE = {
    os: (
        "eventfd", "getrandom", "getxattr", "memfd_create", "pidfd_open", "pipe2", "posix_fadvise", "sched_getaffinity",
        "sched_setaffinity", "setns", "setresuid", "splice", "unshare",
    ),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
    select: ("epoll",),
}  # fmt: skip
"""What Python's documentation says is there on Linux and not on macOS."""

sysconfig.get_config_vars()  # from a file that the platform names
for module, names in LINUX_ALONE.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
main()
