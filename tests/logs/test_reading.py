"""Files, folders, compression, damage, wrapping, and several processes."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nccl_doctor.errors import UsageError
from nccl_doctor.logs import flight, reading, run
from nccl_doctor.logs.diagnose import Investigation, LogSource, LogVerdict, diagnose
from nccl_doctor.logs.log import KEPT, LAST
from nccl_doctor.logs.prefix import join, width
from nccl_doctor.logs.rule import Grade
from nccl_doctor.logs.run import LogsRun
from nccl_doctor.logs.signs import Case
from nccl_doctor.logs.verdict import report as log_report
from tests.each import each
from tests.patience import LONG_S

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NOISE = "[rank{0}]: step {1} loss 0.5\n"
PLACES = [
    "Traceback (most recent call last):\n",
    "{'train_runtime': 812.1, 'train_loss': 1.22, 'epoch': 1.0}\n",
    "        1048576        262144     float     sum    1762.4    0.59    0.59  0e+00\n",
    "n1:1:2 [0] NCCL INFO comm 0x5 rank 2 nranks 4 cudaDev 2 busId 1000 - Destroy COMPLETE\n",
    "  host      : gpu07\n  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 4242)\n",
]
FAULT = "n1:1:2 [0] NCCL WARN Cuda failure 2 'out of memory'\n"


def with_checksum(data: bytes) -> bytes:
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})


def log(lines: int, fault_at: int) -> bytes:
    rows = [NOISE.format(n % 8, n) for n in range(lines)]
    rows[fault_at] = FAULT
    return "".join(rows).encode()


def place(verdict: LogVerdict) -> tuple[str, int]:
    (line,) = Case(verdict.causes[0], verdict.log).evidence()
    return Path(line.file).name, line.line


@pytest.mark.parametrize(
    ("suffix", "pack"), [("log", bytes), ("gz", gzip.compress), ("xz", lzma.compress), ("zst", zstd.compress)]
)
def test_compressed(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / f"run.{suffix}").write_bytes(pack(log(5000, 4321)))
    assert place(LogsRun((str(tmp_path),)).read()) == (f"run.{suffix}", 4322)


def test_a_pipe_to_which_nobody_writes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "WRITER_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    for follow in (False, True):
        with pytest.raises(UsageError, match=r"pipe: is a pipe to which no process wrote within 0\.2 s"):
            LogsRun((str(tmp_path / "pipe"),), follow=follow).read()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("follow", [False, True])
def test_a_pipe_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes], *, follow: bool
) -> None:
    """Whoever came first, and however long the writer says nothing."""
    monkeypatch.setattr(reading, "WRITER_S", LONG_S)
    (tmp_path / "log").write_bytes(pack(log(5000, 4321)))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", 'cat "$0" >"$1"', tmp_path / "log", pipe]):
        assert place(LogsRun((str(pipe),), follow=follow).read()) == ("pipe", 4322)
    silent = os.open(pipe, os.O_RDWR)
    blocks = reading.file_blocks(pipe)
    os.write(silent, b"first\n")
    assert next(blocks) == b"first\n"

    def end() -> None:
        os.write(silent, b"last\n")
        os.close(silent)

    threading.Timer(0.2, end).start()
    assert b"".join(blocks) == b"last\n"


def test_who_follows_a_pipe_is_told_soon_after_the_fatal_line(tmp_path: Path) -> None:
    """Its writer has it open still, as torchrun does while other ranks stand."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    os.write(writer, log(50, 43))
    assert place(LogsRun((str(pipe),), follow=True).read()) == ("pipe", 44)
    os.close(writer)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
@pytest.mark.parametrize("more", [b"", b"2"])
def test_an_archive_that_was_cut_off_may_hold_what_was_not_seen(
    tmp_path: Path, pack: Callable[[bytes], bytes], more: bytes
) -> None:
    rng = random.Random(1)
    data = pack(b"".join(b"%030x\n" % rng.getrandbits(120) for _ in range(3_000)))
    whole, cut = tmp_path / "whole.log", tmp_path / "cut.log"
    whole.write_bytes(data + (pack(more) if more else b""))
    cut.write_bytes(data[:-5000])
    assert log_report(LogsRun((str(whole),)).read(), 0).complete
    told = log_report(LogsRun((str(cut),)).read(), 0)
    assert (told.complete, told.diagnoses) == (False, ())
    assert "cut.log is a truncated archive" in told.phases[0].text


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("zst", zstd.compress)])
def test_an_archive_that_was_cut_off_is_read_as_far_as_it_goes(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    rng = random.Random(1)
    data = FAULT.encode() + b"".join(b"%030x\n" % rng.getrandbits(120) for _ in range(30_000))
    path = tmp_path / f"run.log.{suffix}"
    path.write_bytes(pack(data)[:-5000])
    report = LogsRun((str(path),)).read()
    assert place(report) == (path.name, 1)


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("zst", with_checksum)])
def test_a_damaged_archive_is_one_sentence(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    data = bytearray(pack(random.Random(1).randbytes(50_000)))
    data[20_000:20_100] = bytes(100)
    path = tmp_path / f"run.{suffix}"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="is compressed but damaged"):
        LogsRun((str(path),)).read()


@pytest.mark.slow
def test_an_archive_that_asks_for_memory_is_one_sentence(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 512 << 20}]
    hungry = tmp_path / "run.xz"
    hungry.write_bytes(lzma.compress(b"x\n", filters=filters))
    with pytest.raises(UsageError, match="is compressed but damaged: Memory usage limit exceeded"):
        LogsRun((str(hungry),)).read()
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 30})
    hungry.write_bytes(packer.compress(b"y" * 1000) + packer.flush())
    with pytest.raises(UsageError, match=r"is compressed but damaged: .*memory"):
        LogsRun((str(hungry),)).read()


def test_an_archive_that_never_ends_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_ENOUGH", 1 << 20)
    path = tmp_path / "run.xz"
    path.write_bytes(lzma.compress(bytes(30 << 20)))
    with pytest.raises(UsageError, match="unpacks to more than 2000 times its size"):
        LogsRun((str(path),)).read()


def test_several_archives_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "run.xz"
    path.write_bytes(lzma.compress(b"fine\n") + bytes(8) + lzma.compress(FAULT.encode()))
    assert place(LogsRun((str(path),)).read()) == ("run.xz", 2)


def test_what_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        LogsRun((str(tmp_path / "none.log"),)).read()
    with pytest.raises(UsageError, match="no log in this folder"):
        LogsRun((str(tmp_path),)).read()


def test_what_is_plainly_no_log_is_left_out_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(log(10, 3))
    (tmp_path / "rank0.log").write_bytes(b"fine\n")
    verdict = LogsRun((str(tmp_path),)).read()
    assert (verdict.files, verdict.causes) == (1, ())


def test_memory_does_not_grow_with_a_line(tmp_path: Path) -> None:
    blocks = [b"x" * 100_000] * 100 + [b"\n" + FAULT.encode()]
    verdict = diagnose([LogSource("x", blocks)])
    assert verdict.bytes > 10_000_000
    assert place(verdict) == ("x", 2)


def test_what_begins_as_a_record_and_goes_on_as_a_log_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "MAX_BYTES", 1 << 20)
    head = b'$ ncclras\n{"communicators_count": 1}\n'
    investigation = Investigation()
    investigation.begin("x.log")
    events = [event for block in [head, log(5000, 3), *[log(50_000, 9)] * 3] for event in investigation.feed(block)]
    assert [event.line for event in events] == [6, 5012, 55_012, 105_012]


def test_what_is_no_known_archive_is_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "run.bz2"
    path.write_bytes(bz2.compress(log(100, 3)))
    assert LogsRun((str(path),)).read().causes == ()


@pytest.mark.parametrize("size", [997, 4096, 50_000])
def test_several_processes_see_what_one_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(run, "_PART", size)
    monkeypatch.setattr(run, "LONG", 1)
    monkeypatch.setattr(run, "processes", lambda: 2)
    rng = random.Random(size)
    for name in "abc":
        data = (NOISE.format(0, 0) * 1000 + "".join(PLACES)).encode() + log(2000, rng.randrange(2000))
        (tmp_path / f"{name}.log").write_bytes(data)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    names = tuple(str(path) for path in sorted(tmp_path.iterdir()))
    counted: list[int] = []
    session = LogsRun(names, progress=counted.append)
    session.begin()
    together = session.read()
    one = diagnose([LogSource(name, [gzip.decompress(Path(name).read_bytes()) if name.endswith("gz") else Path(name).read_bytes()])
                    for name in names])  # fmt: skip
    assert together.bytes == one.bytes
    assert [(e.file, e.line, e.text) for e in together.causes[0].events] == [
        (e.file, e.line, e.text) for e in one.causes[0].events
    ]
    assert sum(counted) >= together.bytes
    for ours, theirs in zip(together.log.readings, one.log.readings, strict=True):
        told = (ours.tracebacks, ours.well, ours.row, ours.torn, ours.summary, ours.tail)
        assert told == (theirs.tracebacks, theirs.well, theirs.row, theirs.torn, theirs.summary, theirs.tail)
        assert told[:4] == ([1001], 1002, 1003, {(2, 4): 1004})
        assert [(one.pid, one.code, one.rank, one.host) for one in ours.summary] == [("4242", -9, 3, "gpu07")]


def test_an_answer_of_ras_beside_long_logs_is_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ras.json").write_bytes(b'{\n  "communicators_count": 1\n}\n')
    monkeypatch.setattr(run, "LONG", 1)
    monkeypatch.setattr(run, "processes", lambda: 2)
    assert run._read(run.Part(tmp_path / "ras.json", 0, 30)) is None


def test_a_line_that_fills_a_part_leaves_the_next_line_to_the_next_part(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(b"a\n" + b"x" * 9 + b"\n" + FAULT.encode())
    parts = [run.Part(path, start, end) for start, end in ((0, 4), (4, 12), (12, 12 + len(FAULT)))]
    found = [reading for part in parts if (reading := run._read(part)) is not None]
    assert [len(reading.events) for reading in found] == [0, 0, 1]
    assert sum(reading.bytes for reading in found) == path.stat().st_size


def test_a_summary_that_a_border_of_parts_cuts_is_read_whole(tmp_path: Path) -> None:
    path, block = tmp_path / "run.log", PLACES[-1]
    path.write_text(block)
    for cut in range(1, len(block)):
        parts = [run.Part(path, 0, cut), run.Part(path, cut, len(block))]
        whole = run._merged([reading for part in parts if (reading := run._read(part)) is not None])
        assert [(one.pid, one.code, one.rank, one.host) for one in whole.summary] == [("4242", -9, 3, "gpu07")]


def test_parts_keep_no_more_than_one_reader_does_and_the_last_words(tmp_path: Path) -> None:
    path, raised = tmp_path / "run.log", "Traceback (most recent call last):\nValueError: {}\n"
    path.write_text("".join(raised.format("bad " * (n % 7)) for n in range(2000)))
    size = path.stat().st_size
    parts = [run.Part(path, at, min(at + 9000, size)) for at in range(0, size, 9000)]
    whole = run._merged([reading for part in parts if (reading := run._read(part)) is not None])
    assert [event.line for event in whole.events][:KEPT] == [2 * n for n in range(1, KEPT + 1)]
    assert KEPT < len(whole.events) <= KEPT + LAST
    assert (len(whole.tracebacks), whole.counts["script-failed", Grade.HINT]) == (KEPT, 2000)


def test_what_can_not_be_read_beside_long_logs_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.log").write_bytes(log(100, 3))
    monkeypatch.setattr(run, "LONG", 1)
    monkeypatch.setattr(run, "processes", lambda: 2)
    session = LogsRun((str(tmp_path), "/proc/self/mem"))
    session.begin()
    with pytest.raises(UsageError, match="can't be read"):
        session.read()


def test_wrapped_lines_are_joined_and_keep_their_numbers() -> None:
    wrapped = b"ab\n" + b"x" * 60 + b"\nrest\nnext: " + b"y" * 54 + b"\nmore\nend\n"
    assert width(wrapped) == 60
    assert join(wrapped, 60).split(b"\n") == [
        b"ab", b"x" * 60 + b"rest", b"", b"next: " + b"y" * 54 + b"more", b"", b"end", b"",
    ]  # fmt: skip


def test_equal_long_lines_of_ranks_are_no_wrapping() -> None:
    assert width(b"".join(b"[rank%d]: " % n + b"z" * 70 + b"\n" for n in range(9))) is None


@each(["utf-16", "utf-16-le", "utf-16-be"], lambda encoding: encoding)
def test_what_powershell_writes_is_read(encoding: str) -> None:
    text = "".join(NOISE.format(n % 8, n) for n in range(9000)) + FAULT
    data = text.encode(encoding)
    for size in (37, 1 << 16, len(data)):
        verdict = diagnose([LogSource("run.log", [data[at : at + size] for at in range(0, len(data), size)])])
        assert place(verdict) == ("run.log", 9001)
