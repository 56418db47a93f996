"""The list of engines (ways to reach hosts), and functions for the engines of a cluster.

A new engine needs a module in ``model/engines/``, an entry in :func:`engines`, and a transport in
:mod:`nccl_doctor.transport`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from nccl_doctor.model.engines import containers, joined, kube, slurm, ssh
from nccl_doctor.model.engines.base import Engine, OptionWords, TransportKind
from nccl_doctor.text.hostlist import fold

if TYPE_CHECKING:  # a command line only needs the engines' options: loading the models would slow it down
    from nccl_doctor.model.cluster import Cluster, Node
    from nccl_doctor.model.finding import Command

_ENGINES: tuple[Engine, ...] = (ssh.ENGINE, kube.ENGINE, slurm.ENGINE, joined.ENGINE, containers.ENGINE)


def engines() -> tuple[Engine, ...]:
    """Return all engines. The first engine is used for hosts that belong to no other engine."""
    return _ENGINES


@cache
def kinds() -> dict[TransportKind, Engine]:
    """Return the engines, keyed by the names that ``--transport`` accepts."""
    reach = (engine for engine in engines() if not engine.wraps and engine.kinds is not None)
    return {kind: engine for engine in reach for kind in engine.kinds or (engine.name,)}


def reaching(nodes: Iterable[Node]) -> Engine:
    default, *others = engines()
    named = {name for node in nodes for name in node.access}
    return next((engine for engine in others if engine.name in named and not engine.wraps), default)


def engines_of(node: Node) -> tuple[Engine, ...]:
    """Return the engines through which a node's commands pass, outermost first.

    The result is empty if commands run directly on this machine.
    """
    first = reaching((node,))
    inner = (engine for engine in engines() if engine.wraps and engine.name in node.access)
    return (*(() if node.local and first is engines()[0] else (first,)), *inner)


def command_way(node: Node) -> str:
    """Return a phrase for how a command is run on a node, such as "over SSH"."""
    return (engines_of(node) or engines())[-1 if engines_of(node) else 0].way


def place_of(node: Node) -> str:
    """Return a phrase for the place where a node's commands run, or "" for the host itself."""
    return next((place for engine in engines_of(node) if (place := engine.place(node))), "")


def placed(commands: Iterable[Command], cluster: Cluster, *, inside: bool) -> tuple[Command, ...]:
    """Return the commands.

    Commands for a host with a container are marked as running inside or outside the container.
    """
    side, word = ("inside", "in") if inside else ("outside", "outside")
    places = {node.name: f"{word} {place}" for node in cluster.nodes if (place := place_of(node))}
    return tuple(
        command.model_copy(update={"place": places[command.host], "side": side}) if command.host in places else command
        for command in commands
    )


def written(options: Mapping[str, object]) -> Iterator[str]:
    """Yield the command-line words for ``options``, which maps names of engine flags to their values."""
    for flag in (flag for engine in engines() for flag in engine.flags if flag.name in options):
        yield flag.words[0]
        if options[flag.name]:
            yield str(options[flag.name])


_NO_FILE = ("this machine", "-w", "SLURM_JOB_NODELIST")  # sources of hosts that are not files (inventory/load.py)
_PIPES = ("/dev/", "/proc/")  # paths of ``<(command)`` and ``-``, which are gone when the next command runs
_OF_A_JOB = "Slurm job "  # begins the source of a Slurm job's nodes (inventory/slurm.py)


@dataclass(frozen=True)
class ClusterSource:
    """The source of a cluster's hosts: a hosts file, ``-w``, an engine that lists its hosts, or this machine."""

    cluster: Cluster

    @property
    def file(self) -> str | None:
        """The hosts file, or None if no file was given or if the file was a pipe, which can't be read again."""
        text = self.cluster.source
        return None if self.engine_words or text in _NO_FILE or text.startswith((*_PIPES, _OF_A_JOB)) else text

    @property
    def engine_words(self) -> OptionWords:
        """The command-line options with which an engine finds the same hosts again.

        The value is empty if the hosts do not come from an engine that lists its hosts.
        """
        return next((words for engine in engines() if (words := engine.cluster_words(self.cluster))), ())

    def container(self, node: Node) -> OptionWords:
        """Return the options that name a node's container, unless a hosts file already names the container."""
        words = chain.from_iterable(engine.node_words(node) for engine in engines() if engine.wraps)
        return tuple(
            (option, str(value))
            for option, origin, value in words
            if value is not None and self._is_needed(option, f"{node.name}.{origin}")
        )

    @property
    def arguments(self) -> tuple[str, ...]:
        """The command-line words that select the cluster's hosts.

        Options that the user gave in addition to a hosts file are included.
        """
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
        """Arguments of ``check`` and ``launch`` that select the cluster's hosts, with ``--engine`` if needed."""
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
        """Return whether a proposed command must repeat an option.

        The option must be repeated if its value came from the command line or an environment variable, or if neither a
        hosts file nor an engine provides the hosts.
        """
        by_options = self.file is None and not self.engine_words
        return by_options or self.cluster.origins.get(origin) == option or origin in self.cluster.variables


def _node_words(node: Node) -> Iterator[tuple[str, str, object]]:
    """Yield each command-line option for a node, with its key in ``Cluster.origins`` and its value.

    The value is None if the node uses the option's default.
    """
    yield "--python", "python", None if node.python == "python3" else node.python
    yield "--nproc-per-node", "nproc_per_node", node.nproc_per_node
    for engine in engines():
        yield from engine.node_words(node)
    devices = node.cuda_visible_devices
    yield "--env", "cuda_visible_devices", None if devices is None else f"CUDA_VISIBLE_DEVICES={devices}"
