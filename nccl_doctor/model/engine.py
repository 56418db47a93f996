"""The ways of reaching hosts: each is one object that says all that is its own, and everything else asks it.

A new engine is a folder of ``transport/`` whose ``__init__`` has it as ``ENGINE``, and a line in :data:`FOLDERS`. They
are found by name, for they import this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from nccl_doctor.text.hostlist import fold

if TYPE_CHECKING:  # a command line asks the engines for their options: it waits for no model
    from pathlib import Path

    from nccl_doctor.model.cluster import Cluster, Node, NodeOptions
    from nccl_doctor.model.finding import Command

FOLDERS = (
    "ssh",  # reaches whatever no other one does
    "kube",
    "slurm",
    "containers",
)

Kind = str  # a name that ``--transport`` takes, of :func:`kinds`; the command line takes no other
Words = tuple[tuple[str, str | None], ...]
"""Options of a command line with their values; None for an option without one."""


@dataclass(frozen=True)
class Flag:
    """An option of the command line that chooses an engine's hosts."""

    name: str  # of its value
    words: tuple[str, ...]  # as it is written; the first stands in messages
    help: str  # ``{chooser}`` is the option that chooses among the hosts
    metavar: str | None = None
    default: str | None = None  # shown by the help
    bare: bool = False  # its value may be left out
    fix_port: bool = True  # ``fix-port`` has it, too


@dataclass(frozen=True)
class Entry:
    """A way in that came to nothing."""

    program: str  # the program of this machine that should have led in
    absent: bool = False  # there is no such program here
    seconds: float | None = None  # it gave no answer for so long; None where it ended
    stderr: str = ""  # its last lines
    greeting: tuple[str, ...] = ()  # the last lines that came on stdout


class Engine:
    """A way of reaching hosts, as it stands: a command behind a prefix, run on this machine."""

    name: ClassVar[str]  # in :attr:`Node.access`, and as the scope of a check
    options: ClassVar[type[NodeOptions]]  # its knowledge of a node
    way: ClassVar[str]  # how a command comes to a node, to be put behind "a command" in a sentence
    absent: ClassVar[str]  # says that no host is reached so
    wraps: ClassVar[bool] = False  # it leads on from a host that another engine reaches
    shares_machine: ClassVar[bool] = True  # several of its hosts may be one machine
    launches: ClassVar[bool] = False  # ``nccl-doctor launch`` writes lines that start a job on its hosts
    # the module of ``inventory/`` that finds its hosts (:class:`~nccl_doctor.inventory.parsed.HostSource`); None where
    # the user names them
    source: ClassVar[str | None] = None
    flags: ClassVar[tuple[Flag, ...]] = ()  # the options that choose its hosts
    implied: ClassVar[bool] = False  # the environment may mean its hosts, too
    kinds: ClassVar[tuple[Kind, ...]] = ()  # the names by which ``--transport`` asks for it; empty where it is its own

    def name_node(self, name: str) -> NodeOptions:  # noqa: ARG002 - other engines' hosts are found, not named
        """Return its options of a host that the user names."""
        return self.options()

    def prefix(self, node: Node) -> list[str]:
        """Return the arguments before ``/bin/sh -c COMMAND``."""
        raise NotImplementedError

    def transport(self, kind: Kind, ssh_config: Path | None, cluster: Cluster) -> Any:  # noqa: ANN401, ARG002 - a Transport, of a floor above
        """Return the transport to its hosts."""
        return import_module("nccl_doctor.transport.process").PrefixTransport(self)

    def wrap(self, outside: Any) -> Any:  # noqa: ANN401 - transports
        """Return the transport that leads on from the hosts of another one."""
        raise NotImplementedError

    def refusal(self, node: Node) -> Any:  # noqa: ANN401, ARG002 - an access failure, of a floor above
        """Return the failure that is known before any try; None for none."""
        return None

    def failure(self, node: Node, entry: Entry) -> Any:  # noqa: ANN401, ARG002 - likewise
        """Return the failure that a way in shows; None where its words mean nothing special."""
        return None

    def lacks(self, node: Node) -> frozenset[str]:  # noqa: ARG002 - as others need it
        """Return the facts that a host of it can't have."""
        return frozenset()

    def gpus(self, node: Node) -> int:  # noqa: ARG002 - as others need it
        """Return the GPUs that it gave the job on a node; 0 where it gives none out."""
        return 0

    def place(self, node: Node) -> str:  # noqa: ARG002 - as others need it
        """Return the words for where on a host its commands run: "the docker container train".

        Empty for the host itself.
        """
        return ""

    def cluster_words(self, cluster: Cluster) -> Words:  # noqa: ARG002 - as others need it
        """Return the options that choose these hosts again; empty where they are none of its own."""
        return ()

    def node_words(self, node: Node) -> Iterable[tuple[str, str, object]]:  # noqa: ARG002 - as others need it
        """Return the options that say the same of a node, with their names in :attr:`Cluster.origins` and values."""
        return ()


@cache
def engines() -> tuple[Engine, ...]:
    """Return all engines; the first reaches what no other one does."""
    return tuple(import_module(f"nccl_doctor.transport.{folder}").ENGINE for folder in FOLDERS)


@cache
def kinds() -> dict[Kind, Engine]:
    """Return the engines by the names that ``--transport`` takes."""
    return {kind: engine for engine in engines() if not engine.wraps for kind in engine.kinds or (engine.name,)}


def reaching(nodes: Iterable[Node]) -> Engine:
    """Return the engine that reaches nodes of one cluster."""
    default, *others = engines()
    named = {name for node in nodes for name in node.access}
    return next((engine for engine in others if engine.name in named and not engine.wraps), default)


def engines_of(node: Node) -> tuple[Engine, ...]:
    """Return the engines that a node's commands go through, the outermost first; none for this machine itself."""
    first = reaching((node,))
    inner = (engine for engine in engines() if engine.wraps and engine.name in node.access)
    return (*(() if node.local and first is engines()[0] else (first,)), *inner)


def command_way(node: Node) -> str:
    """Return how a command comes to a node, to be put behind "a command" in a sentence."""
    return (engines_of(node) or engines())[-1 if engines_of(node) else 0].way


def place_of(node: Node) -> str:
    """Return the words for where on its machine a node's commands run; empty for the machine itself."""
    return next((place for engine in engines_of(node) if (place := engine.place(node))), "")


def placed(commands: Iterable[Command], cluster: Cluster, *, inside: bool) -> tuple[Command, ...]:
    """Return the same, with the side of its container's wall for each whose host has one."""
    side = "in" if inside else "outside"
    places = {node.name: place for node in cluster.nodes if (place := place_of(node))}
    return tuple(
        command.model_copy(update={"place": f"{side} {places[command.host]}"}) if command.host in places else command
        for command in commands
    )


def written(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of engines' flags that were given, by their names."""
    for flag in (flag for engine in engines() for flag in engine.flags if flag.name in options):
        yield flag.words[0]
        if options[flag.name]:
            yield str(options[flag.name])


_NO_FILE = ("this machine", "-w", "SLURM_JOB_NODELIST")  # sources of hosts that are no file (inventory/load.py)
_PIPES = ("/dev/", "/proc/")  # where ``<(command)`` and ``-`` are: gone when the next command runs


@dataclass(frozen=True)
class ClusterSource:
    """Source of a cluster: a hosts file, -w, an engine that finds its hosts, or this machine."""

    cluster: Cluster

    @property
    def file(self) -> str | None:
        """The hosts file; None where there was none, or a pipe that can't be read again."""
        text = self.cluster.source
        return None if self.engine_words or text in _NO_FILE or text.startswith(_PIPES) else text

    @property
    def engine_words(self) -> Words:
        """The options that have an engine find these hosts again; empty where none did."""
        return next((words for engine in engines() if (words := engine.cluster_words(self.cluster))), ())

    def container(self, node: Node) -> Words:
        """Return the options for a node's container, where no file names it."""
        words = chain.from_iterable(engine.node_words(node) for engine in engines() if engine.wraps)
        return tuple(
            (option, str(value))
            for option, origin, value in words
            if value is not None and self._is_needed(option, f"{node.name}.{origin}")
        )

    @property
    def arguments(self) -> tuple[str, ...]:
        """Command-line words for these hosts, with options given beside a file."""
        chosen, left_out = self.cluster.origins.get("-w"), self.cluster.origins.get("-x")
        among = (*(("-w", chosen) if chosen else ()), *(("-x", left_out) if left_out else ()))
        if self.engine_words:
            words = (word for pair in self.engine_words for word in pair if word is not None)
            return *words, *among, *self._options()
        if self.file is None:
            return "-w", fold([node.name for node in self.cluster.nodes]), *self._options()
        return self.file, *among, *self._options()

    @property
    def check_words(self) -> tuple[str, ...]:
        """Command-line words after ``check`` and ``launch``, with the engine."""
        engine = self.cluster.engine
        return (*self.arguments, *(("--engine", engine) if engine and self._is_needed("--engine", "engine") else ()))

    def _options(self) -> Iterator[str]:
        from nccl_doctor.model.cluster import DEFAULT_MASTER_PORT

        cluster, engine = self.cluster, reaching(self.cluster.nodes)
        if engine is not engines()[0] and not self.engine_words:
            yield from ("--transport", engine.name)
        if cluster.master_port != DEFAULT_MASTER_PORT and self._is_needed("--master-port", "master_port"):
            yield from ("--master-port", str(cluster.master_port))
        if cluster.master_addr != cluster.nodes[0].address and self._is_needed("--master-addr", "master_addr"):
            yield from ("--master-addr", cluster.master_addr)
        first = cluster.nodes[0]
        for words in zip(*map(_node_words, cluster.nodes), strict=True):
            option, name, value = words[0]
            if value is not None and len(set(words)) == 1 and self._is_needed(option, f"{first.name}.{name}"):
                yield from (option, str(value))
        for variable, text in first.env.items():
            shared = all(node.env.get(variable) == text for node in cluster.nodes)
            if shared and self._is_needed("--env", f"{first.name}.env.{variable}"):
                yield from ("--env", f"{variable}={text}")

    def _is_needed(self, option: str, origin: str) -> bool:
        """Also what the environment said, which the next shell may not have."""
        by_options = self.file is None and not self.engine_words
        return by_options or self.cluster.origins.get(origin) == option or origin in self.cluster.variables


def _node_words(node: Node) -> Iterator[tuple[str, str, object]]:
    """Yield each option for a node, with its name in ``Cluster.origins``, and its value.

    None where that is the default.
    """
    yield "--python", "python", None if node.python == "python3" else node.python
    yield "--nproc-per-node", "nproc_per_node", node.nproc_per_node
    for engine in engines():
        yield from engine.node_words(node)
    devices = node.cuda_visible_devices
    yield "--env", "cuda_visible_devices", None if devices is None else f"CUDA_VISIBLE_DEVICES={devices}"
