"""The ways of reaching hosts: each is one object that says all that is its own, and everything else asks it.

A new engine is a folder of ``transport/`` whose ``__init__`` has it as ``ENGINE``, and a line in :data:`FOLDERS`. They
are found by name, for they import this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from nccl_doctor.model.cluster import Cluster, Node, NodeOptions
from nccl_doctor.model.finding import Command

FOLDERS = (
    "ssh",  # reaches whatever no other one does
    "kube",
    "slurm",
    "containers",
)

Kind = str
"""A name that ``--transport`` takes, of :func:`kinds`; the command line takes no other."""
Words = tuple[tuple[str, str | None], ...]
"""Options of a command line with their values; None for an option without one."""


@dataclass(frozen=True)
class Flag:
    """An option of the command line that chooses an engine's hosts.

    Attributes:
        name: of its value.
        words: as it is written; the first stands in messages.
        help: ``{chooser}`` is the option that chooses among the hosts.
        default: shown by the help.
        switch: it has no value.
        bare: its value may be left out.
        fix_port: ``fix-port`` has it, too.
    """

    name: str
    words: tuple[str, ...]
    help: str
    metavar: str | None = None
    default: str | None = None
    switch: bool = False
    bare: bool = False
    fix_port: bool = True


@dataclass(frozen=True)
class Entry:
    """A way in that came to nothing.

    Attributes:
        program: the program of this machine that should have led in.
        absent: there is no such program here.
        seconds: it gave no answer for so long; None where it ended.
        stderr: its last lines.
        greeting: the last lines that came on stdout.
    """

    program: str
    absent: bool = False
    seconds: float | None = None
    stderr: str = ""
    greeting: tuple[str, ...] = ()


class Engine:
    """One way of reaching hosts, as it stands: a command behind a prefix, run on this machine.

    Attributes:
        name: in :attr:`Node.access`, and as the scope of a check.
        options: its knowledge of a node.
        way: how a command comes to a node, to be put behind "a command" in a sentence.
        absent: says that no host is reached so.
        wraps: it leads on from a host that another engine reaches.
        shares_machine: several of its hosts may be one machine.
        launches: ``nccl-doctor launch`` writes lines that start a job on its hosts.
        source: the module of ``inventory/`` that finds its hosts (:class:`~nccl_doctor.inventory.parsed.HostSource`);
            None where the user names them.
        flags: the options that choose its hosts.
        kinds: the names by which ``--transport`` asks for it; empty where it is its own.
    """

    name: ClassVar[str]
    options: ClassVar[type[NodeOptions]]
    way: ClassVar[str]
    absent: ClassVar[str]
    wraps: ClassVar[bool] = False
    shares_machine: ClassVar[bool] = True
    launches: ClassVar[bool] = False
    source: ClassVar[str | None] = None
    flags: ClassVar[tuple[Flag, ...]] = ()
    kinds: ClassVar[tuple[Kind, ...]] = ()

    def name_node(self, name: str) -> NodeOptions:  # noqa: ARG002 - other engines' hosts are found, not named
        """Its options of a host that the user names."""
        return self.options()

    def prefix(self, node: Node) -> list[str]:
        """The arguments before ``/bin/sh -c COMMAND``."""
        raise NotImplementedError

    def transport(self, kind: Kind, ssh_config: Path | None, cluster: Cluster) -> Any:  # noqa: ANN401, ARG002 - a Transport, of a floor above
        """The transport to its hosts."""
        return import_module("nccl_doctor.transport.process").PrefixTransport(self)

    def wrap(self, outside: Any) -> Any:  # noqa: ANN401 - transports
        """The transport that leads on from the hosts of another one."""
        raise NotImplementedError

    def refusal(self, node: Node) -> Any:  # noqa: ANN401, ARG002 - an access failure, of a floor above
        """The failure that is known before any try; None for none."""
        return None

    def failure(self, node: Node, entry: Entry) -> Any:  # noqa: ANN401, ARG002 - likewise
        """The failure that a way in shows; None where its words mean nothing special."""
        return None

    def lacks(self, node: Node) -> frozenset[str]:  # noqa: ARG002 - as others need it
        """The facts that a host of it can't have."""
        return frozenset()

    def gpus(self, node: Node) -> int:  # noqa: ARG002 - as others need it
        """The GPUs that it gave the job on a node; 0 where it gives none out."""
        return 0

    def place(self, node: Node) -> str:  # noqa: ARG002 - as others need it
        """The words for where on a host its commands run: "the docker container train"; empty for the host itself."""
        return ""

    def cluster_words(self, cluster: Cluster) -> Words:  # noqa: ARG002 - as others need it
        """The options that choose these hosts again; empty where they are none of its own."""
        return ()

    def node_words(self, node: Node) -> Iterable[tuple[str, str, object]]:  # noqa: ARG002 - as others need it
        """The options that say the same of a node, each with its name in :attr:`Cluster.origins` and its value."""
        return ()


@cache
def engines() -> tuple[Engine, ...]:
    """All engines; the first reaches what no other one does."""
    return tuple(import_module(f"nccl_doctor.transport.{folder}").ENGINE for folder in FOLDERS)


@cache
def kinds() -> dict[Kind, Engine]:
    """The engines by the names that ``--transport`` takes."""
    return {kind: engine for engine in engines() if not engine.wraps for kind in engine.kinds or (engine.name,)}


def reaching(nodes: Iterable[Node]) -> Engine:
    """The engine that reaches nodes of one cluster."""
    default, *others = engines()
    named = {name for node in nodes for name in node.access}
    return next((engine for engine in others if engine.name in named and not engine.wraps), default)


def engines_of(node: Node) -> tuple[Engine, ...]:
    """The engines that a node's commands go through, the outermost first; none for this machine itself."""
    first = reaching((node,))
    inner = (engine for engine in engines() if engine.wraps and engine.name in node.access)
    return (*(() if node.local and first is engines()[0] else (first,)), *inner)


def command_way(node: Node) -> str:
    """How a command comes to a node, to be put behind "a command" in a sentence."""
    return (engines_of(node) or engines())[-1 if engines_of(node) else 0].way


def place_of(node: Node) -> str:
    """The words for where on its machine a node's commands run; empty for the machine itself."""
    return next((place for engine in engines_of(node) if (place := engine.place(node))), "")


def placed(commands: Iterable[Command], cluster: Cluster, *, inside: bool) -> tuple[Command, ...]:
    """The same, with the side of its container's wall for each whose host has one."""
    side = "in" if inside else "outside"
    places = {node.name: place for node in cluster.nodes if (place := place_of(node))}
    return tuple(
        command.model_copy(update={"place": f"{side} {places[command.host]}"}) if command.host in places else command
        for command in commands
    )


def written(options: Mapping[str, Any]) -> Iterator[str]:
    """The words of engines' flags that were given, by their names."""
    for flag in (flag for engine in engines() for flag in engine.flags if flag.name in options):
        yield flag.words[0]
        if not flag.switch and options[flag.name]:
            yield str(options[flag.name])
