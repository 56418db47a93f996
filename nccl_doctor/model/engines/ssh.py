"""Engine that reaches hosts over SSH, or runs commands on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nccl_doctor.model.engines.base import Engine

if TYPE_CHECKING:
    from nccl_doctor.model.cluster import Node


@dataclass(frozen=True)
class SshOptions:
    """Login settings (``ssh:`` in the hosts file).

    ``options`` contains further settings, each in the form that ssh's ``-o`` option accepts.
    """

    engine: ClassVar[str] = "ssh"

    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    options: tuple[str, ...] = ()


class SshEngine(Engine):
    """An engine that runs commands over SSH."""

    name = SshOptions.engine
    options = SshOptions
    way = "over SSH"
    absent = "no host is reached over SSH"
    logs_in = True
    shares_machine = False
    launches = True
    kinds = ("auto", "paramiko", "openssh", "local")

    def node_words(self, node: Node) -> Iterator[tuple[str, str, object]]:
        options = node.access.get(self.name, {})
        for key in ("user", "port"):
            yield f"--{key}", f"ssh.{key}", None if options.get(key) is None else str(options[key])


ENGINE = SshEngine()
