"""Where a cluster came from, as the words that name it again on a command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from nccl_doctor.model.cluster import DEFAULT_MASTER_PORT, ENVIRONMENT, Cluster, Node
from nccl_doctor.model.engine import Words, engines, reaching
from nccl_doctor.text.hostlist import fold

_NO_FILE = ("this machine", "-w", "SLURM_JOB_NODELIST")
"""Sources of hosts that are no file (inventory/load.py)."""
_PIPES = ("/dev/", "/proc/")
"""Where ``<(command)`` and ``-`` are: gone when the next command runs."""


@dataclass(frozen=True)
class ClusterSource:
    """Where a cluster came from: a hosts file, -w, an engine that finds its hosts, or this machine."""

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
        """The options for a node's container, where no file names it."""
        words = chain.from_iterable(engine.node_words(node) for engine in engines() if engine.wraps)
        return tuple(
            (option, str(value))
            for option, origin, value in words
            if value is not None and self._is_needed(option, f"{node.name}.{origin}")
        )

    @property
    def arguments(self) -> tuple[str, ...]:
        """What ``check`` and ``launch`` take for these hosts, with what options said beside a file."""
        chosen, left_out = self.cluster.origins.get("-w"), self.cluster.origins.get("-x")
        exclude = ("-x", left_out) if left_out else ()
        if self.engine_words:
            words = (word for pair in self.engine_words for word in pair if word is not None)
            return *words, *(("-w", chosen) if chosen else ()), *exclude, *self._options()
        if self.file is None:
            return "-w", fold([node.name for node in self.cluster.nodes]), *self._options()
        return self.file, *exclude, *self._options()

    def _options(self) -> Iterator[str]:
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
        place = self.cluster.origins.get(origin, "")
        by_options = self.file is None and not self.engine_words
        return by_options or place == option or place.endswith(f"({ENVIRONMENT})")


def _node_words(node: Node) -> Iterator[tuple[str, str, object]]:
    """Each option for a node, with its name in ``Cluster.origins``, and its value; None where that is the default."""
    yield "--python", "python", None if node.python == "python3" else node.python
    yield "--nproc-per-node", "nproc_per_node", node.nproc_per_node
    for engine in engines():
        yield from engine.node_words(node)
    devices = node.cuda_visible_devices
    yield "--env", "cuda_visible_devices", None if devices is None else f"CUDA_VISIBLE_DEVICES={devices}"
