"""Models of a cluster and its nodes, as described by the user."""

from __future__ import annotations

from functools import cache
from typing import Annotated, ClassVar, Protocol, TypeVar

from pydantic import Field, JsonValue, TypeAdapter

from nccl_doctor.model.base import FrozenModel, Holds

DEFAULT_MASTER_PORT = 29500  # torchrun's static rendezvous and ``env://`` use this port (torch/distributed/run.py)


class NodeOptions(Protocol):
    """Protocol for an engine's options for one node or for all nodes, implemented by frozen dataclasses or models."""

    engine: ClassVar[str]  # its key in :attr:`Node.access`


EngineOptions = TypeVar("EngineOptions", bound=NodeOptions)
JsonObject = dict[str, JsonValue]


def access(*options: NodeOptions) -> dict[str, JsonObject]:
    """Return the options in the form in which a node stores them, without options that have default values."""
    by_engine = {
        option.engine: _adapter(type(option)).dump_python(option, mode="json", by_alias=True, exclude_defaults=True)
        for option in options
    }
    return {engine: values for engine, values in by_engine.items() if values}


@cache
def _adapter(kind: type[EngineOptions]) -> TypeAdapter[EngineOptions]:
    return TypeAdapter(kind)


class Node(FrozenModel):
    """A node in torchrun's sense, defined by an entry in the list of hosts.

    Several nodes can run on one machine.
    """

    name: str  # as the user calls it; unique in the cluster
    address: str  # host name or IP address to which SSH and the other hosts connect
    node_rank: int  # position in the list, from 0
    nproc_per_node: int | None = None  # ranks to start there; None means "as many as the host has GPUs, or 1"
    cuda_visible_devices: str | None = None  # the variable's value; None leaves it unset
    python: str = "python3"  # interpreter for training
    # settings of each engine that reaches it, by the engine's name; :meth:`options` reads them
    access: Annotated[dict[str, JsonObject], Holds.ACCESS] = Field(default_factory=dict)
    # variables of the training job; origins of those set by an option or the launch command
    env: Annotated[dict[str, str], Holds.ENVIRONMENT] = Field(default_factory=dict)
    env_origins: dict[str, str] = Field(default_factory=dict)
    local: bool = False  # this machine: without SSH

    def options(self, kind: type[EngineOptions]) -> EngineOptions:
        result: EngineOptions = _adapter(kind).validate_python(self.access.get(kind.engine, {}))
        return result


class Cluster(FrozenModel):
    """All nodes of a job, and the job's master."""

    nodes: tuple[Node, ...]
    master_addr: str
    master_port: int = DEFAULT_MASTER_PORT
    # files and directories that must be the same on all hosts; relative ones start in the home directory
    same: tuple[str, ...] = ()
    engine: str | None = None  # program that the hosts are for, one of nccl_doctor.servers.SERVERS
    source: str = "this machine"  # origin: a path, ``-w``, ``SLURM_JOB_NODELIST``, or "this machine"
    # for ``nccl-doctor hosts``: "master_addr", "node1.address", … to "hosts.yaml:7" or "default"
    origins: dict[str, str] = Field(default_factory=dict)
    # environment variables that set the master: "master_addr" to "MASTER_ADDR"
    variables: dict[str, str] = Field(default_factory=dict)
    # settings of an engine for all nodes together, by its name; :meth:`options` reads them
    access: Annotated[dict[str, JsonObject], Holds.ACCESS] = Field(default_factory=dict)
    line: Annotated[str | None, Holds.LAUNCH_LINE] = None  # launch command of the job, if it is to be judged

    def options(self, kind: type[EngineOptions]) -> EngineOptions:
        result: EngineOptions = _adapter(kind).validate_python(self.access.get(kind.engine, {}))
        return result
