"""Containers on hosts, or a process' namespaces, in which commands run: ``inside:`` of the hosts file."""

from __future__ import annotations

import base64
import shlex
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from nccl_doctor import probe
from nccl_doctor.model.engine import Engine

if TYPE_CHECKING:
    from nccl_doctor.model.cluster import Node

Runtime = Literal["docker", "podman", "nerdctl", "apptainer", "enter"]
"""Holders of containers; "enter" is a process whose namespaces are entered, which wants root and python3 there."""
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)

_ENTER: dict[Runtime, str] = {
    "docker": "docker exec -i",
    "podman": "podman exec -i",
    "nerdctl": "nerdctl exec -i",
    "apptainer": "apptainer exec",
}
_LIST: dict[Runtime, str] = {
    "docker": "docker ps --format '{{.Names}}'",
    "podman": "podman ps --format '{{.Names}}'",
    "nerdctl": "nerdctl ps --format '{{.Names}}'",
    "apptainer": "apptainer instance list",
}


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

    @property
    def program(self) -> str:
        """The program on the host that leads in."""
        return self._prefix.partition(" ")[0]

    def line(self, command: str) -> str:
        """Return a line for the host's shell (sh, csh or fish) that runs ``command`` with the container's /bin/sh."""
        return f"exec {self._prefix} /bin/sh -c {shlex.quote(command)}"

    def listing(self) -> str | None:
        """Return a line for the host's shell that prints what runs there, a name first on each line.

        None where none does.
        """
        return None if self.runtime is None or self.runtime not in _LIST else f"exec {_LIST[self.runtime]}"

    @property
    def _prefix(self) -> str:
        assert self.runtime is not None, "the host itself needs no way in"
        if self.runtime == "enter":
            return f"{_entering()} {shlex.quote(self.name)}"
        place = f"instance://{shlex.quote(self.name)}" if self.runtime == "apptainer" else shlex.quote(self.name)
        return f"{_ENTER[self.runtime]} {place}"


@cache
def _entering() -> str:
    """Return the host's Python with ``probe/enter.py``, a word that every shell leaves as it is."""
    packed = base64.b64encode(zlib.compress((files(probe) / "enter.py").read_bytes(), 9)).decode()
    program = f'import base64, zlib; exec(zlib.decompress(base64.b64decode("{packed}")))'
    return f"python3 -I -S -c {shlex.quote(program)}"


class ContainerEngine(Engine):
    """Commands in a container on a host that another engine reaches."""

    name = InsideOptions.engine
    options = InsideOptions
    way = "in the container"
    absent = "no container is entered"
    wraps = True

    def wrap(self, outside: Any) -> Any:  # noqa: ANN401 - as declared
        """Enter the containers from their hosts."""
        from nccl_doctor.transport.containers.transport import InsideTransport

        return InsideTransport(outside)

    def lacks(self, node: Node) -> frozenset[str]:  # noqa: ARG002 - the same for each
        """Return a command there has what the image says, and no login shell has a part in a job."""
        return frozenset({"login_shell"})

    def place(self, node: Node) -> str:
        """Return the container's kind and name."""
        return node.options(InsideOptions).place

    def node_words(self, node: Node) -> Iterator[tuple[str, str, object]]:
        """Yield the container as ``--inside`` takes it."""
        yield "--inside", "inside.name", ":".join(map(str, node.access.get(self.name, {}).values())) or None


ENGINE = ContainerEngine()
