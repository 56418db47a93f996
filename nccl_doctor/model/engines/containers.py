"""Engine that runs commands in containers or in the namespaces of a process (``inside:`` in the hosts file)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from nccl_doctor.model.engines.base import Engine

if TYPE_CHECKING:
    from nccl_doctor.model.cluster import Node

Runtime = Literal["docker", "podman", "nerdctl", "apptainer", "enter"]
"""Container runtimes.

"enter" means that commands run in the namespaces of a process, which requires root and python3 on the host.
"""
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)


@dataclass(frozen=True)
class InsideOptions:
    """The place where commands run on a host, which is the host itself if ``runtime`` is None.

    The form of ``name`` is described in inventory/values.py.
    """

    engine: ClassVar[str] = "inside"

    runtime: Runtime | None = None
    name: str = ""

    @property
    def place(self) -> str:
        """A phrase for where commands run, such as ``the Docker container "train"``, or "" for the host itself."""
        if self.runtime is None:
            return ""
        if self.runtime == "enter":
            return f"the namespaces of process {self.name}"
        title = self.runtime if self.runtime == "nerdctl" else self.runtime.capitalize()
        kind = "instance" if self.runtime == "apptainer" else "container"
        return f'the {title} {kind} "{self.name}"'


class ContainerEngine(Engine):
    """An engine that runs commands in a container on a host that another engine reaches."""

    name = InsideOptions.engine
    options = InsideOptions
    way = "in the container"
    absent = "no container is entered"
    wraps = True

    def lacks(self, node: Node) -> frozenset[str]:  # noqa: ARG002 - the same for each
        """Exclude the ``login_shell`` fact, because a command in a container gets the image's environment."""
        return frozenset({"login_shell"})

    def place(self, node: Node) -> str:
        return node.options(InsideOptions).place

    def node_words(self, node: Node) -> Iterator[tuple[str, str, object]]:
        """Yield the ``--inside`` option for the node's container."""
        yield "--inside", "inside.name", ":".join(map(str, node.access.get(self.name, {}).values())) or None


ENGINE = ContainerEngine()
