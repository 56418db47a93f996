"""Writing a file whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

_LINKS = 40
"""As many links in a row as Linux follows (path_resolution(7))."""


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Writes a draft of a name nobody can guess beside the file, and renames it: a reader never sees half of it.

    The draft is its owner's alone, and gone where anything fails. The file then has the mode and owner of the one that
    it replaces, or of a new one. A link is followed as Linux does with ``fs.protected_symlinks``: not one that another
    user planted in a folder that all may write to. What is there and no plain file (/dev/null, /dev/stdout, a named
    pipe) is written to as it is.

    Args:
        path: the file.
        data: all of it.
        private: the file is its owner's alone, whatever was there before.

    Raises:
        OSError: it can't be written.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    place = _followed(path)
    descriptor, draft = tempfile.mkstemp(prefix=f".{place.name[:100]}.", dir=place.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if not private:
                _as_before(place, descriptor)
            os.fsync(descriptor)
        Path(draft).replace(place)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    _sync(place.parent)


def _followed(path: Path) -> Path:
    """Where a chain of links leads; folders on the way are the kernel's to judge."""
    for _ in range(_LINKS):
        if not path.is_symlink():
            return path
        if path.lstat().st_uid not in (os.geteuid(), path.parent.stat().st_uid):
            raise OSError(errno.ELOOP, "a link that another user made stands there")
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _as_before(place: Path, descriptor: int) -> None:
    """Gives the draft the mode and owner of the file that it replaces, or a new file's mode."""
    try:
        before = place.lstat()
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        os.fchmod(descriptor, 0o666 & ~umask)
        return
    if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, before.st_mode & 0o777)


def _sync(folder: Path) -> None:
    """The rename, too, is on the disk; folders that can't be opened or synced (some network filesystems) do without."""
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
