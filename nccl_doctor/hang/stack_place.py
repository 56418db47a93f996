"""Where in its program a rank stands: the user's line, and what of a library it has called there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath

from nccl_doctor.snapshot.rank_look import Frame, Thread

_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<frozen |\.so[.0-9]*$|^(?!.*\.py$)[^/<]*$")
"""What the user did not write; a native frame has a library for its file, or none."""
_COLLECTIVE = re.compile(
    r"torch/distributed/(?:distributed_c10d|c10d_logger|_functional_collectives\w*|collective_utils|rendezvous)\.py$"
    r"|torch/distributed/(?:fsdp|_composable|pipelining|algorithms|nn)/|torch/nn/parallel/distributed\.py$"
)
_BACKWARD = re.compile(r"torch/autograd/(?:graph|__init__)\.py$|torch/_tensor\.py$")
_LOADER = re.compile(r"torch/utils/data/")
_SYNC = re.compile(r"torch/cuda/")
_BARE = frozenset({"__next__", "__call__", "_call_impl", "_wrapped_call_impl"})
"""Names that say nothing by themselves: what they call tells more."""
_WRAPPER = re.compile(r"wrapper|decorate|inner$")


class Kind(Enum):
    """What a rank does there; in BACKWARD and SYNC it may wait for the others or compute: the line can't say."""

    COLLECTIVE = "collective"
    BACKWARD = "backward"
    SYNC = "sync"
    LOADER = "data loader"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class StackPlace:
    """Where a rank stands.

    Attributes:
        called: the function of a library that the user's line called, as "all_reduce"; "" where it stands there itself.
        frame: "train.py:212 in step"; None where no line of the user's is on the stack.
        starts: it waits for all ranks to meet, in ``init_process_group``.
        path: file and line of the user's frames, innermost first: they change when the rank moves on.
    """

    kind: Kind
    called: str
    frame: str | None
    path: tuple[tuple[str, int], ...]
    starts: bool = False

    @property
    def waits(self) -> bool:
        """Whether a rank that does nothing there may wait for the others."""
        return self.kind in (Kind.COLLECTIVE, Kind.BACKWARD, Kind.SYNC)

    def __str__(self) -> str:
        where, _, function = (self.frame or "").partition(" in ")
        if self.called and where:
            return f"in {self.called} at {where}"
        return f"at {where} in {function}" if where else f"in {self.called or 'unknown code'}"


def place(threads: Sequence[Thread], pid: int) -> StackPlace | None:
    """Where the main thread stands; None without a stack."""
    main = next((one for one in threads if one.tid == pid or one.name == "MainThread"), None)
    main = main or next(iter(threads), None)
    if main is None or not main.frames:
        return None
    users = [index for index, frame in enumerate(main.frames) if not _LIBRARY.search(frame.file)]
    inner = main.frames[: users[0]] if users else main.frames
    return StackPlace(
        kind=_kind(inner),
        called=_called(inner),
        frame=_named(main.frames[users[0]]) if users else None,
        path=tuple((main.frames[index].file, main.frames[index].line) for index in users)
        or tuple((frame.file, frame.line) for frame in main.frames),
        starts=any(frame.function == "init_process_group" and _COLLECTIVE.search(frame.file) for frame in inner),
    )


def _kind(frames: Sequence[Frame]) -> Kind:
    kinds = (
        (_COLLECTIVE, Kind.COLLECTIVE),
        (_LOADER, Kind.LOADER),
        (_BACKWARD, Kind.BACKWARD),
        (_SYNC, Kind.SYNC),
    )
    for pattern, kind in kinds:
        if any(pattern.search(frame.file) for frame in frames):
            return kind
    return Kind.ELSEWHERE


def _called(frames: Sequence[Frame]) -> str:
    """The outermost function below the user's line that is no wrapper; without torch's name for a class's method."""
    python = [frame for frame in frames if frame.file.endswith(".py") or frame.file.startswith("<")]
    named = [frame.function.rpartition(".")[2] for frame in reversed(python) if not _WRAPPER.search(frame.function)]
    return next((function for function in named if function not in _BARE), named[0] if named else "")


def _named(frame: Frame) -> str:
    return f"{PurePosixPath(frame.file).name}:{frame.line} in {frame.function}"
