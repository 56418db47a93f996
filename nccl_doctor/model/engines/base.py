"""Base class of engines. An engine describes a way to reach hosts and the command-line options for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:  # a command line only needs the engines' options: loading the models would slow it down
    from nccl_doctor.model.cluster import Cluster, Node, NodeOptions

TransportKind = str  # a value of ``--transport``, see :func:`nccl_doctor.model.engine.kinds`
OptionWords = tuple[tuple[str, str | None], ...]
"""Command-line options with their values.

The value is None for an option that takes no value.
"""


@dataclass(frozen=True)
class Flag:
    """A command-line option that selects an engine's hosts."""

    name: str  # name of its value
    words: tuple[str, ...]  # spellings; messages use the first
    help: str  # ``{chooser}`` is the option that selects among the hosts
    metavar: str | None = None
    default: str | None = None  # default that the help shows
    bare: bool = False  # its value is optional
    fix_port: bool = True  # ``fix-port`` has it, too


class Engine:
    """Description of a way to reach hosts, with names, options and phrases.

    :mod:`nccl_doctor.transport` makes the connections.
    """

    name: ClassVar[str]  # key in :attr:`Node.access`, and scope of a check
    options: ClassVar[type[NodeOptions]]  # type of its settings for a node
    way: ClassVar[str]  # how a command reaches a node, as a phrase to follow "a command"
    absent: ClassVar[str]  # states that no host is reached this way
    logs_in: ClassVar[bool] = False  # a login shell on the host runs the commands
    wraps: ClassVar[bool] = False  # it continues from a host that another engine reaches
    shares_machine: ClassVar[bool] = True  # several of its hosts may be on one machine
    launches: ClassVar[bool] = False  # ``nccl-doctor launch`` writes lines that start a job on its hosts
    lasts: ClassVar[bool] = True  # a later command on this machine can reach its hosts again
    finds_hosts: ClassVar[bool] = False  # it lists its hosts itself; for other engines the user names them
    flags: ClassVar[tuple[Flag, ...]] = ()  # options that select its hosts
    implied: ClassVar[bool] = False  # environment variables may select its hosts, too
    # values of ``--transport`` for it; empty if its name is the only one, None if there is none
    kinds: ClassVar[tuple[TransportKind, ...] | None] = ()

    def name_node(self, name: str) -> NodeOptions:  # noqa: ARG002 - other engines' hosts are found, not named
        return self.options()

    def lacks(self, node: Node) -> frozenset[str]:  # noqa: ARG002 - as others need it
        """Return the names of facts that can't be collected on this engine's hosts."""
        return frozenset()

    def gpus(self, node: Node) -> int:  # noqa: ARG002 - as others need it
        """Return the number of GPUs that the engine assigned to the job on a node.

        The result is 0 if the engine assigns no GPUs.
        """
        return 0

    def place(self, node: Node) -> str:  # noqa: ARG002 - as others need it
        """Return a phrase for where commands run, such as ``the Docker container "train"``, or "" for the host."""
        return ""

    def cluster_words(self, cluster: Cluster) -> OptionWords:  # noqa: ARG002 - as others need it
        """Return the options with which a later command selects the same hosts.

        The result is empty if the hosts belong to another engine.
        """
        return ()

    def node_words(self, node: Node) -> Iterable[tuple[str, str, object]]:  # noqa: ARG002 - as others need it
        """Return the options for a node's settings, each with its key in :attr:`Cluster.origins` and its value."""
        return ()
