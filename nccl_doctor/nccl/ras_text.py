"""The text form of an answer of RAS (NCCL 2.24 on), line by line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from nccl_doctor.nccl.ras_answer import Communicator, RankGroup, RasAnswer, RasProcess, RasRank

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
    """A communicator while its lines are read; each group with the ranks that follow it."""

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
        host, pid, gpu = match[8], match[7], match[6]
        rank = RasRank(
            rank=int(match[1]), host=host, pid=int(pid) if pid else None, gpu=int(gpu) if gpu else None,
            status=match["status"] or "", error=match["error"] or "", counts={}, dead=False,
        )  # fmt: skip
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
        return RasAnswer(
            nccl_version=self._version,
            communicators=tuple(
                Communicator(
                    hash=draft.hash,
                    missing=tuple(draft.missing),
                    missing_count=draft.missing_count,
                    groups=tuple(replace(group, ranks=tuple(ranks)) for group, ranks in draft.groups),
                )
                for draft in self._drafts.values()
            ),
            missing=tuple(missing), missing_count=missing_count, dead=tuple(dead), dead_count=dead_count,
            statuses=tuple(self._statuses), timeouts=self._timeouts,
        )  # fmt: skip


def parse_lines(lines: Iterable[str]) -> RasAnswer:
    """What lines of the text form tell; those of anything else between them are passed over."""
    reader = _TextReader()
    for line in lines:
        reader.take(line[:400].strip())
    return reader.answer()
