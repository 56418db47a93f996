"""Reads dumps of torch's flight recorder, which list a rank's collectives and the state of each collective.

With ``TORCH_NCCL_DUMP_ON_TIMEOUT=1``, torch writes one file per rank, such as ``nccl_trace_rank_3``, as a pickle of
plain dictionaries. Other programs store the same data as JSON. The dump format (version 2.x) is defined in
torch/csrc/distributed/c10d/FlightRecorder.cpp. With Gloo, the state of every collective remains "scheduled", but ended
collectives are marked as ``retired`` or counted as completed in ``pg_status``. JSON dumps contain no stack traces and
store some numbers as strings.

:func:`compare` compares the dumps of several ranks and finds the first collective whose calls differ between ranks or
that at least one rank did not complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pydantic_core import from_json

from nccl_doctor.logs import plain_pickle
from nccl_doctor.logs.prefix import tidy
from nccl_doctor.text.bounds import CrowdedError, refuse_crowded

MAX_BYTES = 64 << 20
"""Maximum size of a dump in bytes; torch keeps a few thousand records, which take a few megabytes."""

_RANK = re.compile(r"rank[_-]?(\d{1,7})|(\d{1,7})(?:\.\w+)?$")
_NUMBERS = re.compile(r"\d{1,7}")
_FRAME_OF_TORCH = re.compile(r"/torch/(?:distributed|nn|autograd|_|utils|optim)|^<frozen|/torch/fx/")
_DEFAULT = "0"
"""Name of the default process group, which has an empty name in Gloo's ``pg_config``."""

_LARGEST = 1 << 40
_MOST_SHAPES, _MOST_RECORDS = 64, 100_000
_MOST_TYPES = 200
"""Maximum number of characters that are stored for the input data types of a collective."""
_MOST_GROUPS, _MOST_RANKS = 1024, 1 << 19
"""Maximum numbers of process groups and of ranks in all groups (enough for eight groups of 65,536 ranks)."""
_LONGEST_RANKS = 1 << 20
"""Maximum length, in characters, of a group's list of ranks (enough for 131,072 six-digit ranks)."""

_MOST_VALUES, _MOST_CONTAINERS = 2_000_000, 400_000
"""Maximum numbers of values and containers in a JSON dump (enough for 50,000 calls without stack traces)."""

_SAME_SIZES = frozenset({"all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"})
"""Collectives whose input sizes must be equal on all ranks."""


@dataclass(frozen=True)
class RecordedCall:
    """A call of a collective by a rank.

    Attributes:
        group: name of the process group; ``seq`` is the sequence number of the call within the group.
        sizes: input sizes as text, or an empty string if the dump lacks input sizes.
        place: innermost source line outside torch, such as ``train.py:212``; empty in a JSON dump.
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
        """The parts of a call that must be equal on all ranks: name, data types, and (for some collectives) sizes."""
        return self.name, self.sizes if self.name in _SAME_SIZES else "", self.dtypes

    def words(self) -> str:
        """Return a description such as ``all_reduce [[4]] Float number 4 of group 0 at train.py:212``."""
        what = " ".join(part for part in (self.name, self.sizes, self.dtypes) if part)
        return f"{what} number {self.seq} of group {self.group}" + (f" at {self.place}" if self.place else "")


@dataclass(frozen=True)
class Dump:
    """The collectives that a rank issued, in the order of the calls.

    ``groups`` maps the name of each process group to the group's ranks, if the dump lists the ranks.
    """

    rank: int
    records: tuple[RecordedCall, ...]
    groups: Mapping[str, frozenset[int]]


def looks_like_dump(head: bytes) -> bool:
    """Return whether ``head`` might be the beginning of a flight-recorder dump.

    A dump is a pickle of protocol 2 or later, or JSON with keys such as ``entries``.
    """
    return head[:1] == b"\x80" or (
        head.lstrip()[:1] == b"{" and b'"' in head and (b"pg_" in head or b"entries" in head)
    )


def read(name: str, data: bytes) -> Dump | None:
    """Parse a dump without running any code from the pickle; return None if ``data`` is not a dump.

    Raises:
        CrowdedError: ``data`` might be a dump but exceeds the limits for memory or the number of values.
    """
    try:
        tree = _of_json(data) if data.lstrip()[:1] == b"{" else plain_pickle.read(data)
    except CrowdedError:
        raise
    except ValueError:
        return None
    if not isinstance(tree, Mapping) or not isinstance(tree.get("entries"), (list, tuple)):
        return None
    match = _RANK.search(name.rpartition("/")[2])
    rank = _number(tree.get("rank", (match[1] or match[2]) if match else None))
    if rank is None:
        return None
    completed = {group: _number(status.get("last_completed_collective")) for group, status in _items(tree, "pg_status")}
    entries = tree["entries"][-_MOST_RECORDS:]
    records = tuple(record for entry in entries if (record := _record(entry, completed)) is not None)
    return Dump(rank, records, _groups(tree))


def _of_json(data: bytes) -> object:
    """Parse JSON; raise CrowdedError if the data exceeds the limits.

    The size of non-ASCII text is multiplied by four, because Python might need four bytes per character.
    """
    if len(data) * (1 if data.isascii() and b"\\u" not in data else 4) > plain_pickle.MOST_MEMORY:
        raise CrowdedError(f"it takes more than {plain_pickle.MOST_MEMORY >> 20} MiB of memory")
    refuse_crowded(data, values=_MOST_VALUES, containers=_MOST_CONTAINERS, depth=plain_pickle.DEEPEST)
    return from_json(data)


def _groups(tree: Mapping[Any, Any]) -> dict[str, frozenset[int]]:
    groups: dict[str, frozenset[int]] = {}
    room = _MOST_RANKS
    for name, config in _items(tree, "pg_config"):
        value = config.get("ranks")
        if isinstance(value, str):
            ranks = frozenset(map(int, _NUMBERS.findall(value[:_LONGEST_RANKS])))
        else:
            ranks = frozenset(rank for item in _list(value, _MOST_RANKS) if (rank := _number(item)) is not None)
        room -= len(ranks)
        if room < 0:
            raise CrowdedError(f"its groups have more than {_MOST_RANKS:,} ranks")
        if ranks:
            groups[name or _DEFAULT] = ranks
    return groups


def _items(tree: Mapping[Any, Any], key: str) -> list[tuple[str, Mapping[Any, Any]]]:
    section = tree.get(key)
    items = islice(section.items(), _MOST_GROUPS) if isinstance(section, Mapping) else ()
    return [(name, value) for name, value in items if isinstance(value, Mapping)]


def _number(value: object) -> int | None:
    """Convert a non-negative integer or a string of digits to an integer; return None for any other value."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST else None


def _record(entry: object, completed: Mapping[str, int | None]) -> RecordedCall | None:
    if not isinstance(entry, Mapping) or entry.get("is_p2p"):
        return None
    seq = _number(entry.get("collective_seq_id", entry.get("seq_id")))
    if seq is None:
        return None
    group = entry.get("process_group")
    name = group[0] if isinstance(group, (list, tuple)) and group else entry.get("pg_id", "")
    group_name = _word(name)
    sizes = _list(entry.get("input_sizes"))
    shapes = [[size for value in _list(shape) if (size := _number(value)) is not None] for shape in sizes]
    ended = entry.get("state") == "completed" or entry.get("retired") is True
    return RecordedCall(
        group=group_name,
        seq=seq,
        name=_word(entry.get("profiling_name", "")).rpartition(":")[2],
        ended=ended or seq <= (completed.get(group_name) or 0),
        sizes=str(shapes) if shapes else "",
        dtypes=" ".join(dict.fromkeys(map(_word, _list(entry.get("input_dtypes")))))[:_MOST_TYPES],
        place=_place(entry.get("frames")),
    )


def _word(value: object) -> str:
    number = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST
    return tidy(str(value)[:120]) if number or isinstance(value, str) else ""


def _list(value: object, most: int = _MOST_SHAPES) -> list[object]:
    return list(value[:most]) if isinstance(value, (list, tuple)) else []


def _place(frames: object) -> str:
    """Return the file and line of the innermost stack frame outside torch, or an empty string."""
    for frame in _list(frames):
        if isinstance(frame, Mapping):
            file, line = _word(frame.get("filename")), _number(frame.get("line"))
            if file and line is not None and not _FRAME_OF_TORCH.search(file):
                return f"{file.rpartition('/')[2]}:{line}"
    return ""


_PARTS = ("collective type", "size", "dtype")
"""Names of the parts of :attr:`RecordedCall.call`."""


@dataclass(frozen=True)
class Disagreement:
    """The collective at which the dumps of the ranks diverge.

    Attributes:
        did: for each rank that made the call with sequence number ``seq``, the recorded call.
        behind: ranks that did not make the call with sequence number ``seq``, each with the rank's last call in the
            group, if any.
        absent: ranks of the process group that have no dump.
    """

    group: str
    seq: int
    did: dict[int, RecordedCall]
    behind: dict[int, RecordedCall | None]
    absent: tuple[int, ...] = ()

    @property
    def minority(self) -> tuple[int, ...]:
        """The ranks whose call differs from the majority's call in name, sizes, or data types."""
        calls: dict[tuple[str, str, str], list[int]] = {}
        for rank, record in sorted(self.did.items()):
            calls.setdefault(record.call, []).append(rank)
        largest = max(calls.values(), key=len)
        return tuple(rank for ranks in calls.values() if ranks is not largest for rank in ranks)

    def mismatch(self, rank: int) -> str:
        """Return torch's name for the first part of a rank's call that differs from the majority's call."""
        call = self.did[rank].call
        most = next(record.call for other, record in self.did.items() if other not in self.minority)
        return next(word for word, part, other in zip(_PARTS, call, most, strict=True) if part != other)


def compare(dumps: Iterable[Dump]) -> Disagreement | None:
    """Return the first collective whose calls differ between ranks or that at least one rank did not complete.

    The result is None if all recorded calls agree and are complete.
    """
    by_rank = {dump.rank: dump for dump in dumps}
    places: dict[tuple[str, int], dict[int, RecordedCall]] = {}
    members: dict[str, set[int]] = {}
    last: dict[tuple[str, int], RecordedCall] = {}
    oldest: dict[tuple[str, int], int] = {}
    for rank, dump in sorted(by_rank.items()):
        for group, ranks in dump.groups.items():
            members.setdefault(group, set()).update(ranks)
        for record in dump.records:
            places.setdefault((record.group, record.seq), {})[rank] = record
            members.setdefault(record.group, set()).add(rank)
            key = record.group, rank
            last[key] = max(last.get(key, record), record, key=lambda item: item.seq)
            oldest[key] = min(oldest.get(key, record.seq), record.seq)
    late: Disagreement | None = None
    lingering: set[int] = set()
    for group, seq in sorted(places, key=lambda place: place[1]):
        did = places[group, seq]
        there = members[group] & set(by_rank)
        behind = {
            rank: last.get((group, rank)) for rank in sorted(there - set(did)) if oldest.get((group, rank), seq) <= seq
        }
        open_ = {rank for rank, record in did.items() if not record.ended}
        result = Disagreement(group, seq, did, behind, tuple(sorted(members[group] - set(by_rank))) if open_ else ())
        if late is not None and (not behind or members[group] & lingering):
            continue
        if open_ and open_ < set(did) and not (behind or result.absent or result.minority):
            late, lingering = result, open_  # all have arrived and some have left: the others may be about to
        elif open_ or (len(did) > 1 and result.minority):
            return result
    return late
