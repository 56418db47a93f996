"""Torch's flight recorder: dumps of which collectives a rank has issued and which of them ended.

``TORCH_NCCL_DUMP_ON_TIMEOUT=1`` makes torch write one file a rank (``nccl_trace_rank_3``), a pickle of plain
dictionaries; others store the same as JSON (torch/csrc/distributed/c10d/FlightRecorder.cpp, version 2.x). Gloo leaves
every collective "scheduled": what has ended there is ``retired``, and so is what ``pg_status`` counts as completed.
JSON has no stacks and writes some numbers as strings.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from nccl_doctor.logs.text import tidy

MAX_BYTES = 64 << 20
"""A larger dump is not read: torch keeps some thousand records, a few megabytes."""

_RANK = re.compile(r"rank[_-]?(\d{1,7})|(\d{1,7})(?:\.\w+)?$")
_NUMBERS = re.compile(r"\d{1,7}")
_FRAME_OF_TORCH = re.compile(r"/torch/(?:distributed|nn|autograd|_|utils|optim)|^<frozen|/torch/fx/")
_DEFAULT = "0"
"""The default group's name; pg_config of gloo has it under ""."""

_LARGEST = 1 << 40
_MOST_SHAPES, _MOST_RECORDS = 64, 100_000

_PLAIN = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1",
    "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_DICT", "DICT", "SETITEM",
    "SETITEMS", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET",
})  # fmt: skip
"""What a pickle of dictionaries, lists, strings and numbers is made of."""


class _PlainUnpickler(pickle.Unpickler):
    """A pickle that wants anything but plain values is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it wants {module}.{name}, and a flight recorder's dump holds plain values only")


_SAME_SIZES = frozenset({"all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"})
"""Collectives whose sizes are equal on all ranks."""


@dataclass(frozen=True)
class Record:
    """One collective of one rank.

    Attributes:
        group: the process group's name; ``seq`` counts within it.
        shape: sizes and types of what goes in, as text; "" where the dump does not say it.
        place: ``train.py:212``, the innermost line that is not torch's; "" in JSON.
    """

    group: str
    seq: int
    name: str
    ended: bool
    sizes: str
    dtypes: str
    place: str

    @property
    def call(self) -> tuple[str, str, str]:
        """What all ranks must have in common: name, sizes where they must agree, types."""
        return self.name, self.sizes if self.name in _SAME_SIZES else "", self.dtypes

    def words(self) -> str:
        """``all_reduce [[4]] Float number 4 of group 0 at train.py:212``."""
        what = " ".join(part for part in (self.name, self.sizes, self.dtypes) if part)
        return f"{what} number {self.seq} of group {self.group}" + (f" at {self.place}" if self.place else "")


@dataclass(frozen=True)
class Dump:
    """What one rank had issued, in its order; ``groups``: ranks of those whose ranks torch writes down."""

    rank: int
    records: tuple[Record, ...]
    groups: Mapping[str, frozenset[int]]


def looks_like_dump(head: bytes) -> bool:
    """Whether a file that begins so may be a dump: a pickle of protocol 2 and later, or JSON with its keys."""
    return head[:1] == b"\x80" or (
        head.lstrip()[:1] == b"{" and b'"' in head and (b"pg_" in head or b"entries" in head)
    )


def read(name: str, data: bytes) -> Dump | None:
    """The dump in ``data``; None where it is none. Nothing in it is executed, and it is not believed in size either."""
    try:
        tree = json.loads(data) if data.lstrip()[:1] == b"{" else _unpickled(data)
    except Exception:  # noqa: BLE001 - damaged pickles raise whatever they like; what can't be read is no dump
        return None
    if not isinstance(tree, Mapping) or not isinstance(tree.get("entries"), (list, tuple)):
        return None
    found = _RANK.search(name.rpartition("/")[2])
    rank = _number(tree.get("rank", (found[1] or found[2]) if found else None))
    if rank is None:
        return None
    completed = {group: _number(status.get("last_completed_collective")) for group, status in _items(tree, "pg_status")}
    groups = {
        group: frozenset(map(int, _NUMBERS.findall(str(_short(one.get("ranks"))))))
        for group, one in _items(tree, "pg_config")
    }
    entries = tree["entries"][-_MOST_RECORDS:]
    records = tuple(record for entry in entries if (record := _record(entry, completed)) is not None)
    return Dump(rank, records, {group or _DEFAULT: ranks for group, ranks in groups.items() if ranks})


def _unpickled(data: bytes) -> object:
    """The plain value of a pickle: first it is looked through, since loading can take more memory than it has bytes."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name not in _PLAIN or ("PUT" in opcode.name and int(argument or 0) > len(data)):
            raise pickle.UnpicklingError(f"{opcode.name} {argument} is nothing that a flight recorder writes")
    return _PlainUnpickler(io.BytesIO(data)).load()


def _items(tree: Mapping[Any, Any], key: str) -> list[tuple[str, Mapping[Any, Any]]]:
    found = tree.get(key)
    items = list(found.items())[:1024] if isinstance(found, Mapping) else []
    return [(str(name), one) for name, one in items if isinstance(name, (str, int)) and isinstance(one, Mapping)]


def _short(value: object) -> object:
    return value[:100_000] if isinstance(value, (str, list, tuple)) else ""


def _number(value: object) -> int | None:
    """A number from 0 on, JSON's strings included."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST else None


def _record(entry: object, completed: Mapping[str, int | None]) -> Record | None:
    if not isinstance(entry, Mapping) or entry.get("is_p2p"):
        return None
    seq = _number(entry.get("collective_seq_id", entry.get("seq_id")))
    if seq is None:
        return None
    group = entry.get("process_group")
    name = group[0] if isinstance(group, (list, tuple)) and group else entry.get("pg_id", "")
    group_name = _word(name)
    ended = entry.get("state") == "completed" or entry.get("retired") is True
    return Record(
        group=group_name,
        seq=seq,
        name=_word(entry.get("profiling_name", "")).rpartition(":")[2],
        ended=ended or seq <= (completed.get(group_name) or 0),
        sizes=_sizes(entry.get("input_sizes")),
        dtypes=" ".join(dict.fromkeys(map(_word, _list(entry.get("input_dtypes"))))),
        place=_place(entry.get("frames")),
    )


def _word(value: object) -> str:
    return (
        tidy(str(value)[:120])
        if isinstance(value, (str, int))
        and not isinstance(value, bool)
        and (isinstance(value, str) or abs(value) < _LARGEST)
        else ""
    )


def _list(value: object) -> list[object]:
    return list(value[:_MOST_SHAPES]) if isinstance(value, (list, tuple)) else []


def _sizes(value: object) -> str:
    """``[[4, 8], [2]]``, of numbers alone."""
    shapes = [[size for one in _list(shape) if (size := _number(one)) is not None] for shape in _list(value)]
    return str(shapes) if shapes else ""


def _place(frames: object) -> str:
    """The innermost line of a stack that is not torch's own."""
    for frame in _list(frames):
        if isinstance(frame, Mapping):
            file, line = _word(frame.get("filename")), _number(frame.get("line"))
            if file and line is not None and not _FRAME_OF_TORCH.search(file):
                return f"{file.rpartition('/')[2]}:{line}"
    return ""
