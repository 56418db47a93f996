"""Hosts reached over SSH, and this machine: by paramiko, or the ssh program where only that will do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nccl_doctor.model.engine import Engine, Kind

if TYPE_CHECKING:
    from pathlib import Path

    from nccl_doctor.model.cluster import Cluster, Node


@dataclass(frozen=True)
class SshOptions:
    """How to log in: ``ssh:`` in the hosts file; ``options`` are further ones, each as ``-o`` of ssh takes it."""

    engine: ClassVar[str] = "ssh"

    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    options: tuple[str, ...] = ()


class SshEngine(Engine):
    """Commands over SSH."""

    name = SshOptions.engine
    options = SshOptions
    way = "over SSH"
    absent = "no host is reached over SSH"
    shares_machine = False
    launches = True
    kinds = ("auto", "paramiko", "openssh", "local")

    def transport(self, kind: Kind, ssh_config: Path | None, cluster: Cluster) -> Any:  # noqa: ANN401, ARG002 - as declared
        """Pick paramiko or the ssh program for each host; "local" runs all on this machine."""
        if kind == "local":
            from nccl_doctor.transport.process import LocalTransport

            return LocalTransport()
        # paramiko's reader of configurations, which is not needed here, wants it: 40 ms to import
        hidden = sys.modules.setdefault("invoke", None) is None  # type: ignore[arg-type]  # the import system's "no"
        try:
            from nccl_doctor.transport.ssh.choice import ChoosingTransport
        finally:
            if hidden:
                del sys.modules["invoke"]
        return ChoosingTransport(kind, ssh_config)

    def node_words(self, node: Node) -> Iterator[tuple[str, str, object]]:
        """Yield the user to log in as, and the port."""
        options = node.access.get(self.name, {})
        for key in ("user", "port"):
            yield f"--{key}", f"ssh.{key}", None if options.get(key) is None else str(options[key])


ENGINE = SshEngine()
