"""Where a cluster came from, as the words that name it again on a command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nccl_doctor.model.cluster import DEFAULT_MASTER_PORT, ENVIRONMENT, Cluster, Node
from nccl_doctor.text.hostlist import fold

_NO_FILE = ("this machine", "-w", "SLURM_JOB_NODELIST")
"""Sources of hosts that are no file (inventory/load.py)."""
_PIPES = ("/dev/", "/proc/")
"""Where ``<(command)`` and ``-`` are: gone when the next command runs."""


def _devices(node: Node) -> str | None:
    devices = node.cuda_visible_devices
    return None if devices is None else f"CUDA_VISIBLE_DEVICES={devices}"


_NODE_OPTIONS: tuple[tuple[str, str, Callable[[Node], object], object], ...] = (
    ("--python", "python", lambda node: node.python, "python3"),
    ("--nproc-per-node", "nproc_per_node", lambda node: node.nproc_per_node, None),
    ("--user", "ssh.user", lambda node: node.access.get("ssh", {}).get("user"), None),
    ("--port", "ssh.port", lambda node: node.access.get("ssh", {}).get("port"), None),
    ("--inside", "inside.name", lambda node: ":".join(map(str, node.access.get("inside", {}).values())), ""),
    ("--env", "cuda_visible_devices", _devices, None),
)
"""Each option with its name in ``Cluster.origins``, its value on a node, and what it is where nobody said it."""


@dataclass(frozen=True)
class ClusterSource:
    """Where a cluster came from: a hosts file, -w, Slurm, or this machine."""

    cluster: Cluster

    @property
    def file(self) -> str | None:
        """The hosts file; None where there was none, or a pipe that can't be read again."""
        text = self.cluster.source
        return None if self.slurm_job or self.kube or text in _NO_FILE or text.startswith(_PIPES) else text

    @property
    def slurm_job(self) -> tuple[str, ...]:
        """The words that name the Slurm job whose steps reach the hosts, with its container; empty for none."""
        said = self.cluster.nodes[0].access.get("slurm", {})
        options = {"job": "--slurm-job", "container_image": "--container-image", "container_name": "--container-name"}
        return tuple(word for key, option in options.items() if key in said for word in (option, str(said[key])))

    def inside(self, node: Node) -> str | None:
        """The container of a node as ``--inside`` takes it, where no file says it."""
        container = ":".join(map(str, node.access.get("inside", {}).values()))
        needed = container and self._is_needed("--inside", f"{node.name}.inside.name")
        return container if needed else None

    @property
    def kube(self) -> tuple[str, ...]:
        """The words that choose the pods; empty where the hosts are none."""
        asked = self.cluster.access.get("kube", {}).get("asked", ())
        return tuple(map(str, asked)) if isinstance(asked, (list, tuple)) else ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """What ``check`` and ``launch`` take for these hosts, with what options said beside a file."""
        left_out = self.cluster.origins.get("-x")
        if self.kube:
            return *self.kube, *(("-x", left_out) if left_out else ()), *self._options()
        if self.slurm_job:
            chosen = self.cluster.origins.get("-w")
            words = (*(("-w", chosen) if chosen else ()), *(("-x", left_out) if left_out else ()))
            return *self.slurm_job, *words, *self._options()
        if self.file is None:
            return "-w", fold([node.name for node in self.cluster.nodes]), *self._options()
        return self.file, *(("-x", left_out) if left_out else ()), *self._options()

    def _options(self) -> Iterator[str]:
        cluster = self.cluster
        if cluster.master_port != DEFAULT_MASTER_PORT and self._is_needed("--master-port", "master_port"):
            yield from ("--master-port", str(cluster.master_port))
        if cluster.master_addr != cluster.nodes[0].address and self._is_needed("--master-addr", "master_addr"):
            yield from ("--master-addr", cluster.master_addr)
        first = cluster.nodes[0]
        for option, name, value, default in _NODE_OPTIONS:
            values = {value(node) for node in cluster.nodes}
            shared = len(values) == 1 and values != {default}
            if shared and self._is_needed(option, f"{first.name}.{name}"):
                yield from (option, str(value(first)))
        for variable, text in first.env.items():
            shared = all(node.env.get(variable) == text for node in cluster.nodes)
            if shared and self._is_needed("--env", f"{first.name}.env.{variable}"):
                yield from ("--env", f"{variable}={text}")

    def _is_needed(self, option: str, origin: str) -> bool:
        """Also what the environment said, which the next shell may not have."""
        said = self.cluster.origins.get(origin, "")
        nobody_else = self.file is None and not self.slurm_job and not self.kube
        return nobody_else or said == option or said.endswith(f"({ENVIRONMENT})")
