"""One line for this machine that starts every host's own line over SSH, and ends them all with Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.finding import Command
from nccl_doctor.text import shell
from nccl_doctor.text.shell import Line
from nccl_doctor.transport.ssh import SshOptions
from nccl_doctor.transport.ssh.settings import arguments

SSH = ("ssh", "-tt", "-n", "-o", "BatchMode=yes")
"""A terminal there, so that what runs on it ends with the connection; nothing is read here, where all share a stdin."""


def one_line(cluster: Cluster, commands: Iterable[Command]) -> Line:
    """All hosts' lines side by side; it fails where one of them does.

    Args:
        cluster: the hosts.
        commands: the line of each.
    """
    nodes = {node.name: node for node in cluster.nodes}
    started = [
        shell.script(
            """{start} {command} & set -- "$@" $!;""",
            start=_start(nodes[one.host or ""]),
            command=shell.nested(one.command),
        )
        for one in commands
    ]
    return shell.script(
        """(set --; trap 'kill "$@"' INT TERM; {started} for p in "$@"; do wait "$p" || s=1; done; exit ${{s:-0}})""",
        started=started,
    )


def _start(node: Node) -> list[Line]:
    words = ["sh", "-c"] if node.local else [*SSH, *arguments(node.options(SshOptions)), node.address]
    return [shell.argument(word) for word in words]
