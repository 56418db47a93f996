"""Opens compressed and uncompressed logs from files, directories, and standard input."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import select
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from nccl_doctor.errors import UsageError
from nccl_doctor.logs.diagnose import CutOffError, LogSource

if TYPE_CHECKING:
    from typing_extensions import Buffer

WRITER_S, _WRITER_LOOK_S = 5.0, 0.05
"""Maximum time in seconds to wait until a process opens a named pipe for writing, and the interval between checks."""

BLOCK = 1 << 18
"""Number of bytes per read. A block of this size fits in the CPU cache; blocks of 4 MB double the reading time."""

_GZIP, _XZ, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_MOST_MEMORY = 128 << 20
"""Memory limit for decompression in bytes; ``xz -9`` needs 65 MiB, and ``zstd --ultra -22`` needs 128 MiB."""
_MOST_RATIO, _ENOUGH = 2000, 1 << 30
"""Maximum compression ratio, and the decompressed size in bytes up to which the ratio is not checked."""
_NOT_LOGS = frozenset(
    {".py", ".so", ".pt", ".pth", ".bin", ".safetensors", ".npy", ".npz", ".png", ".jpg", ".tar", ".zip", ".pyc"}
)


def sources(names: Sequence[str]) -> Iterator[LogSource]:
    """Yield the logs named on the command line; ``-`` is standard input."""
    for name in names:
        if name == "-":
            yield LogSource("-", stdin_blocks())
        else:
            for path in files(name):
                yield LogSource(str(path), file_blocks(path))


def files(name: str) -> list[Path]:
    """Return the file at a path or, for a directory, all files in the directory that might be logs."""
    path = Path(name)
    if not path.exists():
        raise UsageError(f"{name}: no such file or folder")
    if not path.is_dir():
        return [path]
    paths = sorted(
        inner
        for inner in path.rglob("*")
        if inner.is_file() and inner.suffix not in _NOT_LOGS and not inner.name.startswith(".")
    )
    if not paths:
        raise UsageError(f"{name}: no log in this folder")
    return paths


def size(names: Sequence[str]) -> int:
    """Return the total size, in bytes, of the named files and directories; standard input counts as 0."""
    return sum(path.stat().st_size for name in names if name != "-" for path in files(name))


def file_blocks(path: Path, *, follow_s: float | None = None) -> Iterator[bytes]:
    """Yield the contents of a file in blocks, decompressed if necessary.

    With ``follow_s``, an empty block is yielded whenever a file or pipe has no new data for ``follow_s`` seconds.

    Raises:
        UsageError: the file can't be read, its compressed data is damaged, or it is a pipe without a writer.
        CutOffError: the file is compressed and incomplete; all available data has been yielded.
    """
    try:
        with _opened(path) as file:
            head = file.peek(len(_XZ))
            if not compressed(head):
                pipe = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
                yield from _piped(file, follow_s) if pipe else _growing(file, follow_s)
                return
            unpack = _zstd_blocks if head.startswith(_ZSTD) else _xz_blocks if head.startswith(_XZ) else None
            most = max(_ENOUGH, path.stat().st_size * _MOST_RATIO)
            for block in unpack(file) if unpack else _blocks(gzip.GzipFile(fileobj=file).read1):
                most -= len(block)
                if most < 0:
                    raise UsageError(f"{path}: unpacks to more than {_MOST_RATIO} times its size, which no log does")
                yield block
    except (zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: is compressed but damaged: {error}") from error
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {error.strerror or error}") from error


class _Pipe(io.RawIOBase):
    """A named pipe, with the data that was read while waiting for a writer."""

    def __init__(self, descriptor: int, first: bytes) -> None:
        self._descriptor, self._first = descriptor, first

    def fileno(self) -> int:
        return self._descriptor

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        with memoryview(buffer) as room:
            part, self._first = self._first[: len(room)], self._first[len(room) :]
            if part:
                room[: len(part)] = part
                return len(part)
            return os.readv(self._descriptor, [room])

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


def _opened(path: Path) -> io.BufferedReader:
    """Open a file; raise UsageError for a named pipe without a writer, because opening the pipe might block forever."""
    unnamed = str(path).startswith(("/dev/", "/proc/"))  # <(command): its writer started before, or is gone
    if unnamed or not stat.S_ISFIFO(path.stat().st_mode):
        return path.open("rb")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        first = _first_words(path, descriptor)
        os.set_blocking(descriptor, True)
        return io.BufferedReader(_Pipe(descriptor, first))
    except BaseException:
        os.close(descriptor)
        raise


def _first_words(path: Path, descriptor: int) -> bytes:
    """Wait until a process opens a named pipe for writing, and return the first data, which might be empty."""
    deadline = time.monotonic() + WRITER_S
    while True:
        try:
            first = os.read(descriptor, BLOCK)
        except BlockingIOError:  # a writer has it open, but has written nothing yet
            return b""
        if first:
            return first
        if time.monotonic() >= deadline:
            raise UsageError(f"{path}: is a pipe to which no process wrote within {WRITER_S:g} s")
        time.sleep(_WRITER_LOOK_S)


def _piped(file: io.BufferedReader, patience_s: float | None) -> Iterator[bytes]:
    """Yield data from a pipe, and an empty block whenever no data arrives within ``patience_s`` seconds."""
    while block := file.read1(BLOCK):
        yield block
        while not select.select([file], [], [], patience_s)[0]:
            yield b""


def _blocks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while True:
        try:
            block = read(BLOCK)
        except EOFError as error:
            raise CutOffError from error
        if not block:
            return
        yield block


def _xz_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Decompress an xz file in blocks with a memory limit, which ``lzma.open()`` does not support."""
    unpacker, data, begun = lzma.LZMADecompressor(memlimit=_MOST_MEMORY), b"", False
    while True:
        if unpacker.eof:
            data = unpacker.unused_data.lstrip(b"\0") or file.read(BLOCK)
            unpacker, begun = lzma.LZMADecompressor(memlimit=_MOST_MEMORY), False
        elif unpacker.needs_input:
            data = file.read(BLOCK)
        if not data and unpacker.needs_input:
            if begun:
                raise CutOffError
            return
        begun = True
        block, data = unpacker.decompress(data, BLOCK), b""
        if block:
            yield block


def _growing(file: io.BufferedReader, follow_s: float | None) -> Iterator[bytes]:
    while (block := file.read1(BLOCK)) or follow_s is not None:
        if not block:
            time.sleep(follow_s or 0)
        yield block


def _zstd_blocks(file: BinaryIO) -> Iterator[bytes]:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd

    window: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _MOST_MEMORY.bit_length() - 1}
    try:
        with zstd.ZstdFile(file, options=window) as opened:
            yield from _blocks(opened.read1)
    except zstd.ZstdError as error:
        raise UsageError(f"{file.name}: is compressed but damaged: {error}") from error


def compressed(head: bytes) -> bool:
    return head.startswith((_GZIP, _XZ, _ZSTD))


def stdin_blocks(patience_s: float | None = None) -> Iterator[bytes]:
    """Yield data from standard input, and an empty block whenever no data arrives within ``patience_s`` seconds."""
    while True:
        while not select.select([sys.stdin], [], [], patience_s)[0]:
            yield b""
        block = os.read(sys.stdin.fileno(), BLOCK)
        if not block:
            return
        yield block
