"""What launchers, containers, loggers and NCCL put before a message."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.prefix import peel, records
from tests.each import each


@pytest.mark.parametrize(
    ("line", "wanted", "message"),
    [
        ("n1:77:78 [3] NCCL INFO Using network IB", {"host": "n1", "pid": "77", "device": 3, "level": "INFO"}, "Using network IB"),
        ("n1:77:78 [-1] misc/socket.cc:12 NCCL WARN x", {"device": -1, "level": "WARN", "where": "misc/socket.cc:12"}, "x"),
        ("n1:77:78 [0] include/socket.h 398 NCCL WARN x", {"level": "WARN", "where": "include/socket.h 398"}, "x"),
        ("[2025-03-01 10:00:33] n1:77:78 [0] a.cc:1 (f) NCCL WARN x", {"time": (3, 1, 36033), "where": "a.cc:1 (f)"}, "x"),
        ("n1:77:78 [0] int f(void*, int):46 NCCL WARN NET/OFI x", {"level": "WARN", "host": "n1"}, "NET/OFI x"),
        ("n1:77 NCCL DIAG [OK] x", {"host": "n1", "pid": "77", "level": "DIAG"}, "[OK] x"),
        ("[3] include/shm.h:28 NCCL WARN x", {"host": None, "device": 3, "level": "WARN"}, "x"),
        ("[1,3]<stdout>:n1:7:8 [0] NCCL INFO x", {"rank": 3, "host": "n1"}, "x"),
        ("[1,mpirank:5,algo-2]<stderr>:boom", {"rank": 5, "host": "algo-2"}, "boom"),
        ("[rank12]:[E425 00:40:12.33 ProcessGroupNCCL.cpp:629] x", {"rank": 12, "time": (4, 25, 2412)}, "x"),
        ("[1,0]<stderr>:[rank25]: x", {"rank": 25}, "x"),
        ("(RayWorkerWrapper pid=233, ip=10.1.77.12) [rank8]: x", {"rank": 8, "ip": "10.1.77.12", "pid": "233"}, "x"),
        ("(EngineCore_DP0 pid=412) x", {"pid": "412"}, "x"),
        ("12: gpu02:1:2 [0] NCCL INFO x", {"rank": 12, "host": "gpu02"}, "x"),
        ("gpu-02: Traceback (most recent call last):", {"host": "gpu-02"}, "Traceback (most recent call last):"),
        ("ValueError: x", {"host": None}, "ValueError: x"),
        ("2022-03-03T11:40:02.118392713Z ValueError: x", {"time": (3, 3, 42002)}, "ValueError: x"),
        ("2023/10/26 12:12:05 job-1:2:3 [0] NCCL INFO x", {"host": "job-1", "time": (10, 26, 43925)}, "x"),
        ("2025-01-02T03:04:05.6Z stderr F x", {"time": (1, 2, 11045)}, "x"),
        ("W0228 09:02:41.936000 12814 site-packages/torch/api.py:766] x", {"time": (2, 28, 32561)}, "x"),
        ("[pod/worker-0/pytorch] x", {"host": "worker-0"}, "x"),
        ("worker-1-1  | x", {"host": "worker-1-1"}, "x"),
        ("trainer_1  | (EngineCore pid=188) x", {"host": "trainer_1", "pid": "188"}, "x"),
        ("train_loss | 0.31", {"host": None}, "0.31"),
        ("1,5: x", {"rank": 5}, "x"),
        ("1,500: x", {"rank": 500}, "x"),
        ("1,5 x", {"rank": None}, "1,5 x"),
        ("[2025-02-24 14:09:34 TP14] x", {"time": (2, 24, 50974), "rank": 14}, "x"),
        ("[2025-02-24 14:09:34 PP1 TP0] x", {"time": (2, 24, 50974), "rank": None}, "x"),
        ("2025-11-09 15:39:31.043 +08:00 [2025-11-09 07:39:30] n1:2:3 [0] a.cc:1 NCCL WARN x", {"host": "n1"}, "x"),
        ("(Worker_TP1 pid=1021) x", {"rank": 1, "pid": "1021"}, "x"),
        ("(Worker_DP0_TP1 pid=1021) x", {"rank": None, "pid": "1021"}, "x"),
        ("Nov  2 22:11:00 gpu07 train.sh[4242]: ValueError: x", {"host": "gpu07"}, "ValueError: x"),
        ("2026-11-22T22:11:00+0000 gpu07 kernel: Killed x", {"host": "gpu07", "time": (11, 22, 79860)}, "Killed x"),
        ("2026-11-22T22:11:00Z in worker: x", {"host": None}, "in worker: x"),
        ("> > n1:1:2 [0] NCCL INFO x", {"host": "n1"}, "x"),
    ],
)  # fmt: skip
def test_peeled_and_used(line: str, wanted: dict[str, Any], message: str) -> None:
    prefix = peel(line)
    assert {name: getattr(prefix, name) for name in wanted} == wanted
    assert line[prefix.start :].strip() == message


OUTER = (
    "gpu02: ",
    "Nov 22 22:11:00 gpu02 run.sh[42]: ",
    "2026-11-22T22:11:00+0000 gpu02 dockerd[9]: ",
    "[pod/gpu02/pytorch] ",
    "gpu02-1  | ",
)
INNER = (
    "[1,0]<stderr>: ",
    "1,0: ",
    "0: ",
    "(RayWorkerWrapper pid=233, ip=10.1.77.12) ",
    "2026-11-22T22:11:00.123456789Z ",
    "2026-11-22T22:11:00.123456789Z stderr F ",
    "[default0]:",
    "2026-11-22 22:11:00,123 ERROR ",
)


@each([(outer, *inner) for outer in OUTER for inner in product(INNER, repeat=2)], "".join)
def test_prefixes_nest(stack: tuple[str, ...]) -> None:
    raised, nccl = (f"{''.join(stack)}{line}" for line in ("[rank3]: ValueError: x", "n7:77:78 [3] NCCL INFO x"))
    prefix = peel(raised)
    assert (prefix.rank, raised[prefix.start :]) == (3, "ValueError: x")
    assert prefix.host in {"gpu02", "gpu02-1"}
    assert (peel(nccl).host, peel(nccl).pid, nccl[peel(nccl).start :]) == ("n7", "77", "x")
    found = diagnose([LogSource("run.log", [f"{raised}\n".encode()])]).causes
    assert [cause.name for cause in found] == ["script-failed"]
    healthy = f"{''.join(stack)}epoch 3: loss 0.31, ValueError rate 0\n"
    assert diagnose([LogSource("run.log", [healthy.encode()])]).causes == ()


def test_ranks_that_wrote_into_one_line_are_told_apart() -> None:
    line = "n1:1:2 [0] NCCL INFO Channel 0 n2:3:4 [1] a.cc:9 NCCL WARN boom"
    assert [line[start:end] for start, end in records(line)] == [
        "n1:1:2 [0] NCCL INFO Channel 0 ",
        "n2:3:4 [1] a.cc:9 NCCL WARN boom",
    ]


@given(st.text(max_size=300))
def test_any_text_is_peeled(text: str) -> None:
    assert 0 <= peel(text).start <= len(text)
    assert "".join(text[start:end] for start, end in records(text)) == text


def test_torchs_rank_is_found_behind_what_nobody_knows() -> None:
    for line in ('{"log":"[rank3]: %s","stream":"stderr"}', "2026-11-22 22:11:00,1 - __main__ - ERROR - [rank3]: %s"):
        text = line % "torch.OutOfMemoryError: CUDA out of memory."
        assert [event.rank for event in diagnose([LogSource("run.log", [text.encode()])]).causes[0].events] == [3]
