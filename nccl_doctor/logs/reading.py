"""Opens logs: files, folders, standard input, compressed or not. All of this room's I/O is here."""

from __future__ import annotations

import gzip
import lzma
import os
import select
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from nccl_doctor.errors import UsageError
from nccl_doctor.logs.diagnose import CutOffError, LogSource

BLOCK = 1 << 18
"""Bytes read at once: they stay in a processor's cache over all passes, which halves the time against 4 MB."""

_GZIP, _XZ, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_MOST_MEMORY = 128 << 20
"""Bytes that an archive may ask for to be unpacked: xz -9 needs 65 MiB, zstd --ultra -22 128 MiB."""
_MOST_RATIO, _ENOUGH = 2000, 1 << 30
"""The logs of a night of equal lines pack to a thousandth; up to a gibibyte nobody asks."""
_NOT_LOGS = frozenset(
    {".py", ".so", ".pt", ".pth", ".bin", ".safetensors", ".npy", ".npz", ".png", ".jpg", ".tar", ".zip", ".pyc"}
)


def sources(names: Sequence[str]) -> Iterator[LogSource]:
    """The logs that the command line names; ``-`` is standard input, a folder all files in it.

    Raises:
        UsageError: a name leads to no readable log.
    """
    for name in names:
        if name == "-":
            yield LogSource("-", stdin_blocks())
        else:
            for path in files(name):
                yield LogSource(str(path), file_blocks(path))


def files(name: str) -> list[Path]:
    """The files behind a name, those of a folder sorted; what is plainly no log is left out.

    Raises:
        UsageError: there is no such file, or no log in the folder.
    """
    path = Path(name)
    if not path.exists():
        raise UsageError(f"{name}: no such file or folder")
    if not path.is_dir():
        return [path]
    found = sorted(
        inner
        for inner in path.rglob("*")
        if inner.is_file() and inner.suffix not in _NOT_LOGS and not inner.name.startswith(".")
    )
    if not found:
        raise UsageError(f"{name}: no log in this folder")
    return found


def size(names: Sequence[str]) -> int:
    """Bytes of all files, as they are on the disk; 0 for standard input."""
    return sum(path.stat().st_size for name in names if name != "-" for path in files(name))


def file_blocks(path: Path, *, follow_s: float | None = None) -> Iterator[bytes]:
    """The content block by block, decompressed where its first bytes say that it is compressed.

    Args:
        path: the file.
        follow_s: at the end of a file that is not compressed, waits for more: an empty block each so many seconds.

    Raises:
        UsageError: it can't be read, or is damaged where it is compressed.
        CutOffError: behind all that there is, where it is compressed and ends too early; zstd does not tell.
    """
    try:
        with path.open("rb") as file:
            head = file.peek(len(_XZ))
            if not compressed(head):
                yield from _growing(file.read1, follow_s)
                return
            unpack = _zstd_blocks if head.startswith(_ZSTD) else _xz_blocks if head.startswith(_XZ) else _gzip_blocks
            yield from _bounded(unpack(file), path)
    except (zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: is compressed but damaged: {error}") from error
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {error.strerror or error}") from error


def _blocks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while True:
        try:
            block = read(BLOCK)
        except EOFError as error:
            raise CutOffError from error
        if not block:
            return
        yield block


def _bounded(blocks: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """The blocks, unless they are many more than a log of this size could hold."""
    most = max(_ENOUGH, path.stat().st_size * _MOST_RATIO)
    total = 0
    for block in blocks:
        total += len(block)
        if total > most:
            raise UsageError(f"{path}: unpacks to more than {_MOST_RATIO} times its size, which is no log")
        yield block


def _gzip_blocks(file: BinaryIO) -> Iterator[bytes]:
    with gzip.open(file) as opened:
        yield from _blocks(opened.read1)


def _xz_blocks(file: BinaryIO) -> Iterator[bytes]:
    """lzma.open() knows no limit of memory, of which an archive may ask four gigabytes."""
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


def _growing(read: Callable[[int], bytes], follow_s: float | None) -> Iterator[bytes]:
    while True:
        block = read(BLOCK)
        if block:
            yield block
        elif follow_s is None:
            return
        else:
            time.sleep(follow_s)
            yield b""


def _zstd_blocks(file: BinaryIO) -> Iterator[bytes]:
    import zstandard

    try:
        with zstandard.ZstdDecompressor(max_window_size=_MOST_MEMORY).stream_reader(
            file, read_across_frames=True
        ) as opened:
            yield from _blocks(opened.read1)
    except zstandard.ZstdError as error:
        raise UsageError(f"{file.name}: is compressed but damaged: {error}") from error


def compressed(head: bytes) -> bool:
    """Whether a file that begins so is compressed."""
    return head.startswith((_GZIP, _XZ, _ZSTD))


def stdin_blocks(patience_s: float | None = None) -> Iterator[bytes]:
    """Standard input as it comes: a block is whatever has arrived.

    Args:
        patience_s: an empty block where nothing came for so many seconds; None waits for ever.
    """
    number = sys.stdin.fileno()
    while True:
        ready, _, _ = select.select([number], [], [], patience_s)
        if not ready:
            yield b""
            continue
        block = os.read(number, BLOCK)
        if not block:
            return
        yield block
