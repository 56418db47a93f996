"""What a source of hosts says, before it is judged as a whole: values, each with the place where it was said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

from nccl_doctor.errors import DoctorError, HostsFileError, UsageError
from nccl_doctor.model.cluster import NodeOptions
from nccl_doctor.transport.containers.options import InsideOptions

T = TypeVar("T")


@dataclass(frozen=True)
class SourceLocation:
    """Where something was said.

    Attributes:
        source: a file as the user named it, ``-w``, or an environment variable.
        line: of the file, counted from 1.
        note: what else ``nccl-doctor hosts`` tells of the place, such as "for all hosts".
        is_file: whether ``source`` is a file, which decides the exception.
    """

    source: str
    line: int | None = None
    note: str = ""
    is_file: bool = True

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{where} ({self.note})" if self.note else where

    def at(self, line: int) -> SourceLocation:
        """The same source at another line."""
        return replace(self, line=line)

    def noted(self, note: str) -> SourceLocation:
        """The same place with a note."""
        return replace(self, note=note)

    def error(self, problem: str) -> DoctorError:
        """The exception that tells ``problem``, what is wrong and what is allowed, and this place."""
        if self.is_file:
            return HostsFileError(self.source, self.line, problem)
        return UsageError(f"{self.source}: {problem}")


@dataclass(frozen=True)
class Sourced(Generic[T]):
    """A value and where it was said."""

    value: T
    place: SourceLocation


@dataclass(frozen=True)
class Settings:
    """What may be said of one host, of a group of hosts, or of all; None where nothing was."""

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
        """These settings, and those of ``base`` where these say nothing; ``env`` variable by variable."""
        merged: dict[str, Any] = {f.name: getattr(self, f.name) or getattr(base, f.name) for f in fields(self)}
        return Settings(**{**merged, "env": {**base.env, **self.env}})

    @property
    def says_how_to_log_in(self) -> bool:
        """Whether any option of SSH is among them."""
        return bool(self.user or self.port or self.identity_file or self.ssh_options)


@dataclass(frozen=True)
class Entry:
    """One host of the list.

    Attributes:
        own: what was said of this host alone; wins over ``shared``.
        shared: what was said of it together with others.
        local: the source says that it is to be reached without SSH.
        access: how an engine reaches it; then neither SSH nor that it may be this machine counts.
    """

    name: Sourced[str]
    address: Sourced[str]
    own: Settings = Settings()
    shared: Settings = Settings()
    local: bool = False
    access: tuple[NodeOptions, ...] = ()


@dataclass(frozen=True)
class ParsedInventory:
    """All that one source of hosts says: a file, -w, Slurm, an engine or this machine.

    Attributes:
        access: what an engine knows of all hosts together.
    """

    place: SourceLocation
    entries: list[Entry]
    master_addr: Sourced[str] | None = None
    master_port: Sourced[int] | None = None
    same: tuple[Sourced[str], ...] = ()
    access: tuple[NodeOptions, ...] = ()
