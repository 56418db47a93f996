"""What SSH wants to know of a node, as far as ``~/.ssh/config`` does not say it."""

from __future__ import annotations

from typing import ClassVar

from nccl_doctor.model.cluster import NodeOptions


class SshOptions(NodeOptions):
    """How to log in: ``ssh:`` in the hosts file; ``options`` are further ones, each as ``-o`` of ssh takes it."""

    engine: ClassVar[str] = "ssh"

    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    options: tuple[str, ...] = ()
