"""What hosts wrote is read in a process that takes little, and whose end takes nothing else with it."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.collect.hang import reader
from nccl_doctor.collect.hang.reader import DocumentReader, UnreadableError
from nccl_doctor.logs import flight
from tests.hostile.dumps import call, doubled, dump
from tests.patience import LONG_S


@pytest.fixture
def read() -> Iterator[DocumentReader]:
    made = DocumentReader(time.monotonic() + LONG_S)
    yield made
    made.close()


def pid(made: DocumentReader) -> int:
    assert made._process is not None
    return made._process.pid


def test_the_last_calls_come_back_and_the_last_of_each_group(read: DocumentReader) -> None:
    calls = [call(7, group="1"), *(call(seq) for seq in range(1, 101))]
    found = read.dump("node1", "rank_3", pickle.dumps(dump(*calls)))
    assert found is not None
    assert (found.rank, [one.seq for one in found.records]) == (3, [7, 36, *range(37, 101)])
    alone = flight.read("rank_3", pickle.dumps(dump(call(100))))
    assert alone is not None
    assert found.records[-1:] == alone.records


def test_one_process_reads_all_and_is_bound(read: DocumentReader) -> None:
    assert read.dump("node1", "rank_3", pickle.dumps([1])) is None
    first = pid(read)
    read.look_through("node1", "NCCL version 2.28.9 compiled with CUDA 13\n")
    assert read.dump("node2", "rank_0", pickle.dumps(dump(call(1)))) is not None
    assert pid(read) == first
    limits = Path(f"/proc/{first}/limits").read_text()
    (space,) = (line.split()[3] for line in limits.splitlines() if line.startswith("Max address space"))
    assert int(space) == reader.MEMORY


@pytest.mark.parametrize("data", [doubled(60), b"\x80\x04" + b"}" * (8 << 20), b'{"entries": ' + b"[" * (8 << 20)])
def test_one_that_asks_for_too_much_is_that_hosts_alone(read: DocumentReader, data: bytes) -> None:
    with pytest.raises(UnreadableError, match="more than"):
        read.dump("node1", "rank_0", data)
    assert read.dump("node2", "rank_1", pickle.dumps(dump(call(1)))) is not None


def test_where_the_process_dies_the_next_document_gets_a_new_one(read: DocumentReader) -> None:
    assert read.dump("node1", "rank_0", pickle.dumps(dump(call(1)))) is not None
    os.kill(pid(read), 9)
    with pytest.raises(UnreadableError, match="takes more than"):
        read.dump("node1", "rank_0", pickle.dumps(dump(call(1))))
    assert read.dump("node2", "rank_1", pickle.dumps(dump(call(1)))) is not None
    with pytest.raises(UnreadableError, match="other ones took"):
        read.dump("node1", "rank_0", pickle.dumps(dump(call(1))))


def test_nobody_waits_for_it_longer_than_for_the_run() -> None:
    late = DocumentReader(time.monotonic() - 1)
    with pytest.raises(UnreadableError, match="no time was left"):
        late.dump("node1", "rank_0", pickle.dumps(dump(call(1))))
    assert late._process is None
    late.close()


def test_what_takes_for_ever_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_ENTRY", "import time; time.sleep(36000)")
    made = DocumentReader(time.monotonic() + 0.5)
    with pytest.raises(UnreadableError, match="no time was left"):
        made.dump("node1", "rank_0", pickle.dumps(dump(call(1))))
    assert made._process is None


def test_ctrl_c_is_heard_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_ENTRY", "import time; time.sleep(36000)")

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    made = DocumentReader(time.monotonic() + LONG_S)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            made.dump("node1", "rank_0", pickle.dumps(dump(call(1))))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert made._process is None


def test_nothing_is_left_when_the_run_ends() -> None:
    made = DocumentReader(time.monotonic() + LONG_S)
    made.dump("node1", "rank_0", pickle.dumps(dump(call(1))))
    number = pid(made)
    made.close()
    assert not Path(f"/proc/{number}").exists()
    with pytest.raises(UnreadableError):
        made.dump("node1", "rank_0", b"")


def test_it_finds_the_package_wherever_this_one_did(read: DocumentReader, monkeypatch: Any) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("PYTHONPATH", "/nonexistent")
    assert read.dump("node1", "rank_0", pickle.dumps(dump(call(1)))) is not None
