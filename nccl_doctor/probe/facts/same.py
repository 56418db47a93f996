"""Digests of the files and folders that the hosts file wants to be the same everywhere."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from typing import Any, Iterator

from nccl_doctor.probe.reading import Unavailable, fact
from nccl_doctor.probe.tools import output

MAX_FILES = 5000
BLOCK = 1024 * 1024
SKIPPED_FOLDERS = frozenset({".git", "__pycache__", ".ipynb_checkpoints"})
"""Hold nothing that a job reads, and differ between hosts that ran it."""
GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
"""Writes nothing and starts no monitor."""


@fact("same", slow=True)
def digest_paths(same: list[str], deadline: float) -> list[dict[str, Any]]:
    """snapshot.SameEntry of each path; a relative one starts from the home directory, as a command over SSH does."""
    return [_entry(path, deadline) for path in same]


def _entry(path: str, deadline: float) -> dict[str, Any]:
    resolved = os.path.normpath(os.path.join(os.path.expanduser("~"), os.path.expanduser(path)))
    entry: dict[str, Any] = {"path": path, "resolved": resolved, "kind": "missing"}
    try:
        mode = os.stat(resolved).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return entry
    except OSError as error:
        return {**entry, "kind": "file", "problem": error.strerror}
    folder = stat.S_ISDIR(mode)
    try:
        entry["kind"] = "folder" if folder else "file"
        names = _walk(resolved) if folder else iter([""])
        if folder and os.path.exists(os.path.join(resolved, ".git")):
            entry["kind"] = "checkout"
            entry["commit"], names = _checkout(resolved, deadline)
        return {**entry, **_digests(resolved, names, deadline)}
    except Unavailable as error:
        return {**entry, "problem": str(error)}


def _digests(root: str, names: Iterator[str], deadline: float) -> dict[str, Any]:
    files: dict[str, str] = {}
    size = 0
    problem = None
    for name in names:
        if len(files) >= MAX_FILES:
            problem = f"has more than {MAX_FILES} files; name those that matter"
            break
        try:
            files[name], length = _digest(os.path.join(root, name) if name else root, deadline)
            size += length
        except Unavailable as error:
            problem = str(error)
            break
    return {"files": files, "size": size, "problem": problem}


def _digest(path: str, deadline: float) -> tuple[str, int]:
    try:
        # A FIFO of that name must not make us wait.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return "deleted", 0
    except OSError as error:
        raise Unavailable(f"{path} can't be read: {error.strerror}") from None
    hasher, length = hashlib.sha256(), 0
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return "no regular file", 0
        while True:
            if time.monotonic() > deadline:
                raise Unavailable("too much to read in the time there is; name the files that matter")
            block = os.read(number, BLOCK)
            if not block:
                return hasher.hexdigest(), length
            hasher.update(block)
            length += len(block)
    finally:
        os.close(number)


def _walk(root: str) -> Iterator[str]:
    """Every file below, by its path within, in an order that is the same everywhere."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(set(subfolders) - SKIPPED_FOLDERS)
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), root)


def _checkout(root: str, deadline: float) -> tuple[str, Iterator[str]]:
    """The commit, and the tracked files that are not as it has them.

    A checkout's configuration names programs (filter.NAME.clean), and git before 2.35.2 runs those of anybody's.
    """
    if {os.lstat(path).st_uid for path in (root, os.path.join(root, ".git"))} - {0, os.geteuid()}:
        raise Unavailable("is a Git checkout of another user's, in which no git is run")
    try:
        commit = output([*GIT, "-C", root, "rev-parse", "HEAD"], deadline).strip()
        told = output([*GIT, "-C", root, "status", "--porcelain", "-z", "-uno", "--no-renames"], deadline)
    except FileNotFoundError:
        raise Unavailable("is a Git checkout, and git is not installed") from None
    return commit, iter(line[3:] for line in told.split("\0") if len(line) > 3)
