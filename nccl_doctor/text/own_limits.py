"""What this machine lets us have: Linux, and threads and processes, of which each host connected to takes a few."""

from __future__ import annotations

import errno
import resource
import sys

from nccl_doctor.errors import UsageError

_NO_THREAD = "can't start new thread"
"""CPython's words, Modules/_threadmodule.c."""


def out_of_threads(error: BaseException | None) -> bool:
    """Whether it says that this machine starts no further thread, or program (fork(2), EAGAIN).

    That is no fault of a host's, and none of the program's.
    """
    thread = isinstance(error, RuntimeError) and str(error) == _NO_THREAD
    return thread or (isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN)


def words() -> str:
    """For the user, in one sentence."""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    said = "" if limit == resource.RLIM_INFINITY else f" (ulimit -u is {limit})"
    return (
        f"this machine starts no further threads for you{said}, and each host takes about two: end other programs of "
        "yours here, or start from a machine that allows more"
    )


def require_linux(named: str) -> None:
    """For what looks at this machine as at a host of the job.

    Raises:
        UsageError: it runs something else, such as macOS, from which only other hosts can be looked at.
    """
    if sys.platform != "linux":
        what = "" if named == "this machine" else f"{named} is this machine, and "
        raise UsageError(
            f"{what}only Linux can be looked at, which this machine does not run: name the job's own hosts, in a hosts "
            "file or with -w"
        )
