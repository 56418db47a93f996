"""The state of a Git checkout, read from the checkout's files.

The state consists of the commit, a digest of the index, and the paths of modified tracked files.

The program ``git`` is never run, because Git's configuration can name programs to run (filters, monitors, hooks). If
the probe ran ``git``, anyone who can change Git's configuration could run programs as the probe's user. The file
formats are described in gitrepository-layout(5) and gitformat-index(5) of Git 2.47.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
import struct
import time
from typing import Iterator, NamedTuple

from nccl_doctor.probe.tools import Unavailable

BLOCK = 1 << 20
MOST_TEXT = 64 << 10
MOST_PACKED_REFS = 16 << 20
MOST_INDEX = 64 << 20
OBJECT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
REFERENCE = re.compile(r"ref: (refs/(?!.*\.\.)[^\x00-\x20]{1,300})")
FOLDER = re.compile(r"gitdir: (.{1,4096})", re.DOTALL)
LINK, SUBMODULE, SPARSE = 0o120000, 0o160000, 0o040000
VALID, EXTENDED, SKIPPED = 0x8000, 0x4000, 0x4000
FIXED = struct.Struct(">10I")
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n"
"""Format of the pointer file that Git LFS commits instead of a large file (version 1 of the Git LFS specification)."""


class CheckoutState(NamedTuple):
    """The commit of a checkout, a digest of the index, and the paths of tracked files that differ from the index."""

    commit: str
    staged: str | None
    changed: list[str]


class FileEntry(NamedTuple):
    """A tracked file in the index of a Git checkout."""

    path: str
    mode: int
    identifier: str
    size: int  # modulo 2**32, like the modification time in seconds
    modified: tuple[int, int]
    ignored: bool  # not compared with the working tree


def is_checkout(root: int) -> bool:
    try:
        os.close(os.open(".git", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root))
    except FileNotFoundError:
        return False
    return True


def read(root: int, deadline: float) -> CheckoutState:
    """Return the state of a checkout. Raise Unavailable if the checkout can't be read or has an unknown format."""
    try:
        folder = _git_folder(root)
        try:
            commit = _commit(folder)
            data = _content(folder, "index", MOST_INDEX)
            if data is None:
                return CheckoutState(commit, None, [])
            entries = parse_index(data, len(commit) // 2)
            written = os.stat("index", dir_fd=folder, follow_symlinks=False).st_mtime_ns
        finally:
            os.close(folder)
        changed = [entry.path for entry in entries if _differs(root, entry, written, deadline)]
    except OSError as error:
        raise Unavailable(f"is a Git checkout that can't be read: {error.strerror}") from None
    except (ValueError, IndexError, struct.error):
        raise Unavailable("is a Git checkout in a format that is not known") from None
    listing = "".join(f"{entry.mode:o} {entry.identifier} {entry.path}\0" for entry in entries)
    return CheckoutState(commit, hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest(), changed)


def _git_folder(root: int) -> int:
    """Open the Git directory, which contains HEAD and the index.

    In a worktree or submodule, ``.git`` is a file that points to the Git directory.
    """
    place = os.open(".git", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    status = os.fstat(place)
    if stat.S_ISDIR(status.st_mode):
        return place
    os.close(place)
    match = FOLDER.fullmatch((_content(root, ".git", MOST_TEXT) or b"").decode("utf-8", "surrogateescape").rstrip("\n"))
    if match is None:
        raise ValueError
    _only_root_chose(".git", status, os.fstat(root))
    return os.open(match[1], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)


def _only_root_chose(name: str, file: os.stat_result, folder: os.stat_result) -> None:
    """Raise Unavailable if a user other than root can change or replace the file ``name``, which contains a path.

    The check applies only if the probe runs as root.
    """
    other = file.st_uid != 0 or folder.st_uid != 0 or (file.st_mode | folder.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    if os.geteuid() == 0 and other:
        raise Unavailable(f"is a Git checkout whose {name} leads to a place that users other than root chose")


def _commit(folder: int) -> str:
    head = _text(folder, "HEAD")
    if head is None:
        raise Unavailable("is a Git checkout without HEAD")
    if OBJECT_ID.fullmatch(head):
        return head
    match = REFERENCE.fullmatch(head)
    if match is None:
        raise ValueError
    if match[1] == "refs/heads/.invalid":
        raise Unavailable("is a Git checkout whose references are in reftables, which are not read")
    common = _common(folder)
    places = [folder] if common is None else [folder, common]
    try:
        for place in places:
            commit = _text(place, match[1])
            if commit is not None and OBJECT_ID.fullmatch(commit):
                return commit
            packed = (_content(place, "packed-refs", MOST_PACKED_REFS) or b"").decode("utf-8", "replace")
            for line in packed.splitlines():
                identifier, _, name = line.partition(" ")
                if name == match[1] and OBJECT_ID.fullmatch(identifier):
                    return identifier
    finally:
        for place in places[1:]:
            os.close(place)
    raise Unavailable("is a Git checkout without a commit")


def _common(folder: int) -> int | None:
    """Open the Git directory that a worktree shares with its repository.

    Return None if ``folder`` does not belong to a worktree.
    """
    name = _text(folder, "commondir")
    if name is None:
        return None
    named = os.stat("commondir", dir_fd=folder, follow_symlinks=False)
    _only_root_chose(".git/commondir", named, os.fstat(folder))
    return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)


def parse_index(data: bytes, width: int) -> list[FileEntry]:
    """Return the entries of a Git index of version 2, 3 or 4. Object identifiers in the index have ``width`` bytes."""
    signature, version, count = struct.unpack(">4s2I", data[:12])
    if signature != b"DIRC" or version not in (2, 3, 4) or count * (FIXED.size + width) > len(data):
        raise ValueError
    entries: list[FileEntry] = []
    at, before = 12, b""
    for _ in range(count):
        begin = at
        values = FIXED.unpack_from(data, at)
        at += FIXED.size
        identifier = data[at : at + width].hex()
        (flags,) = struct.unpack_from(">H", data, at + width)
        at += width + 2
        more = 0
        if version >= 3 and flags & EXTENDED:
            (more,) = struct.unpack_from(">H", data, at)
            at += 2
        if version == 4:
            kept, at = _number(data, at)
            before = before[: len(before) - kept] if kept else before
        else:
            before = b""
        end = data.index(b"\0", at)
        before += data[at:end]
        at = end + 1 if version == 4 else begin + ((end - begin) // 8 + 1) * 8
        path = before.decode("utf-8", "surrogateescape")
        if not path or path.startswith("/") or ".." in path.split("/"):
            raise ValueError
        ignored = bool(flags & VALID or more & SKIPPED)
        entries.append(FileEntry(path, values[6], identifier, values[9], (values[2], values[3]), ignored))
    while at + 8 <= len(data) - width:
        name, length = struct.unpack_from(">4sI", data, at)
        if name == b"link":
            raise Unavailable("is a Git checkout with a split index, which is not read")
        at += 8 + length
    return entries


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a variable-length number in a version 4 index and the position after the number.

    The number is encoded like the offsets in gitformat-pack(5).
    """
    value = data[at] & 127
    while data[at] & 128:
        at += 1
        value = ((value + 1) << 7) | (data[at] & 127)
        if value > MOST_INDEX:
            raise ValueError
    return value, at + 1


def _differs(root: int, entry: FileEntry, written_ns: int, deadline: float) -> bool:
    kind = entry.mode & 0o170000
    if entry.ignored or kind == SPARSE:
        return False
    try:
        place = beneath(root, entry.path)
    except (FileNotFoundError, NotADirectoryError):
        return kind != SUBMODULE
    try:
        status = os.fstat(place)
        if kind == SUBMODULE:
            return stat.S_ISDIR(status.st_mode) and is_checkout(place) and _submodule_commit(place) != entry.identifier
        if kind == LINK and stat.S_ISLNK(status.st_mode):
            return _blob(os.readlink(b"", dir_fd=place), len(entry.identifier)) != entry.identifier
        return kind == LINK or _is_changed(place, status, entry, written_ns, deadline)
    finally:
        os.close(place)


def _is_changed(place: int, status: os.stat_result, entry: FileEntry, written_ns: int, deadline: float) -> bool:
    if not stat.S_ISREG(status.st_mode) or bool(entry.mode & 0o100) != bool(status.st_mode & 0o100):
        return True
    modified = (status.st_mtime_ns // 10**9 & 0xFFFFFFFF, status.st_mtime_ns % 10**9)
    alike = status.st_size & 0xFFFFFFFF == entry.size and modified == entry.modified
    # a file that changed in the moment in which the index was written may look the same
    if alike and status.st_mtime_ns < written_ns:
        return False
    return entry.identifier not in _identifiers(place, status.st_size, len(entry.identifier), deadline)


def _submodule_commit(place: int) -> str:
    folder = _git_folder(place)
    try:
        return _commit(folder)
    finally:
        os.close(folder)


def _identifiers(place: int, size: int, digits: int, deadline: float) -> tuple[str, str]:
    """Return the object identifiers that a file would have as a blob and as a Git LFS pointer."""
    blob_hash, whole = _hasher(digits), hashlib.sha256()
    blob_hash.update(b"blob %d\0" % size)
    for block in blocks(place, deadline):
        blob_hash.update(block)
        whole.update(block)
    return blob_hash.hexdigest(), _blob(LFS.format(whole.hexdigest(), size).encode(), digits)


def _blob(data: bytes, digits: int) -> str:
    hasher = _hasher(digits)
    hasher.update(b"blob %d\0" % len(data) + data)
    return hasher.hexdigest()


def _hasher(digits: int) -> hashlib._Hash:
    return hashlib.sha256() if digits == 64 else hashlib.sha1()  # noqa: S324 - what Git calls an object


def beneath(root: int, path: str) -> int:
    """Open a path below a directory with O_PATH, without following symbolic links."""
    here = os.dup(root)
    for name in path.split("/"):
        try:
            following = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        finally:
            os.close(here)
        here = following
    return here


def blocks(place: int, deadline: float) -> Iterator[bytes]:
    """Yield the contents of a regular file in blocks.

    ``place`` is an O_PATH descriptor. Raise Unavailable after the deadline.
    """
    number = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        while True:
            if time.monotonic() > deadline:
                raise Unavailable("too much to read in the time there is; name the files that matter")
            block = os.read(number, BLOCK)
            if not block:
                return
            yield block
    finally:
        os.close(number)


def _content(folder: int, path: str, most: int) -> bytes | None:
    """Return the contents of a regular file below a directory, or None if there is no such file."""
    try:
        place = beneath(folder, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        status = os.fstat(place)
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > most:
            raise ValueError
        return b"".join(blocks(place, math.inf))
    finally:
        os.close(place)


def _text(folder: int, path: str) -> str | None:
    data = _content(folder, path, MOST_TEXT)
    return None if data is None else data.decode("utf-8", "replace").strip()
