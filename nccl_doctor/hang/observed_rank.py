"""Describes each rank as observed in samples, including its process, its position in the code, and its progress."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePosixPath

from nccl_doctor.model.base import Skipped, Unknown
from nccl_doctor.snapshot.hang import Flow, Frame, HangSnapshot, JobRank, RankLook, RankState, Recorded, Thread
from nccl_doctor.text.hostlist import grouped, ranks_of

_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<frozen |\.so[.0-9]*$|^(?!.*\.py$)[^/<]*$")
"""Pattern for files of stack frames outside the user's code.

For a native frame, the file is a library, or the file name is missing.
"""
_COLLECTIVE = re.compile(
    r"torch/distributed/(?:distributed_c10d|c10d_logger|_functional_collectives\w*|collective_utils|rendezvous)\.py$"
    r"|torch/distributed/(?:fsdp|_composable|pipelining|algorithms|nn)/|torch/nn/parallel/distributed\.py$"
)
_BACKWARD = re.compile(r"torch/autograd/(?:graph|__init__)\.py$|torch/_tensor\.py$")
_LOADER = re.compile(r"torch/utils/data/")
_SYNC = re.compile(r"torch/cuda/")
_BARE = frozenset({"__next__", "__call__", "_call_impl", "_wrapped_call_impl"})
"""Names of uninformative functions; the function that such a function calls is shown instead."""
_WRAPPER = re.compile(r"wrapper|decorate|inner$")


class Activity(Enum):
    """The kind of activity at a position in the code; in BACKWARD and SYNC, a rank might be waiting or computing."""

    COLLECTIVE = "collective"
    BACKWARD = "backward"
    SYNC = "sync"
    LOADER = "data loader"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class StackPlace:
    """The position of a rank in the code, according to the stack of the rank's process."""

    kind: Activity
    # the library function that the user's frame called, such as "all_reduce"; "" if it called none
    called: str
    own: Frame | None  # innermost frame of the user's code; None if the stack has none
    # file and line of the user's frames, innermost first: they change when the rank makes progress
    path: tuple[tuple[str, int], ...]
    starts: bool = False  # it waits in ``init_process_group`` for all ranks to meet

    @property
    def line(self) -> str:
        """File and line of the innermost frame of user code, such as "train.py:212", or an empty string."""
        return "" if self.own is None else f"{PurePosixPath(self.own.file).name}:{self.own.line}"

    @property
    def frame(self) -> str | None:
        """File, line, and function of the innermost frame of user code, such as "train.py:212 in step", or None."""
        return None if self.own is None else f"{self.line} in {self.own.function}"

    @property
    def waits(self) -> bool:
        """True if an idle rank at this position might be waiting for other ranks."""
        return self.kind in (Activity.COLLECTIVE, Activity.BACKWARD, Activity.SYNC)

    def __str__(self) -> str:
        if self.own is None:
            return f"in {self.called or 'unknown code'}"
        return f"in {self.called} at {self.line}" if self.called else f"at {self.line} in {self.own.function}"


def place(threads: Sequence[Thread], pid: int) -> StackPlace | None:
    """Return the main thread's position in the code, or None if the stack is missing."""
    # in a container, the id of a thread may equal the PID that its process has outside
    known = [item for item in threads if item.name == "MainThread"] or [item for item in threads if item.tid == pid]
    main = next(iter(known or threads), None)
    if main is None or not main.frames:
        return None
    users = [index for index, frame in enumerate(main.frames) if not _LIBRARY.search(frame.file)]
    inner = main.frames[: users[0]] if users else main.frames
    kinds = (
        (_COLLECTIVE, Activity.COLLECTIVE),
        (_LOADER, Activity.LOADER),
        (_BACKWARD, Activity.BACKWARD),
        (_SYNC, Activity.SYNC),
    )
    files = [frame.file for frame in inner]
    return StackPlace(
        kind=next((kind for pattern, kind in kinds if any(map(pattern.search, files))), Activity.ELSEWHERE),
        called=_called(inner),
        own=main.frames[users[0]] if users else None,
        path=tuple((main.frames[index].file, main.frames[index].line) for index in users)
        or tuple((frame.file, frame.line) for frame in main.frames),
        starts=any(frame.function == "init_process_group" and _COLLECTIVE.search(frame.file) for frame in inner),
    )


def _called(frames: Sequence[Frame]) -> str:
    """Return the outermost function that user code called, without the class name; wrappers are skipped."""
    python = [frame for frame in frames if frame.file.endswith(".py") or frame.file.startswith("<")]
    named = [frame.function.rpartition(".")[2] for frame in reversed(python) if not _WRAPPER.search(frame.function)]
    return next((function for function in named if function not in _BARE), named[0] if named else "")


BUSY = 0.2  # share of a CPU that a working rank uses; helper threads use less
WANTING = 0.6
"""Minimum share of time that a thread of a working rank spends running or waiting for a CPU.

Each thread is evaluated separately, because the waiting times of helper threads add up on a busy machine.
"""
READING = 1 << 20  # bytes read or written between two samples; helpers do less
STOPPED = "Tt"
Endpoints = tuple[tuple[str, int], tuple[str, int]]


@dataclass(frozen=True)
class ObservedRank:
    """A rank as observed in all samples."""

    host: str
    job_rank: JobRank  # its process's answer when it was found
    looks: tuple[RankLook, ...]  # samples in which it was examined, in order; ``states``: those in which it existed
    interval_s: float  # seconds between the first and the last sample
    # its place in each sample; None if its stack could not be read: ``no_stack`` says why
    places: tuple[StackPlace | None, ...] = ()
    no_stack: str | None = None
    states: tuple[RankState, ...] = field(default=())

    @property
    def rank(self) -> int:
        """The rank's number in the job, counted from 0."""
        return self.job_rank.rank

    @property
    def place(self) -> StackPlace | None:
        """The rank's position in the code in the last sample, or None if unknown."""
        return self.places[-1] if self.places else None

    @property
    def stopped(self) -> bool:
        """True if the process was stopped by a signal in every sample and has not ended."""
        ended = self.looks and self.looks[-1].state is None
        return not ended and bool(self.states) and all(state.state in STOPPED for state in self.states)

    @property
    def gone(self) -> str | None:
        """A phrase that says why the rank can't take part in collectives (the process ended or is stopped), or None."""
        if self.looks and self.looks[-1].state is None:
            return "ended while it was sampled"
        return "is stopped" if self.stopped else None

    @property
    def in_kernel(self) -> str | None:
        """Kernel function in which the rank waited uninterruptibly in every sample, or None."""
        stuck = self.states and all(state.state == "D" for state in self.states)
        if not stuck or len({state.wchan for state in self.states}) > 1:
            return None
        return self.states[-1].wchan or "the kernel"

    @property
    def recorded(self) -> Recorded | None:
        """Data of the rank's flight recorder in the last sample, or None if unavailable."""
        last = self.looks[-1].recorder if self.looks else None
        return None if isinstance(last, Unknown) else last

    @property
    def calls_moved(self) -> int:
        """Number of collectives that the rank issued between the samples, according to its flight recorder."""
        recorders = (look.recorder for look in self.looks)
        counts = [sum(record.issued.values()) for record in recorders if isinstance(record, Recorded) and record.live]
        return counts[-1] - counts[0] if len(counts) > 1 else 0

    @property
    def stepped(self) -> bool:
        """True if the rank was at different lines of the user's code in the first and the last sample."""
        known = [position for position in self.places if position is not None]
        return len(known) > 1 and known[0].path != known[-1].path

    @property
    def works(self) -> bool:
        """True if the rank worked between the first and the last sample, according to :func:`worked`."""
        return len(self.states) > 1 and worked(self.states[0], self.states[-1], self.interval_s)

    @property
    def waits(self) -> bool | None:
        """True if the rank waits in a collective, according to its stack or flight recorder; None if unknown."""
        recorded = self.recorded
        pending = recorded is not None and recorded.live and recorded.pending
        if pending and (self.place is None or self.place.waits or not self.place.called):
            return True
        return None if self.place is None else self.place.waits


def worked(first: RankState, last: RankState, interval_s: float) -> bool:
    """Return whether a rank or a child process did a significant amount of computing or I/O during the interval."""
    if interval_s <= 0:
        return False
    used = [_less(last.cpu_s, first.cpu_s)]
    wanted = [_less(last.wanted_s[item], first.wanted_s[item]) for item in last.wanted_s if item in first.wanted_s]
    moved = [_less(last.io_bytes, first.io_bytes)]
    before = {worker.pid: worker for worker in first.workers}
    for worker in last.workers:
        if worker.pid in before:
            used.append(_less(worker.cpu_s, before[worker.pid].cpu_s))
            moved.append(_less(worker.io_bytes, before[worker.pid].io_bytes))
    wants = any(item >= WANTING * interval_s for item in wanted)
    return wants or any(item >= BUSY * interval_s for item in used) or any(item >= READING for item in moved)


def observed_ranks(snapshot: HangSnapshot) -> dict[int, ObservedRank]:
    result: dict[int, ObservedRank] = {}
    for host in snapshot.hosts:
        for rank in host.job.ranks if host.job else ():
            pairs = [(look.at_s, item) for look in host.looks for item in look.ranks if item.pid == rank.pid]
            looks = tuple(item for _, item in pairs)
            stacks = [look.stack for look in looks if look.state is not None]
            missing = (item.reason for item in stacks if isinstance(item, (Unknown, Skipped)))
            result[rank.rank] = ObservedRank(
                host=host.name,
                job_rank=rank,
                looks=looks,
                interval_s=pairs[-1][0] - pairs[0][0] if pairs else 0.0,
                places=tuple(
                    None if isinstance(item, (Unknown, Skipped)) else place(item, rank.pid) for item in stacks
                ),
                no_stack=next(missing, None),
                states=tuple(look.state for look in looks if isinstance(look.state, RankState)),
            )
    return dict(sorted(result.items()))


def world_size(ranks: dict[int, ObservedRank]) -> int:
    """Return the number of ranks of the job, or 0 if no rank was found."""
    return max((rank.job_rank.world_size for rank in ranks.values()), default=0)


@dataclass(frozen=True)
class RankLink:
    """A connection between two ranks, as seen by ``source``; ``target`` is None if the peer was not examined."""

    source: int
    target: int | None
    first: Flow  # in the first sample; ``last``: in the last one
    last: Flow

    @property
    def moved(self) -> float:
        """Bytes that the connection carried between the samples."""
        return _less(self.last.acked, self.first.acked) + _less(self.last.received, self.first.received)

    @property
    def stalled(self) -> bool:
        """True if the kernel retransmitted data or probed the window, but nothing was acknowledged."""
        unmoved = self.first.acked == self.last.acked
        # the kernel answers for a peer that only does not read
        unheard = self.last.retransmits or self.last.probes > 1
        return bool(unmoved and self.first.unsent and self.last.unsent and unheard)


def links(ranks: dict[int, ObservedRank]) -> list[RankLink]:
    """Return the ranks' TCP connections that exist in both the first and the last sample, except store connections."""
    owner = {ends: rank.rank for rank in ranks.values() for ends, _ in _ends(rank, -1)}
    connections = []
    for rank in ranks.values():
        first = dict(_ends(rank, 0))
        for ends, flow in _ends(rank, -1):
            store = rank.job_rank.master_port in (ends[0][1], ends[1][1])
            if ends in first and not store:
                connections.append(RankLink(rank.rank, owner.get((ends[1], ends[0])), first[ends], flow))
    return connections


def _ends(rank: ObservedRank, look: int) -> Iterator[tuple[Endpoints, Flow]]:
    flows = rank.looks[look].flows if rank.looks else ()
    if not isinstance(flows, Unknown):
        for flow in flows:
            yield ((str(flow.local[0]), flow.local[1]), (str(flow.remote[0]), flow.remote[1])), flow


def _less(after: float | None, before: float | None) -> float:
    return 0 if after is None or before is None else after - before


MOST_LINES = 8  # lines of evidence of one kind
KERNEL_WORDS = {  # beginnings of kernel functions, each with a phrase for what a process does there
    "futex": "waits for another thread",
    "hrtimer_nanosleep": "sleeps",
    "pipe": "waits at a pipe",
    "wait_for_partner": "opens a FIFO",
    "nfs": "waits for NFS",
    "ep_poll": "waits for a connection",
    "poll": "waits for a connection or a pipe",
    "inet_csk_accept": "waits for a connection",
    "do_wait": "waits for a child process",
    "wait_for_vfork": "waits for a child process to start",
}


def doing(rank: ObservedRank) -> str:
    """Return a phrase for the activity of a rank, for use after the rank's name."""
    if rank.gone:
        return rank.gone
    if rank.place is not None:
        kernel = f", in the kernel ({rank.in_kernel})" if rank.in_kernel else ""
        return f"{rank.place}{kernel}"
    if not rank.states:
        return "was not sampled"
    state = rank.states[-1]
    known = next((words for mark, words in KERNEL_WORDS.items() if mark in (state.wchan or "")), None)
    if known:
        return f"{known} (kernel: {state.wchan})"
    return f"in state {state.state}" + (f" (kernel: {state.wchan})" if state.wchan else "")


def folded(ranks: Iterable[ObservedRank]) -> dict[str, tuple[int, ...]]:
    """Return the ranks grouped by activity, with the largest group first."""
    groups = grouped((doing(rank), rank.rank) for rank in ranks)
    return {words: tuple(numbers) for words, numbers in sorted(groups.items(), key=lambda item: -len(item[1]))}


def rank_words(ranks: Iterable[ObservedRank], most: int = 6) -> str:
    """Return a phrase such as ``ranks 0-2,4-7 in all_reduce at train.py:26; rank 3 at train.py:17 in step``."""
    groups = folded(ranks)
    parts = [f"{ranks_of(numbers)} {words}" for words, numbers in list(groups.items())[:most]]
    return "; ".join(parts) + (f"; and {len(groups) - most} more places" if len(groups) > most else "")


def places(ranks: Iterable[ObservedRank]) -> Iterator[str]:
    for words, numbers in list(folded(ranks).items())[:MOST_LINES]:
        yield f"{ranks_of(numbers)} {words}"


def named(ranks: Iterable[ObservedRank]) -> str:
    """Return a phrase such as ``rank 3 (node2, pid 4711)``, or only rank numbers if there are more than four ranks."""
    some = list(ranks)
    if len(some) <= 4:
        return ", ".join(f"rank {rank.rank} ({rank.host}, pid {rank.job_rank.pid})" for rank in some)
    return ranks_of([rank.rank for rank in some])
