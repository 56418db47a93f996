"""Defines the parts of an inventory and their locations in the inventory's source, and reads files.

Hosts files and other documents are read with limits on size and time. A hosts file that is not text is refused.
"""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, Protocol, TypeVar

from nccl_doctor.errors import DoctorError, HostsFileError, UsageError
from nccl_doctor.model.cluster import NodeOptions
from nccl_doctor.model.engines.containers import InsideOptions

T = TypeVar("T")


@dataclass(frozen=True)
class SourceLocation:
    """The place where a value is set, such as a line of a file, ``-w`` or a variable.

    ``note`` is a remark that ``nccl-doctor hosts`` shows.
    """

    source: str
    line: int | None = None
    note: str = ""
    is_file: bool = True

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{where} ({self.note})" if self.note else where

    def at(self, line: int) -> SourceLocation:
        return replace(self, line=line)

    def noted(self, note: str) -> SourceLocation:
        return replace(self, note=note)

    def error(self, problem: str) -> DoctorError:
        if self.is_file:
            return HostsFileError(self.source, self.line, problem)
        return UsageError(f"{self.source}: {problem}")


@dataclass(frozen=True)
class Sourced(Generic[T]):
    """A value and the place where it is set."""

    value: T
    place: SourceLocation


@dataclass(frozen=True)
class Settings:
    """Settings of one host, of a group, or of all hosts. None means that a setting is not set."""

    python: Sourced[str] | None = None
    user: Sourced[str] | None = None
    port: Sourced[int] | None = None
    identity_file: Sourced[str] | None = None
    ssh_options: Sourced[tuple[str, ...]] | None = None
    inside: Sourced[InsideOptions] | None = None
    nproc_per_node: Sourced[int] | None = None
    cuda_visible_devices: Sourced[str] | None = None
    env: Mapping[str, Sourced[str]] = field(default_factory=dict)

    def over(self, base: Settings) -> Settings:
        """Return ``base`` overridden by these settings; each variable in ``env`` is overridden separately."""
        merged: dict[str, Any] = {f.name: getattr(self, f.name) or getattr(base, f.name) for f in fields(self)}
        return Settings(**{**merged, "env": {**base.env, **self.env}})

    @property
    def says_how_to_log_in(self) -> bool:
        """True if an SSH option is among these settings."""
        return bool(self.user or self.port or self.identity_file or self.ssh_options)


@dataclass(frozen=True)
class Entry:
    """A listed host.

    ``own`` settings override ``shared`` settings. ``access`` contains an engine's options for reaching the host.
    """

    name: Sourced[str]
    address: Sourced[str]
    own: Settings = Settings()
    shared: Settings = Settings()
    local: bool = False
    access: tuple[NodeOptions, ...] = ()


@dataclass(frozen=True)
class ParsedInventory:
    """The contents of one source of hosts. ``access`` contains the engine's facts about all hosts of the source."""

    place: SourceLocation
    entries: list[Entry]
    master_addr: Sourced[str] | None = None
    master_port: Sourced[int] | None = None
    same: tuple[Sourced[str], ...] = ()
    engine: Sourced[str] | None = None
    access: tuple[NodeOptions, ...] = ()


class HostSource(Protocol):
    """A source of hosts, such as a Slurm job, that is selected by options or by the environment."""

    @property
    def login(self) -> str:
        """The reason why ``--user`` and ``--port`` have no effect on the hosts, or "" if the options have an effect."""

    def read(self, where: str | None, environ: Mapping[str, str]) -> ParsedInventory:
        """Return the hosts that ``where`` selects, or raise UsageError if the hosts can't be found."""


MAX_BYTES = 1 << 20  # enough for 65,536 hosts, one per line; anything larger is another kind of file

STDIN = "/dev/stdin"  # ``-``; this name is used in messages, and because stdin can't be read again

_PIPE_SECONDS = 10.0


def read_text(path: str) -> str:
    """Return the text of a file or of a pipe, such as ``<(command)``."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        hint = (
            "; to name hosts directly, use -w: nccl-doctor check -w node1"
            if "/" not in path and "." not in path
            else ""
        )
        raise HostsFileError(path, None, f"no such file{hint}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise HostsFileError(path, None, f"can't be read: {getattr(error, 'strerror', None) or error}") from None
    return decode(data, path)


def decode(data: bytes, path: str) -> str:
    """Return the text of ``data``, without a byte order mark, or raise a HostsFileError."""
    if len(data) > MAX_BYTES:
        raise HostsFileError(path, None, f"bigger than {MAX_BYTES >> 20} MiB, too big for a hosts file")
    if b"\0" in data:
        raise HostsFileError(path, data[: data.index(b"\0")].count(b"\n") + 1, "a NUL byte: not a UTF-8 text file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        wrong = f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise HostsFileError(path, line, wrong) from None
    if not text.strip():
        raise HostsFileError(path, None, 'empty; a hosts file has at least "hosts:" and below it "- node1"')
    return text


def read_bytes(path: str, what: str = "a hosts file", most: int = MAX_BYTES, patience_s: float = 0.0) -> bytes:
    """Read a file or pipe, and return at most ``most`` + 1 bytes.

    The time limit is ``patience_s`` seconds, but at least 10 s.

    Raise HostsFileError, OSError or ValueError if the data can't be read.
    """
    if path == STDIN:  # read directly: behind ssh it may be a socket, which can't be opened by name
        if os.isatty(0):
            raise HostsFileError(STDIN, None, f"is a terminal; pipe {what} in, or name a file")
        return _drain(0, STDIN, most, max(patience_s, _PIPE_SECONDS))
    # O_NONBLOCK: opening a named pipe without a writer would block forever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            kind = "a directory" if stat.S_ISDIR(mode) else "a device or socket"
            raise HostsFileError(path, None, f"is {kind}; {what} is a plain file")
        return _drain(descriptor, path, most, max(patience_s, _PIPE_SECONDS))
    finally:
        os.close(descriptor)


def _drain(descriptor: int, path: str, most: int, patience_s: float) -> bytes:
    deadline = time.monotonic() + patience_s
    chunks: list[bytes] = []
    wanted = most + 1
    while wanted > 0:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            what = "the pipe was not closed" if chunks else "nothing arrived through the pipe"
            raise HostsFileError(path, None, f"{what} within {patience_s:g} s")
        chunk = os.read(descriptor, wanted)
        if not chunk:
            break
        chunks.append(chunk)
        wanted -= len(chunk)
    return b"".join(chunks)
