"""Parses and removes the prefixes that launchers, containers, and loggers add to log lines.

The host, rank, process, and time in the prefixes are stored in a :class:`Prefix`. The prefixes of NCCL's own lines
(src/debug.cc) depend on the version:

- NCCL 2.2 to 2.25: ``host:pid:tid [dev] NCCL INFO text`` and ``host:pid:tid [dev] file.cc:12 NCCL WARN text``
- NCCL 2.26 and later: a timestamp such as ``[2025-03-01 10:00:33] `` before WARN lines. NCCL_DEBUG_TIMESTAMP_LEVELS
  adds timestamps to other levels, and NCCL_DEBUG_TIMESTAMP_FORMAT changes the format.
- NCCL 2.30.7 and later: ``file.cc:12 (function) NCCL WARN text``, where plugins print a C++ signature as the function
- NCCL 2.31 and later: ``host:pid NCCL DIAG [OK] text``, without a thread ID or device
- RCCL's errors: ``host:pid:tid [dev] [FATAL ERROR]: text``

Lines that a terminal or mail program wrapped at a fixed width are joined. An empty line is added for each joined line,
so that line numbers remain correct.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from itertools import pairwise

from nccl_doctor.text.bounds import safe_regex
from nccl_doctor.text.secrets import part

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]|\x9b[0-?]*[ -/]*[@-~]")
"""Pattern for ECMA-48 control sequences (colours, cursor) and for sequences that set the title of a terminal."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\u200b-\u200f\ufeff]")

MOST_DIGITS = 9

QUOTED = 600
"""Maximum number of characters that are quoted from a line."""

_ESCAPES_IN_BYTES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")


def plain(block: bytes) -> bytes:
    """Return the block without terminal colour codes, which can occur even inside words."""
    return _ESCAPES_IN_BYTES.sub(b"", block) if b"\x1b" in block else block


_UTF_16 = {"utf-16-le": rb"(?:[^\0]\0){16}", "utf-16-be": rb"(?:\0[^\0]){16}", "utf-16": rb"\xff\xfe|\xfe\xff"}


def wide(head: bytes) -> codecs.IncrementalDecoder | None:
    """Return a decoder for a UTF-16 log, as written by PowerShell's ``>``, or None for any other encoding."""
    name = next((name for name, pattern in _UTF_16.items() if re.match(pattern, head)), None)
    return codecs.getincrementaldecoder(name)("replace") if name else None


def number(text: str | None) -> int | None:
    """Convert a rank, size, or sequence number to an integer; return None if the text has too many digits."""
    return int(text) if text and len(text) <= MOST_DIGITS else None


def decode(line: bytes) -> str:
    """Decode a line as UTF-8, removing escape sequences and replacing invalid bytes and control characters."""
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    return text if text.isprintable() else tidy(text)


def tidy(text: str) -> str:
    """Return the text with escape sequences removed and each control character replaced by a space."""
    return _CONTROLS.sub(" ", _ESCAPES.sub("", text)).replace("\t", " ")


def quote(text: str, start: int, end: int) -> str:
    """Return the line or, if the line is long, an excerpt around the characters from ``start`` to ``end``."""
    text = text.rstrip()
    if len(text) <= QUOTED:
        return text
    first = max(0, min(start - QUOTED // 3, len(text) - QUOTED))
    last = max(min(first + QUOTED, len(text)), min(end, first + 2 * QUOTED))
    return ("… " if first else "") + part(text, first, last).strip() + (" …" if last < len(text) else "")


_LEVELS = r"(?:NCCL|RCCL) (?:INFO|WARN|ATTN|VERSION|CALL|TRACE|ABORT|DIAG)(?: |$)"
_LEVEL = re.compile(_LEVELS)
_LEVEL_NAMES = {"ATTN": "WARN", "ERROR]:": "WARN"}  # the second is RCCL's "[FATAL ERROR]: "
_PROCESS = r"(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*):(?P<pid>\d+)"
_DIAGNOSTIC = safe_regex(_PROCESS + r" (?P<level>NCCL DIAG)(?: |$)")
_USUAL = re.compile(
    _PROCESS
    + r":(?P<tid>\d+) \[(?P<dev>-?\d+)\] (?P<where>(?:[^ \[\]]+:\d+ )?)(?P<level>"
    + _LEVELS
    + r"|\[FATAL ERROR\]: )"
)
"""Pattern for the usual prefix of NCCL's lines and RCCL's errors; matching takes linear time."""

_OWN = safe_regex(
    r"(?:" + _PROCESS + r":(?P<tid>\d+) )?(?:\[(?P<dev>-?\d+)\] )?"
    r"(?P<where>(?:[^ \[\]]+(?::\d+| \d+)(?: \([^()]*\))? ?|.{0,200}?:\d+ )?)(?P<level>" + _LEVELS + ")$"
)
"""Pattern for NCCL's prefix after other text, because lines of ranks that share a terminal might be interleaved."""

_RECORD = safe_regex(r"(?:^|[^A-Za-z0-9._-])([A-Za-z0-9][A-Za-z0-9._-]*:\d+:\d+ \[-?\d+\] )")
"""Pattern for the beginning of an NCCL record in a line that contains several records."""

_NO_TABLE = r"(?! (?! (?:host|rank|exitcode) +: ))"
"""Lookahead that rejects table rows, which begin with an additional space, but accepts rows of torchrun's summary."""

_TAGS: tuple[re.Pattern[str], ...] = tuple(
    map(
        re.compile,
        (
            # mpirun --tag-output, and SageMaker's: [1,3]<stdout>:  [1,mpirank:3,algo-2]<stderr>:  1,3:
            r"\[\d+,(?:mpirank:)?(?P<rank>\d+)(?:,(?P<host>[\w.-]+))?\]<\w+>:? ?",
            r"\d{1,5},(?P<rank>\d{1,5}): ?",
            # torchrun --tee and torch's excepthook: [rank3]:  [default3]:
            r"\[rank(?P<rank>\d+)\]:? ?",
            r"\[?(?:default|trainer|worker|role)\d+\]?: ?",
            # vLLM: (Worker_TP1 pid=1021)   Ray: (RayWorkerWrapper pid=233, ip=10.1.77.12)
            r"\(Worker_TP(?P<rank>\d+) pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\) ?",
            r"\((?:[\w.<>-]+(?:\([^)]*\))? )?(?:rank=(?P<rank>\d+) )?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\) ?",
            # journalctl, syslog: Nov 22 22:11:00 gpu07 train.sh[4242]:   2026-11-22T22:11:00+0000 gpu07 kernel:
            r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<host>[\w.-]+) (?:[\w./@-]+\[\d+\]|kernel): ",
            (
                r"(?P<date>\d{4}-\d\d-\d\d)T(?P<clock>\d\d:\d\d:\d\d)(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d) "
                r"(?P<host>[\w.-]+) (?:[\w./@-]+\[\d+\]|kernel): "
            ),
            # times, with or without brackets, followed by zones and levels
            (
                r"\|? ?[\[(]?(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T _](?P<clock>\d\d:\d\d:\d\d)(?:[.,]\d+)?"
                r"(?: ?(?:Z|[+-]\d\d:?\d\d)| UTC)?(?: TP(?P<rank>\d+)(?=\])|(?: [A-Z]+\d+)*)[\])]? ?\|? ?"
            ),
            r"(?:std(?:out|err) [FP] )",
            r"(?:>+ )+",
            # glog, torch: [E425 00:40:12.330102945 x.cpp:629]  W0228 09:02:41.936000 12814 api.py:766]
            r"\[?[IWEFC](?P<monthday>\d{3,4}) (?P<clock>\d\d:\d\d:\d\d)(?:[.,]\d+)?(?: +\d+)?(?: [\w./<>-]+:\d+)?\] ?",
            r"\[[IWEF] [\w.-]+\.(?:cpp|cc|hpp|h|py):\d+\] ?",
            (
                r"(?:INFO|WARN(?:ING)?|ERROR|DEBUG|CRITICAL)(?: \d\d-\d\d \d\d:\d\d:\d\d)? *"
                r"(?:\[(?!rank\d|\d+,)[^\]]*\] ?)?[:|-]? ?"
            ),
            r"\[(?:INFO|WARN(?:ING)?|ERROR|DEBUG|CRITICAL)\] ?",
            r"\[[\w./-]+\.py:\d+(?::\w+)?\] ?",
            r"\[(?:[Rr]ank|RANK|GPU|gpu)[ :=]?(?P<rank>\d+)\]:? ?",
            r"(?:[Rr]ank|RANK)[ :=]?(?P<rank>\d+) ?[:|] ",
            # kubectl logs --prefix: [pod/worker-0/pytorch]   docker compose: worker-1  |
            r"\[pod/(?P<host>[\w.-]+)/[\w.-]+\] ?",
            r"(?P<compose>(?P<host>[A-Za-z][\w.-]*[-_]\d{1,5})) +\|(?: |$)",
            r"(?P<host>[A-Za-z][\w.-]*) +\| ",
            # srun -l: "12: "   pdsh, clush, DeepSpeed: "gpu02: "
            r"(?P<task>\d{1,5}): ",
            r"(?P<host>(?=[\w.-]*[\d-])[A-Za-z][\w.-]{1,62}): " + _NO_TABLE,
            r"(?P<host>(?=[\w-]*\d)[A-Za-z][\w-]{1,62}):\d{1,5}[:>] " + _NO_TABLE,
        ),
    )
)
_NO_HOSTS = re.compile(
    r"(?i:errno|error|warning|rank|python|train|main|line|step|epoch|loss|exit|code|utf|sha|cuda|nccl|version)"
)
_MOST_TAGS = 12
_LONGEST = 600
"""Maximum length of NCCL's prefix in characters."""

_BAR = safe_regex(
    r"[^|━]{0,120}?\d{1,3}%\|[^|]{0,200}\|[^\[|]{0,40}\[[^\]|]{0,200}\] ?"
    r"|[^|━]{0,120}?━[━╸╺ ]{0,200}[^|━]{0,60}?(?:it/s|s/it) ?"
)
"""Pattern for a progress bar of tqdm ( ``45%|####5     | 45/100 [00:10<00:12]``) or rich (``━━━━╸ 45/100 0:00:10 •
4.50it/s``).
"""
_MOST_BARS = 8


@dataclass(frozen=True)
class Prefix:
    """The host, rank, process, and time in the prefixes of a line; missing values are None.

    Attributes:
        level: log level of a line from NCCL, such as "INFO" or "WARN" (which includes ATTN); None for any other line.
        where: source location in a warning from NCCL, such as ``file.cc:12``.
        task: task number printed by ``srun -l``; if ``rank_is_task`` is true, ``rank`` is the task number, which might
            differ from the actual rank.
        time: month, day, and second of the day as printed, for comparison within one log.
        start: index at which the message begins in the line.
    """

    host: str | None = None
    rank: int | None = None
    task: int | None = None
    rank_is_task: bool = False
    pid: str | None = None
    ip: str | None = None
    device: int | None = None
    level: str | None = None
    where: str = ""
    time: tuple[int, int, int] | None = None
    start: int = 0


def records(line: str) -> list[tuple[int, int]]:
    """Return the start and end of each record in a line; several ranks might have written to the same line."""
    starts = [match.start(1) for match in _RECORD.finditer(line)] if line.count("NCCL") > 1 else []
    if len(starts) < 2:
        return [(0, len(line))]
    edges = [0, *starts[1:], len(line)]
    return list(pairwise(edges))


def without_bars(text: str) -> tuple[str, str]:
    """Remove progress bars and return the rest of the line in two forms: without and with the line's prefix."""
    if "%|" not in text and "━" not in text:
        return text, text
    start = end = _peel_tags(text, {})
    for _ in range(_MOST_BARS):
        bar = _BAR.match(text, end)
        if bar is None:
            break
        end = bar.end()
    return (text, text) if end == start or not text[end:].strip() else (text[end:], text[:start] + text[end:])


_OF_LAUNCHER = ("slurmstepd: ", "srun: ")
"""Beginnings of Slurm messages that concern a whole job step."""


def peel(record: str) -> Prefix:
    """Return the values in a record's prefixes and the position of the message that follows the prefixes."""
    fields: dict[str, str] = {}
    position = _peel_tags(record, fields)
    nccl = _nccl(record[position : position + _LONGEST])
    if nccl is not None:
        fields |= {name: value for name, value in nccl.groupdict().items() if value}
        position += nccl.end()
    if record.startswith(_OF_LAUNCHER, position):  # srun -l prints them behind the number of any task
        fields.pop("task", None)
    host = fields.get("host")
    return Prefix(
        host=None if host is None or ("compose" not in fields and nccl is None and _NO_HOSTS.search(host)) else host,
        rank=number(fields.get("rank", fields.get("task"))),
        task=number(fields.get("task")),
        rank_is_task="rank" not in fields and "task" in fields,
        pid=fields.get("pid"),
        ip=fields.get("ip"),
        device=number(fields.get("dev")),
        level=_LEVEL_NAMES.get(word := fields["level"].split()[1], word) if "level" in fields else None,
        where=fields.get("where", "").strip(),
        time=_time(fields),
        start=position,
    )


def _nccl(text: str) -> re.Match[str] | None:
    """Search ``text`` for NCCL's own prefix, which might follow other text; return the match or None."""
    if "CCL " not in text and "] [FATAL ERROR]: " not in text:
        return None
    usual = _USUAL.match(text)
    level = _LEVEL.search(text) if usual is None else None
    if level is None:
        return usual
    text = text[: level.end()]
    return (_DIAGNOSTIC.search(text) if "DIAG" in level[0] else None) or _OWN.search(text)


def _peel_tags(record: str, fields: dict[str, str]) -> int:
    """Store the values from launcher and logger prefixes in ``fields`` and return the index where the prefixes end."""
    position = 0
    is_torchs = False
    for _ in range(_MOST_TAGS):
        while record.startswith(" ", position):
            position += 1
        tags = (tag.match(record, position) for tag in _TAGS)
        tag = next((match for match in tags if match and match.end() > position), None)
        if tag is None:
            break
        for name, value in tag.groupdict().items():
            # torch's own [rank25] follows mpirun's [1,3], which counts the launchers; the [Rank 1] after it counts the
            # members of a process group (ProcessGroupNCCL.cpp, logPrefix)
            if value and (name not in fields or (name == "rank" and not is_torchs)):
                fields[name] = value
        is_torchs = is_torchs or tag[0].startswith("[rank")
        position = tag.end()
    return position


def _time(fields: dict[str, str]) -> tuple[int, int, int] | None:
    """Return the month, day, and second of the day; the year is omitted because glog does not print a year."""
    if "clock" not in fields:
        return None
    hours, minutes, seconds = (int(part) for part in fields["clock"].split(":"))
    if "date" in fields:
        month, day = int(fields["date"][5:7]), int(fields["date"][8:10])
    else:
        month, day = int(fields["monthday"][:-2]), int(fields["monthday"][-2:])
    return month, day, hours * 3600 + minutes * 60 + seconds


_BEGINS = re.compile(
    rb"(?:\[|\(|\{|#|\||[IWEF]\d{4} |\d{4}[-/]\d\d|[A-Z][\w.]*(?:Error|Exception|Warning)\b|Traceback| +File \"|"
    rb"INFO|WARN|ERROR|DEBUG|NCCL|"
    rb"[\w.-]+:\d+:\d+ |[\w.-]+: [\w.-]+:\d+|(?:\d+|[\w.-]{2,}): |\s*$)"
)
"""Pattern for the usual beginnings of lines; a line that matches is not the continuation of a wrapped line."""

_NARROW, _WIDE = 40, 512
_ENOUGH = 2
"""A log counts as wrapped only if at least this many lines have the maximum width."""


def width(sample: bytes) -> int | None:
    """Return the width at which ``sample`` was wrapped, or None if its lines are not wrapped."""
    lines = sample.split(b"\n")
    lengths = Counter(len(line.rstrip(b"\r")) for line in lines)
    widest = max(lengths, default=0)
    if not _NARROW <= widest <= _WIDE or lengths[widest] < _ENOUGH:
        return None
    pairs = list(pairwise(lines))
    cut = [not _BEGINS.match(after) for line, after in pairs if len(line.rstrip(b"\r")) == widest]
    return widest if cut and sum(cut) * 5 >= len(cut) * 4 else None


def join(block: bytes, cut_at: int, glue: bytes = b"") -> bytes:
    """Return the block with each line of ``cut_at`` bytes joined by ``glue`` to its continuation."""
    lines = [line.rstrip(b"\r") for line in block.split(b"\n")]
    cut = (len(line) == cut_at for line in (b"", *lines))
    return _glued([(line, after and not _BEGINS.match(line)) for line, after in zip(lines, cut, strict=False)], glue)


_LAST = re.compile(rb"(?P<tags>.{0,200}?)Last error: *\r?")
"""Pattern for the ``Last error:`` line in torch's exceptions, which precedes NCCL's last message."""


def flow(block: bytes, glue: bytes, whole: Container[int] = ()) -> bytes:
    """Append each apparent continuation to the previous line, except lines whose numbers are in ``whole``.

    In torch's exceptions, all lines of NCCL's last message are joined, regardless of how the lines begin.
    """
    pieces: list[tuple[bytes, bool]] = []
    begun, tags = b"", None
    for number, line in enumerate(block.split(b"\n"), 1):
        last = _LAST.fullmatch(line)
        inner = last["tags"] if last else tags
        is_tagged = inner is not None and begun.startswith(inner) and line.startswith(inner)
        goes_on = begun != b"" and number not in whole and (is_tagged or not _BEGINS.match(line))
        begun = begun if goes_on else line
        piece = line[len(inner or b"") if is_tagged else 0 :].strip() if goes_on else line
        pieces.append((b" " + piece + b" " if last and goes_on else piece, goes_on))
        tags = last["tags"] if last else None
    return _glued(pieces, glue)


def _glued(pieces: list[tuple[bytes, bool]], glue: bytes) -> bytes:
    """Join each line with its continuations and add an empty line for each continuation."""
    lines: list[bytes] = []
    begins = [at for at, (_, goes_on) in enumerate(pieces) if not goes_on]
    for at, end in pairwise([*begins, len(pieces)]):
        lines += [glue.join(piece for piece, _ in pieces[at:end]), *[b""] * (end - at - 1)]
    return b"\n".join(lines)
