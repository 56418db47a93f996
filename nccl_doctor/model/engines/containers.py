"""Containers on hosts, or a process' namespaces, in which commands run: ``inside:`` of the hosts file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from nccl_doctor.model.engines.base import Engine

if TYPE_CHECKING:
    from nccl_doctor.model.cluster import Node

Runtime = Literal["docker", "podman", "nerdctl", "apptainer", "enter"]
"""Container runtimes; "enter" is a process whose namespaces are entered, which needs root and python3 there."""
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)


@dataclass(frozen=True)
class InsideOptions:
    """Place on the host where commands run; runtime None is the host itself, ``name`` as in inventory/values.py."""

    engine: ClassVar[str] = "inside"

    runtime: Runtime | None = None
    name: str = ""

    @property
    def place(self) -> str:
        """Phrase for the place: "the docker container train"; empty for the host itself."""
        if self.runtime is None:
            return ""
        if self.runtime == "enter":
            return f"the namespaces of process {self.name}"
        return f"the {self.runtime} {'instance' if self.runtime == 'apptainer' else 'container'} {self.name}"


class ContainerEngine(Engine):
    """Commands in a container on a host that another engine reaches."""

    name = InsideOptions.engine
    options = InsideOptions
    way = "in the container"
    absent = "no container is entered"
    wraps = True

    def lacks(self, node: Node) -> frozenset[str]:  # noqa: ARG002 - the same for each
        """Return the login shell: a command in a container gets the image's environment."""
        return frozenset({"login_shell"})

    def place(self, node: Node) -> str:
        """Return the container's kind and name."""
        return node.options(InsideOptions).place

    def node_words(self, node: Node) -> Iterator[tuple[str, str, object]]:
        """Yield the container as ``--inside`` takes it."""
        yield "--inside", "inside.name", ":".join(map(str, node.access.get(self.name, {}).values())) or None


ENGINE = ContainerEngine()
