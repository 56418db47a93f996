"""Utilities for the local machine, such as atomic writes, thread-safe caches, and resource limits."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Hashable, Mapping
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from nccl_doctor.errors import UsageError

_OPEN = re.compile(r"/(?:dev/fd|proc/(?:self|\d+)/fd)/(\d{1,9})")
_STREAMS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_LINKS = 40  # links in a row that Linux follows (path_resolution(7))


def state_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the directory for files that are kept between runs (XDG Base Directory Specification).

    The result is None if the user has no home directory, for example in a container without an account for the user ID.
    """
    state = environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return base / "nccl-doctor"


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a temporary file and rename it to ``path``, so no reader sees a partial file; raise OSError on failure.

    An existing file keeps its mode and owner, and a new ``private`` file is readable only by its owner. OSError is also
    raised if ``path`` is a symbolic link, or a file in a shared directory, that belongs to neither the user nor the
    directory's owner. Linux enforces similar rules with ``fs.protected_regular`` and ``fs.protected_symlinks``. Special
    files such as /dev/null are written to directly, and open files such as /dev/fd/3 are written to through their
    descriptors.
    """
    number = _descriptor(path)
    if number is not None:
        with os.fdopen(os.dup(number), "wb") as stream:
            stream.write(data)
        return
    place = _followed(path)
    _refuse_planted(place)
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    descriptor, draft = tempfile.mkstemp(prefix=f".{place.name[:100]}.", dir=place.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            _as_before(place, descriptor, private=private)
            os.fsync(descriptor)
        Path(draft).replace(place)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    _sync(place.parent)


def try_file(path: Path) -> None:
    """Raise the OSError that :func:`write_atomically` would raise, if any, without writing to the file."""
    number = _descriptor(path)
    if number is not None:
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "it is open for reading alone")
        return
    try:
        before = path.stat()
    except FileNotFoundError:
        _refuse_place(_followed(path).parent)
        return
    if stat.S_ISDIR(before.st_mode):
        raise _error(errno.EISDIR)
    _refuse_planted(_followed(path))
    if stat.S_ISREG(before.st_mode):
        _refuse_place(_followed(path).parent)
        if os.geteuid() not in (0, before.st_uid):  # a new file could not be given to the old one's owner
            raise _error(errno.EPERM)
    elif stat.S_ISSOCK(before.st_mode) or not os.access(path, os.W_OK, effective_ids=True):
        raise _error(errno.EACCES)


def try_folder(folder: Path) -> None:
    """Raise the OSError that creating ``folder`` and files in it would raise, if any, without creating anything."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    _refuse_place(there)


def _refuse_place(folder: Path) -> None:
    if not stat.S_ISDIR(folder.stat().st_mode):
        raise _error(errno.ENOTDIR)
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        raise _error(errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _descriptor(path: Path) -> int | None:
    """Return the file descriptor that a path such as /dev/stdout or /dev/fd/3 names, or None for other paths."""
    name = os.fspath(path)
    match = _OPEN.fullmatch(name)
    number = _STREAMS.get(name) if match is None else int(match[1])
    if match is not None and name.startswith("/proc/") and name.split("/")[2] not in ("self", str(os.getpid())):
        return None
    return number


def _followed(path: Path) -> Path:
    for _ in range(_LINKS):
        if not path.is_symlink():
            return path
        if path.lstat().st_uid not in (os.geteuid(), path.parent.stat().st_uid):
            raise OSError(errno.ELOOP, "a link that another user made stands there")
        path = path.parent / path.readlink()
    raise _error(errno.ELOOP)


def _refuse_planted(place: Path) -> None:
    """Raise OSError for another user's file in a shared directory, as Linux does with ``fs.protected_regular``.

    The owner of an existing file could read the data that is written to the file. Files that belong to the directory's
    owner are accepted.
    """
    try:
        before = place.lstat()
    except FileNotFoundError:
        return
    folder = place.parent.stat()
    shared = folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if shared and before.st_uid not in (os.geteuid(), folder.st_uid):
        raise OSError(errno.EACCES, "another user made that file, in a folder that others may write to")


def _as_before(place: Path, descriptor: int, *, private: bool) -> None:
    """Give the temporary file the mode and owner of the file that it replaces, if any."""
    try:
        before = place.lstat()
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        os.fchmod(descriptor, 0o600 if private else 0o666 & ~umask)
        return
    if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, before.st_mode & 0o777)


def _sync(folder: Path) -> None:
    """Flush a rename to disk, if the file system can sync directories."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


P = ParamSpec("P")
T = TypeVar("T")


def thread_safe_cache(make: Callable[P, T]) -> Callable[P, T]:
    """Cache results like :func:`functools.cache`, but compute each result only once, even with several threads.

    Keyword arguments are not part of the cache key.
    """
    kept: dict[Hashable, T] = {}
    locks: dict[Hashable, threading.Lock] = {}

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        with locks.setdefault(args, threading.Lock()):  # a thread that needs another value does not wait
            if args not in kept:
                kept[args] = make(*args, **kwargs)
            return kept[args]

    return made


_NO_THREAD = "can't start new thread"  # CPython's message, Modules/_threadmodule.c


def out_of_threads(error: BaseException | None) -> bool:
    """Return whether an error means that this machine can't start another thread or program (EAGAIN of fork(2))."""
    thread = isinstance(error, RuntimeError) and str(error) == _NO_THREAD
    return thread or (isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN)


def describe_thread_limit() -> str:
    """Return a one-sentence error message for a user whose thread limit is exhausted."""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    note = "" if limit == resource.RLIM_INFINITY else f" (ulimit -u is {limit})"
    return (
        f"this machine allows you no more threads{note}, and each host takes about two: end other programs of yours "
        "here, or start from a machine that allows more"
    )


def require_linux(named: str) -> None:
    """Raise UsageError if this machine does not run Linux.

    ``named`` is the name under which the user listed this machine as a host, or "this machine".
    """
    if sys.platform != "linux":
        what = "" if named == "this machine" else f"{named} is this machine, and "
        raise UsageError(
            f"{what}only Linux can be checked, which this machine does not run: name the job's hosts, in a hosts file "
            "or with -w"
        )
