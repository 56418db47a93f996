"""Runs commands on very many nodes of a Slurm job: one ``srun`` for a group of nodes, that this machine can bear it.

A node whose step does not begin with those of its group, or whose relay does not come up there, is left to an srun of
its own: what is wrong with it is then told as it always is, and the others don't wait for it.
"""

from __future__ import annotations

import base64
import math
import secrets
import threading
import time
import zlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from nccl_doctor.model.cluster import Node
from nccl_doctor.probe import relay
from nccl_doctor.text import shell
from nccl_doctor.text.once import once
from nccl_doctor.transport.base import Channel
from nccl_doctor.transport.slurm import SlurmOptions
from nccl_doctor.transport.slurm.group import Group
from nccl_doctor.transport.slurm.member import Member
from nccl_doctor.transport.slurm.steps import SlurmTransport, environment, foreign

GROUP = 64
"""Nodes of one srun; each of them reads what is sent to any."""

_TRIES = 2
_AHEAD = 3  # groups that come up while the nodes of one are entered
_PATIENCE_S = 60.0
"""For a relay to be told anything before its start; with our end its input ends long before."""
_NOTHING_S = 0.1
_FOR_MANY = ("--label", "-v", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--ntasks-per-node=1")
"""Whose line is whose, and which task is where; the end of one task or node ends no other."""
_LIVES_ON = {"SLURM_PTY_PORT": "0"}
"""Without this in its environment srun ends the whole step when the connection of one node breaks
(step_launch_notify_io_failure in Slurm's src/api/step_launch.c)."""


class TreeTransport(SlurmTransport):
    """Starts one ``srun`` a group.

    Args:
        nodes: all that may be opened, of one job.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__()
        self._branches = [_Branch(self, part) for part in parted(nodes)]
        self._places = {node.name: place for place, branch in enumerate(self._branches) for node in branch.nodes}
        self._first: str | None = None

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> Channel:
        """Starts ``command`` on ``node``; the time that its group takes to come up is no time of the node's.

        Raises:
            AccessError: no step started in time, or Slurm refused it.
        """
        bound, self._first = deadline - time.monotonic(), self._first or node.name
        self._keep(node.options(SlurmOptions).job)
        place = self._places[node.name]
        ahead = 0 if self._first == node.name else _AHEAD  # whoever asks for one node alone gets one group alone
        for branch in self._branches[place : place + 1 + ahead]:
            branch.begin()
        member = self._branches[place].member(node, latest)
        if member is not None and member.start(command, min(time.monotonic() + bound, latest)):
            return member
        return super().open(node, command, time.monotonic() + bound, latest)

    def close(self) -> None:
        """Ends the groups, then as for single steps."""
        closing = [threading.Thread(target=branch.close, daemon=True) for branch in self._branches]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        self._left |= any(branch.forced for branch in self._branches)
        super().close()

    def group(self, nodes: Sequence[Node]) -> Group:
        """Starts the step of some nodes."""
        options, mark = nodes[0].options(SlurmOptions), secrets.token_hex(4)
        run = f"exec {shell.program(nodes[0].python)} -I -S -c {shell.nested(_relay())}"
        clean = f"task=$SLURM_PROCID; export PATH; unset {foreign(options)} {' '.join(_LIVES_ON)}"
        script = f'echo {mark}; {clean}; {run} "$task" {mark} {_PATIENCE_S:.0f}'
        names = [node.address for node in nodes]
        argv = self._argv(options, names, script, *_FOR_MANY)
        return Group(argv, {**environment(), **_LIVES_ON}, names, mark)


class _Branch:
    """Some nodes, and the group that is made of those that come."""

    def __init__(self, transport: TreeTransport, nodes: Sequence[Node]) -> None:
        self.nodes, self.forced = nodes, False
        self._transport = transport
        self._lock, self._up = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._group: Group | None = None
        self._free: set[str] = set()
        self._closed = False

    def begin(self) -> None:
        """Has the group come up, once."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._form, daemon=True)
                self._thread.start()

    def member(self, node: Node, latest: float) -> Member | None:
        """The channel of a node, which has one; None where it did not come, or has been given away."""
        self._up.wait(None if math.isinf(latest) else max(0.0, latest - time.monotonic()))
        with self._lock:
            if self._group is None or node.address not in self._free:
                return None
            self._free.discard(node.address)
            return self._group.member(node.address)

    def close(self) -> None:
        """Ends the group, also one that is only coming up."""
        with self._lock:
            self._closed, group = True, self._group
        if group is not None:
            group.close()
            self.forced |= group.forced
        if self._thread is not None:
            self._thread.join()

    def _form(self) -> None:
        """A second time without those that did not come: srun would pass nothing on to the others."""
        nodes = self.nodes
        patience = self._transport.connect_timeout(nodes[0])
        try:
            for _ in range(_TRIES):
                with self._lock:
                    if self._closed or len(nodes) < 2:
                        return
                    self._group = group = self._transport.group(nodes)
                here = set(group.came(patience))
                if len(here) == len(nodes):
                    with self._lock:
                        self._free = here
                    return
                group.close(_NOTHING_S)
                self.forced = True
                nodes = [node for node in nodes if node.address in here]
        except OSError:  # no srun, or no process for it: the nodes' own ones tell
            return
        finally:
            self._up.set()


def parted(nodes: Sequence[Node], most: int = GROUP) -> list[list[Node]]:
    """Nodes in their order, in groups of much the same size that are entered alike."""
    parts: list[list[Node]] = []
    for _, alike in groupby(nodes, key=_way):
        some = list(alike)
        size = math.ceil(len(some) / math.ceil(len(some) / most))
        parts += [some[place : place + size] for place in range(0, len(some), size)]
    return parts


def _way(node: Node) -> tuple[SlurmOptions, str]:
    return node.options(SlurmOptions).model_copy(update={"gpus": 0}), node.python


@once
def _relay() -> str:
    """The relay's source as a line of Python."""
    packed = base64.b64encode(zlib.compress(Path(relay.__file__).read_bytes(), 9)).decode()
    return f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"
