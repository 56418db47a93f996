"""Commands on very many nodes of a Slurm job: one srun for a group of nodes, that this machine can bear it.

What each node says is sorted by srun's label, what is sent names its task. A node whose step does not begin with those
of its group, or whose relay does not come up there, is left to an srun of its own: what is wrong with it is then
written as it always is, and the others don't wait for it.

srun reads its input once all of the step have dialled back to it, and passes it to every task: a group is made of nodes
that came, and the others are left out of it. Both of its outputs are read at all times, or one node that says much
would hold up the rest. The label is srun's own, so that no program on a node speaks for another node; Slurm's daemons,
which could, are believed.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
import queue
import secrets
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO

from nccl_doctor.model.cluster import Node
from nccl_doctor.probe import relay
from nccl_doctor.text import shell
from nccl_doctor.text.machine import thread_safe_cache
from nccl_doctor.transport import process
from nccl_doctor.transport.base import Channel
from nccl_doctor.transport.slurm import SlurmOptions
from nccl_doctor.transport.slurm.member import EVERY, GRACE_S, Down, Member, ended, labelled, launched, message
from nccl_doctor.transport.slurm.steps import SlurmTransport, environment, foreign

_QUIET_S = 5.0  # a busy machine takes breaks; a node left out wrongly costs a second srun
_SLICE_S = 0.5
_MOMENT_S = 0.5
_LONGEST = 64 * 1024  # bytes of a line: srun's own, which labels no longer ones than member.LONGEST
_PLACED_S = 5.0  # srun has told it before; only its two outputs are read by two threads


class Group:
    """The step of several nodes, from its srun's start to its end.

    Args:
        argv: srun with its options and the nodes' shell line, labelled and verbose.
        environment: of srun.
        names: the nodes.
        mark: eight hexadecimal digits: what the nodes' shell says first, and the first word of all lines of the relays.

    Attributes:
        forced: it had to be signalled, or a node was given up.
        heard: when a line of any node came last.
    """

    def __init__(self, argv: Sequence[str], environment: dict[str, str], names: Sequence[str], mark: str) -> None:
        self._began = self._last = self.heard = time.monotonic()
        self._members = {name: Member(self, name, mark) for name in names}
        self._tasks: dict[int, Member] = {}
        self._numbers: dict[str, int] = {}
        self._mark, self._kept, self._seen = mark.encode(), dict[bytes, int](), set[bytes]()
        self._keeping, self._beaten = threading.Lock(), 0.0
        self._ending = threading.Lock()
        self._news, self._placed = threading.Event(), threading.Event()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.forced = False
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        )
        work: tuple[tuple[Callable[..., None], tuple[object, ...]], ...] = (
            (self._write, (self._process.stdin,)),
            (self._listen, (self._process.stdout,)),
            (self._listen_aside, (self._process.stderr,)),
        )
        self._threads = [threading.Thread(target=target, args=args, daemon=True) for target, args in work]
        for thread in self._threads:
            thread.start()

    def member(self, name: str) -> Member:
        """The channel of a node."""
        return self._members[name]

    def came(self, patience_s: float) -> list[str]:
        """The nodes whose step began: all of them, or those that did before there was silence for long.

        Args:
            patience_s: for the first.
        """
        while True:
            ended = self._process.poll() is not None
            self._news.wait(0 if ended else _SLICE_S)
            self._news.clear()
            here = [name for name, member in self._members.items() if member.came]
            quiet = max(_QUIET_S, self._last - self._began) if here else patience_s
            if ended or len(here) == len(self._members) or time.monotonic() - self._last > quiet:
                return here

    def send(self, name: str, kind: Down, payload: bytes = b"") -> None:
        """Sends a message to a node that came. What srun does not take waits here."""
        self._outbox.put(message(self._numbers[name], kind, payload))

    def keep(self, data: bytes) -> int | None:
        """Sends data to all nodes as soon as a second one gets the same; its number, None before that."""
        with self._keeping:
            if (digest := hashlib.sha256(data).digest()) not in self._seen:
                self._seen.add(digest)
                return None
            if data not in self._kept:
                self._outbox.put(message(EVERY, "keep", data))
                self._kept[data] = len(self._kept)
            return self._kept[data]

    def beat(self) -> None:
        """Sends an empty line to all nodes that are awake, once where several ask for it in the same moment."""
        with self._keeping:
            if time.monotonic() > self._beaten + _MOMENT_S:
                self._beaten = time.monotonic()
                self._outbox.put(message(EVERY, "beat"))

    def close(self, grace_s: float = GRACE_S) -> None:
        """Ends the step by the end of its input, and by signals where that is not enough: srun waits for lost nodes."""
        self._outbox.put(None)
        if any(member.dismissed for member in self._members.values()):
            grace_s = min(grace_s, process.TERM_S)
        with self._ending:
            if self._process.poll() is None:  # else it has ended, or another thread saw to it
                self.forced |= process.end(self._process, self._wait, grace_s)
        for thread in self._threads:
            thread.join(process.TERM_S)
        self.forced |= any(member.dismissed for member in self._members.values())

    def _wait(self, patience: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)

    def _write(self, pipe: IO[bytes]) -> None:
        try:
            with pipe:
                while (data := self._outbox.get()) is not None:
                    pipe.write(data)
                    pipe.flush()
        except BrokenPipeError:  # the readers tell it
            return

    def _listen(self, pipe: IO[bytes]) -> None:
        with pipe:
            while line := pipe.readline(_LONGEST):
                task, text = labelled(line.rstrip(b"\n"))
                self._placed.wait(_PLACED_S)
                self._placed.set()  # once is enough: those of whom srun did not tell then stay away
                if task in self._tasks:
                    self._hear(self._tasks[task], text)
        for member in self._members.values():
            member.ended(at_once=True)
        self._news.set()

    def _hear(self, member: Member, line: bytes) -> None:
        member.heard = self.heard = time.monotonic()
        if not member.came and line == self._mark:
            member.came, self._last = True, time.monotonic()
            self._news.set()
        else:
            member.hear(line)

    def _listen_aside(self, pipe: IO[bytes]) -> None:
        with pipe:
            while line := pipe.readline(_LONGEST):
                task, text = labelled(line.rstrip(b"\n"))
                if task is None:
                    self._hear_srun(text.decode(errors="replace"))
                elif task in self._tasks:
                    self._tasks[task].hear_aside(text)
        self._placed.set()

    def _hear_srun(self, line: str) -> None:
        """Srun says where its tasks are before the first of them runs, and later which have ended."""
        place = None if self._placed.is_set() else launched(line)
        if place is not None and place[1] in self._members:
            self._tasks[place[0]] = self._members[place[1]]
            self._numbers[place[1]] = place[0]
            if len(self._numbers) == len(self._members):
                self._placed.set()
        for number in ended(line):
            if number in self._tasks:
                self._tasks[number].ended()


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


@thread_safe_cache
def _relay() -> str:
    """The relay's source as a line of Python."""
    packed = base64.b64encode(zlib.compress(Path(relay.__file__).read_bytes(), 9)).decode()
    return f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"
