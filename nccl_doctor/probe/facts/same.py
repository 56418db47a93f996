"""Digests of files, directories and Git checkouts that must be identical on all hosts.

Whoever owns a directory or symbolic link in a path can change where the path leads. If the probe runs as root and
another user can influence where a path leads, the probe accesses the path with that user's permissions
(probe/privileges.py). Below a path, the probe follows no symbolic links and opens only regular files.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import stat
from functools import partial
from typing import Any, Iterator

from nccl_doctor.probe import privileges
from nccl_doctor.probe.facts import checkout
from nccl_doctor.probe.tools import Unavailable, fact

MAX_FILES = 5000
MOST_LINKS = 40  # as path_resolution(7)
MOST_ANSWER = 8 << 20
SKIPPED_FOLDERS = frozenset({".git", "__pycache__", ".ipynb_checkpoints"})
"""Directories that are skipped because jobs don't read them and because their contents differ between hosts after a job
has run.
"""


@fact("same", slow=True)
def digest_paths(same: list[str], deadline: float) -> list[dict[str, Any]]:
    """Return a ``snapshot.SameEntry`` for each path.

    Relative paths are resolved from the home directory.
    """
    return [_entry(path, deadline) for path in same]


def _entry(path: str, deadline: float) -> dict[str, Any]:
    resolved = os.path.normpath(os.path.join(os.path.expanduser("~"), os.path.expanduser(path)))
    entry: dict[str, Any] = {"path": path, "resolved": resolved, "kind": "missing"}
    try:
        stranger = _stranger(resolved) if os.geteuid() == 0 else None
        details = _look(resolved, deadline) if stranger is None else _as_user(stranger, resolved, deadline)
    except (FileNotFoundError, NotADirectoryError):
        return entry
    except OSError as error:
        return {**entry, "kind": "file", "problem": error.strerror}
    except Unavailable as error:
        return {**entry, "kind": "file", "problem": str(error)}
    return {**entry, **details}


def _stranger(path: str) -> int | None:
    """Return the ID of the user other than root who can influence where a path leads, or None if only root can.

    Raise Unavailable if more than one user other than root can influence the path.
    """
    number, owners = resolve(path)
    os.close(number)
    strangers = sorted(owners - {0})
    if len(strangers) > 1:
        raise Unavailable(f"users {' and '.join(map(str, strangers))} can each change where it leads")
    return strangers[0] if strangers else None


def _as_user(uid: int, path: str, deadline: float) -> dict[str, Any]:
    """Call :func:`_look` in a child process with the permissions of a user."""
    try:
        known = pwd.getpwuid(uid)
        wanted = privileges.Credentials(uid, known.pw_gid, os.getgrouplist(known.pw_name, known.pw_gid))
    except KeyError:  # a user of another machine, on a shared file system
        wanted = privileges.Credentials(uid, uid, [])

    def look(_: None) -> bytes:
        try:
            details = _look(path, deadline)
        except (FileNotFoundError, NotADirectoryError):
            details = {}
        except OSError as error:
            details = {"kind": "file", "problem": error.strerror}
        return json.dumps(details).encode()

    answer = privileges.answer_of(partial(privileges.become, wanted), look, deadline, MOST_ANSWER)
    details: dict[str, Any] = json.loads(answer)
    return details


def resolve(path: str) -> tuple[int, set[int]]:
    """Open a path step by step with O_PATH and resolve symbolic links, without opening the target for reading.

    Returns:
        An O_PATH descriptor of the target, and the user IDs of the owners of the target and of all directories and
        symbolic links in the path.
    """
    owners: set[int] = set()
    here = os.open("/", os.O_PATH | os.O_CLOEXEC)
    names, links = _parts(path), 0
    while names:
        name = names.pop(0)
        try:
            following = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        except OSError:
            os.close(here)
            raise
        status = os.fstat(following)
        owners.add(status.st_uid)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink("", dir_fd=following)
            os.close(following)
            links += 1
            if links > MOST_LINKS:
                raise Unavailable("too many links on the way")
            names = _parts(target) + names
            if target.startswith("/"):
                os.close(here)
                here = os.open("/", os.O_PATH | os.O_CLOEXEC)
        else:
            os.close(here)
            here = following
    return here, owners


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _look(path: str, deadline: float) -> dict[str, Any]:
    root, owners = resolve(path)
    try:
        mode = os.fstat(root).st_mode
        if os.geteuid() == 0 and owners != {0}:
            raise Unavailable("it was redirected during the check")
        if not stat.S_ISDIR(mode):
            digest, size = _digest(root, "", deadline)
            return {"kind": "file", "files": {"": digest}, "size": size, "problem": None}
        details: dict[str, Any] = {"kind": "folder"}
        names = _files(root)
        try:
            if checkout.is_checkout(root):
                details["kind"] = "checkout"
                state = checkout.read(root, deadline)
                details.update(commit=state.commit, staged=state.staged)
                names = iter(state.changed)
        except Unavailable as error:
            return {**details, "problem": str(error)}
        return {**details, **_digests(root, names, deadline)}
    finally:
        os.close(root)


def _digests(root: int, names: Iterator[str], deadline: float) -> dict[str, Any]:
    files: dict[str, str] = {}
    size, problem = 0, None
    try:
        for name in names:
            if len(files) >= MAX_FILES:
                problem = f"has more than {MAX_FILES} files; name those that matter"
                break
            files[name], length = _digest(root, name, deadline)
            size += length
    except Unavailable as error:
        problem = str(error)
    return {"files": files, "size": size, "problem": problem}


def _digest(root: int, name: str, deadline: float) -> tuple[str, int]:
    """Return the SHA-256 digest and length of the file ``name`` below the directory ``root``.

    If ``name`` is empty, ``root`` is the file.
    """
    try:
        place = checkout.beneath(root, name) if name else os.dup(root)
    except (FileNotFoundError, NotADirectoryError):
        return "deleted", 0
    except OSError as error:
        raise Unavailable(f"{name} can't be read: {error.strerror}") from None
    try:
        mode = os.fstat(place).st_mode
        if stat.S_ISLNK(mode):
            return f"link to {os.readlink('', dir_fd=place)}"[:300], 0
        if not stat.S_ISREG(mode):
            return "no regular file", 0
        hasher, length = hashlib.sha256(), 0
        for block in checkout.blocks(place, deadline):
            hasher.update(block)
            length += len(block)
        return hasher.hexdigest(), length
    except OSError as error:
        raise Unavailable(f"{name or 'it'} can't be read: {error.strerror}") from None
    finally:
        os.close(place)


def _files(root: int) -> Iterator[str]:
    """Yield the paths of all files and symbolic links below a directory, in the same order on every host."""
    # by descriptor: os.fwalk verifies that a directory is the one that was listed, and follows no link
    for folder, subfolders, names, _ in os.fwalk(".", dir_fd=root):
        links = [subfolder for subfolder in subfolders if os.path.islink(f"/proc/self/fd/{root}/{folder}/{subfolder}")]
        subfolders[:] = sorted({*subfolders} - {*links} - SKIPPED_FOLDERS)
        for name in sorted([*names, *links]):
            yield os.path.normpath(os.path.join(folder, name))
