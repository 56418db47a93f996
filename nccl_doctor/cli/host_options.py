"""The options that say which hosts, how they are reached, and what the job is there."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nccl_doctor.cli.options import (
    ConnectTimeout,
    Inside,
    Python,
    Transport,
    of_engines,
    of_hosts,
    of_job,
)

if TYPE_CHECKING:
    from nccl_doctor.inventory.overrides import Overrides
    from nccl_doctor.model.cluster import Cluster


@dataclass(frozen=True)
class NameOptions:
    """Hosts by their names."""

    where: Annotated[str | None, of_hosts("-w", metavar="LIST", help="Hosts by name: 'node[01-04,07]'.")] = None
    exclude: Annotated[str | None, of_hosts("-x", metavar="LIST", help="Hosts to leave out.")] = None
    engine: dict[str, Any] = field(default_factory=dict, metadata={"options": of_engines("-w")})

    def cluster(self, said: Overrides, path: str | None = None, transport: str | None = None) -> Cluster:
        """The hosts of a run, as :func:`nccl_doctor.inventory.load.load` has it.

        Args:
            said: what options say in place of a hosts file.
            path: the hosts file.
            transport: how they will be reached; None: not at all.
        """
        from nccl_doctor.inventory.load import load, requested

        return load(
            path,
            where=self.where,
            exclude=self.exclude,
            environ=os.environ,
            engine=requested(self.engine, transport, os.environ, named=path is not None),
            transport=transport,
            overrides=said,
        )


@dataclass(frozen=True)
class HostOptions(NameOptions):
    """The hosts of a run."""

    hosts: Annotated[
        str | None,
        typer.Argument(metavar="HOSTS", help="Hosts file (-: stdin); else -w, the Slurm job here, or this machine."),
    ] = None

    def cluster(self, said: Overrides, path: str | None = None, transport: str | None = None) -> Cluster:
        """As above; the hosts file is HOSTS."""
        return super().cluster(said, path or self.hosts, transport)


@dataclass(frozen=True)
class LoginOptions:
    """How the hosts are logged in to, and with what the probe runs there."""

    python: Python = None
    user: Annotated[str | None, of_hosts("--user", metavar="NAME", help="Who logs in to the hosts.")] = None
    port: Annotated[int | None, of_hosts("--port", metavar="PORT", help="Where sshd listens on the hosts.", min=1)] = (
        None
    )

    inside: Inside = None

    def overrides(self) -> Overrides:
        """What was said in place of the hosts file."""
        from nccl_doctor.inventory.overrides import Overrides

        return Overrides(**{name: value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True)
class JobOptions(LoginOptions):
    """What the hosts file could say, too."""

    master_port: Annotated[int | None, of_job("--master-port", metavar="PORT", help="The master port.", min=1)] = None
    master_addr: Annotated[str | None, of_job("--master-addr", metavar="HOST", help="The master's address.")] = None
    nproc_per_node: Annotated[
        int | None, of_job("--nproc-per-node", metavar="N", help="Ranks on each host.", min=1)
    ] = None
    env: Annotated[
        list[str] | None, of_job("--env", metavar="NAME=VALUE", help="A variable as the job will have it.")
    ] = None


@dataclass(frozen=True)
class ReachOptions:
    """How hosts are reached."""

    connect_timeout: ConnectTimeout = None
    transport: Transport = "auto"
