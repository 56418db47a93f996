"""Parsers for answers from NCCL's RAS service (``ncclras``, port 28028).

An answer describes communicators, ranks, operation counts and missing processes. RAS supports answers in text from NCCL
2.24 on, and answers in JSON (``SET FORMAT json``) from 2.28.7 on (src/ras/client_support.cc). A text answer lists the
rank numbers only for small groups of ranks and never lists healthy ranks. A JSON answer lists all ranks, but omits
processes whose communicator is unknown. Only numbers in range and short plain words are accepted, because answers come
from untrusted hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated

from pydantic import BaseModel, FailFast, Field, StringConstraints, ValidationError
from pydantic_core import from_json

from nccl_doctor.text.bounds import CrowdedError, refuse_crowded
from nccl_doctor.text.hostlist import grouped


class MalformedAnswerError(ValueError):
    """Error for text that is not an answer from RAS. The error message is one sentence."""


@dataclass(frozen=True)
class RasProcess:
    """A process of the job. ``host`` is the address of the process in NCCL's bootstrap."""

    host: str
    pid: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class RasRank:
    """A rank of a communicator. Values are None if RAS has no information about the rank's process."""

    rank: int
    host: str | None = None
    pid: int | None = None
    gpu: int | None = None
    status: str = ""  # INIT, RUNNING, FINALIZE or ABORT; "" if the answer does not give it for this rank
    error: str = ""
    counts: dict[str, int] = field(default_factory=dict)  # by collective, the number launched so far; JSON only
    dead: bool = False  # RAS considers its process dead, not only silent


@dataclass(frozen=True)
class RankGroup:
    """A group of ranks that belong to one communicator and have the same value of ``topic``.

    The other ranks of the communicator have a different value of ``topic``.
    """

    topic: str  # a collective's name ("AllReduce"; "collective" in NCCL 2.24 and 2.25), "status" or "error"
    value: int | str  # collectives launched, a status, or NCCL's name of an error
    size: int  # number of ranks; ``ranks``: those named in the answer, perhaps none
    ranks: tuple[RasRank, ...] = ()


@dataclass(frozen=True)
class Communicator:
    """A communicator and its ranks. ``hash`` has 16 hexadecimal digits, as NCCL prints it."""

    hash: str
    # None in text, which says it of groups of communicators only; ``ranks``: all that answered; JSON only
    size: int | None = None
    ranks: tuple[RasRank, ...] = ()
    missing: tuple[RasRank, ...] = ()  # ranks without data; ``missing_count``: their number, named or not
    missing_count: int = 0
    groups: tuple[RankGroup, ...] = ()  # how the ranks differ, largest group first; empty if they agree

    def launched(self) -> dict[str, tuple[RankGroup, ...]]:
        """Return the collectives whose launch counts differ between ranks.

        The groups of ranks are sorted by count in ascending order.
        """
        by_topic = grouped((group.topic, group) for group in self.groups if isinstance(group.value, int))
        return {topic: tuple(sorted(groups, key=lambda group: int(group.value))) for topic, groups in by_topic.items()}


@dataclass(frozen=True)
class RasAnswer:
    """An answer from the RAS service."""

    nccl_version: str = ""
    communicators: tuple[Communicator, ...] = ()
    # processes that gave no data in time; ``missing_count``: their number, named or not. Text only.
    missing: tuple[RasProcess, ...] = ()
    missing_count: int = 0
    dead: tuple[RasProcess, ...] = ()  # processes that RAS no longer reaches; ``dead_count`` likewise
    dead_count: int = 0
    # statuses of the groups of communicators: NOCOMM, INIT, RUNNING, FINALIZE, ABORT. Text only.
    statuses: tuple[str, ...] = ()
    timeouts: int = 0


_GROUP_ROW = re.compile(r"^(?:\d+ +){3}[\d-]+ +\d+ +\d+ +(NOCOMM|INIT|RUNNING|FINALIZE|ABORT) +[A-Z,]+$")
_COMMUNICATOR = re.compile(r"^#\d+-\d+ \(([0-9a-f]{1,16})\) [A-Z]+$")
_PROCESS = re.compile(r"^Process (\d{1,9}) on node (\S{1,64}) managing GPUs? (\d[\d,]{0,200})")
_RANK = re.compile(
    r"^Rank (\d{1,9})(?: has launched up to operation (?P<count>\d{1,19})| (?P<none>has not launched any operations)"
    r"| has status (?P<status>\w{1,16})| reported (?P<error>[\w ]{1,40}?))? -- "
    r"(?:GPU (\d{1,9})(?: \(NVML \d+\))? managed by process (\d{1,9}) on node (\S{1,64})|\[)"
)
_MANY = re.compile(
    r"^(\d{1,9}) ranks (?:have launched up to operation (?P<count>\d{1,19})|(?P<none>have not launched any operations)"
    r"|have status (?P<status>\w{1,16})|reported (?P<error>[\w ]{1,40}))$"
)
_DIFFERENT = re.compile(r"^Communicator ranks have different (?:(\w{1,32}) operation counts|status)$")
_LOST = re.compile(r"^Missing communicator data from (\d{1,9}) (?:(rank)|job process)")
_DEAD = re.compile(r"^(\d{1,9}) job process(?: is|es are) considered dead")
_VERSION = re.compile(r"NCCL version (\d[\w.+-]{0,40}) compiled")
_TIMEOUTS = re.compile(r"^Encountered (\d{1,9}) communication timeout")


@dataclass
class _Draft:
    hash: str
    missing: list[RasRank] = field(default_factory=list)
    missing_count: int = 0
    groups: list[tuple[RankGroup, list[RasRank]]] = field(default_factory=list)


class _TextReader:
    def __init__(self) -> None:
        self._version, self._timeouts = "", 0
        self._drafts: dict[str, _Draft] = {}
        self._draft = _Draft("")
        self._topic = "collective"
        self._lost: dict[str, tuple[int, list[RasProcess]]] = {}
        self._processes: list[RasProcess] = []
        self._ranks: list[RasRank] = []
        self._statuses: list[str] = []

    def take(self, line: str) -> None:
        if match := _RANK.match(line):
            self._rank(match)
        elif match := _PROCESS.match(line):
            gpus = tuple(int(number) for number in match[3].split(",") if 0 < len(number) < 10)
            self._processes.append(RasProcess(host=match[2], pid=int(match[1]), gpus=gpus))
        elif match := _MANY.match(line):
            self._group(match, int(match[1]), [])
        elif match := _DIFFERENT.match(line):
            self._topic = match[1] or "status"
        elif match := _COMMUNICATOR.match(line):
            self._draft = self._drafts.setdefault(match[1], _Draft(match[1].zfill(16)))
        elif match := _LOST.match(line) or _DEAD.match(line):
            self._missing(match)
        elif match := _GROUP_ROW.match(line):
            self._statuses.append(match[1])
        elif match := _VERSION.search(line):
            self._version = match[1]
        elif match := _TIMEOUTS.match(line):
            self._timeouts = int(match[1])

    def _missing(self, match: re.Match[str]) -> None:
        count = int(match[1])
        if match.re is _LOST and match[2]:
            self._drafts.setdefault(self._draft.hash, self._draft)
            self._draft.missing_count, self._ranks = count, self._draft.missing
        else:
            self._processes = []
            self._lost["dead" if match.re is _DEAD else "missing"] = count, self._processes

    def _rank(self, match: re.Match[str]) -> None:
        gpu, pid = (int(match[place]) if match[place] else None for place in (6, 7))
        rank = RasRank(int(match[1]), match[8], pid, gpu, match["status"] or "", match["error"] or "")
        if any(match[name] for name in ("count", "none", "status", "error")):
            self._group(match, 1, [rank])
        else:
            self._ranks.append(rank)

    def _group(self, match: re.Match[str], size: int, ranks: list[RasRank]) -> None:
        topic = "status" if match["status"] else "error" if match["error"] else self._topic
        value = match["status"] or match["error"] or int(match["count"] or 0)
        self._drafts.setdefault(self._draft.hash, self._draft)
        self._draft.groups.append((RankGroup(topic, value, size), ranks))
        self._ranks = ranks

    def answer(self) -> RasAnswer:
        missing_count, missing = self._lost.get("missing", (0, []))
        dead_count, dead = self._lost.get("dead", (0, []))
        communicators = []
        for draft in self._drafts.values():
            groups = tuple(replace(group, ranks=tuple(ranks)) for group, ranks in draft.groups)
            lost = tuple(draft.missing)
            communicators.append(Communicator(draft.hash, None, (), lost, draft.missing_count, groups))
        return RasAnswer(
            nccl_version=self._version,
            communicators=tuple(communicators),
            missing=tuple(missing),
            missing_count=missing_count,
            dead=tuple(dead),
            dead_count=dead_count,
            statuses=tuple(self._statuses),
            timeouts=self._timeouts,
        )


def parse_lines(lines: Iterable[str]) -> RasAnswer:
    reader = _TextReader()
    for line in lines:
        reader.take(line[:400].strip())
    return reader.answer()


_ERRORS = {  # ncclResult_t as the text form prints it
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
    8: "Timeout",
}

_IN_PROGRESS = 7
_MISSING_COMMA = re.compile(r"([}\d])(\s*)(?=\{|\"status\")")  # of missing ranks, and between them: 2.28.7 to 2.28.9

_MOST_VALUES, _MOST_CONTAINERS, _DEEPEST = 2_000_000, 200_000, 8
"""Limits for the content of a JSON answer.

A rank in the answer has three objects and about thirty values, and nccl-doctor reads at most 8 MiB of an answer.
"""
_MOST_TOPICS = 64  # names of collectives, of all ranks together: NCCL knows a dozen

_Count = Annotated[int, Field(ge=0, lt=1 << 64)]
_Small = Annotated[int, Field(ge=-1, lt=1 << 31)]
_Word = Annotated[str, StringConstraints(max_length=64, pattern=r"^[\w.:%+-]*$")]


class _Status(BaseModel):
    init_state: _Small = 0
    async_error: _Small = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    considered_dead: bool = False

    def word(self) -> str:
        if self.abort_flag:
            return "ABORT"
        if self.finalize_called or self.destroy_flag:
            return "FINALIZE"
        return "RUNNING" if self.init_state == 0 else "INIT"

    def error(self) -> str:
        codes = (code for code in (self.async_error, self.init_state) if code not in (0, _IN_PROGRESS))
        return next((_ERRORS.get(code, f"error {code}") for code in codes), "")


class _Rank(BaseModel):
    rank: _Small
    host: _Word = ""
    pid: _Small = -1
    cuda_dev: _Small = -1
    status: _Status = _Status()
    collective_counts: dict[_Word, _Count] = Field(default_factory=dict, max_length=64)

    def rank_of_ras(self, *, missing: bool) -> RasRank:
        return RasRank(
            rank=self.rank,
            host=None if self.host in ("", "unknown") else self.host,
            pid=None if self.pid < 0 else self.pid,
            gpu=self.cuda_dev,
            status="" if missing else self.status.word(),
            error="" if missing else self.status.error(),
            counts=self.collective_counts,
            dead=self.status.considered_dead,
        )


class _Communicator(BaseModel):
    hash: Annotated[str, StringConstraints(pattern=r"^(0x)?[0-9a-fA-F]{1,16}$")]
    size: _Small
    missing_ranks_count: _Small = 0
    ranks: Annotated[tuple[_Rank, ...], FailFast()] = ()
    missing_ranks: Annotated[tuple[_Rank, ...], FailFast()] = ()

    def communicator(self) -> Communicator:
        ranks = tuple(rank.rank_of_ras(missing=False) for rank in self.ranks)
        return Communicator(
            hash=f"{int(self.hash, 16):016x}",
            size=self.size,
            ranks=ranks,
            missing=tuple(rank.rank_of_ras(missing=True) for rank in self.missing_ranks),
            missing_count=max(self.missing_ranks_count, len(self.missing_ranks)),
            groups=tuple(_groups(ranks)),
        )


class _Ras(BaseModel):
    timeouts_count: _Count = 0


class _Answer(BaseModel):
    nccl_version: _Word
    communicators: Annotated[tuple[_Communicator, ...], FailFast()]
    ras: _Ras = _Ras()


def parse_json(text: str) -> RasAnswer:
    """Parse RAS's answer to ``STATUS`` after ``SET FORMAT json``. Raise the same errors as :func:`parse`."""
    try:
        refuse_crowded(text.encode(errors="replace"), values=_MOST_VALUES, containers=_MOST_CONTAINERS, depth=_DEEPEST)
        try:
            tree = from_json(text)
        except ValueError:
            tree = from_json(_MISSING_COMMA.sub(r"\1,\2", text))
        answer = _Answer.model_validate(tree)
    except CrowdedError:
        raise
    except ValueError as error:
        where = error.errors()[0]["loc"] if isinstance(error, ValidationError) else "not JSON"
        raise MalformedAnswerError(f"RAS answered what it never says: {where}") from error
    communicators = tuple(entry.communicator() for entry in answer.communicators)
    dead = {
        (rank.host, rank.pid): RasProcess(rank.host, rank.pid, () if rank.gpu is None else (rank.gpu,))
        for entry in communicators
        for rank in entry.missing
        if rank.dead and rank.host is not None and rank.pid is not None
    }
    gone, timeouts = tuple(dead.values()), answer.ras.timeouts_count
    return RasAnswer(answer.nccl_version, communicators, dead=gone, dead_count=len(gone), timeouts=timeouts)


def _groups(ranks: tuple[RasRank, ...]) -> Iterator[RankGroup]:
    topics = list(islice(dict.fromkeys(name for rank in ranks for name in rank.counts), _MOST_TOPICS))
    values: dict[str, list[int | str]] = {topic: [rank.counts.get(topic, 0) for rank in ranks] for topic in topics}
    values |= {"status": [rank.status for rank in ranks], "error": [rank.error for rank in ranks]}
    for topic, column in values.items():
        groups = grouped((value, rank) for rank, value in zip(ranks, column, strict=True))
        if topic == "error":
            groups.pop("", None)
        elif len(groups) < 2:
            continue
        for value, members in sorted(groups.items(), key=lambda item: -len(item[1])):
            yield RankGroup(topic, value, len(members), tuple(members))


_MOST_LINES = 200_000  # lines of a report: more than fit into the 8 MiB that are read from a host


def parse(text: str) -> RasAnswer:
    """Parse RAS's answer to ``STATUS`` or ``VERBOSE STATUS``, in text or JSON form.

    Raise CrowdedError for an answer that is too large, and MalformedAnswerError for any other invalid answer.
    """
    if text.lstrip().startswith("{"):
        return parse_json(text)
    if "NCCL version" not in text and "Communicators..." not in text:
        raise MalformedAnswerError("RAS answered neither a report nor JSON")
    if text.count("\n") > _MOST_LINES:
        raise CrowdedError(f"more than {_MOST_LINES:,} lines")
    return parse_lines(text.split("\n"))
