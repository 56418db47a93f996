"""Logs after public threads, most of 2026: ``threads/cases.jsonl`` names the thread and the accepted diagnoses of each.

The decisive lines, their order and the cause are the threads'; hosts, addresses and times are made up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.finding import Diagnosis
from tests.each import each

FOLDER = Path(__file__).parent / "threads"
CASES: list[dict[str, Any]] = [json.loads(line) for line in (FOLDER / "cases.jsonl").read_text().splitlines()]

WRONG = (
    "n1001",  # a hang after some steps, of which no line tells: it is said, as worth knowing
)
"""What no log can show."""


def loud(*texts: bytes) -> list[Diagnosis]:
    """The diagnoses above info."""
    sources = [LogSource(f"rank{n}.log", [text]) for n, text in enumerate(texts)]
    return [one for one in report(diagnose(sources), 0.0).diagnoses if one.severity.value != "info"]


@each(CASES, lambda case: case["file"])
def test_the_accepted_diagnosis_comes_first_or_none_where_nothing_was_wrong(case: dict[str, Any]) -> None:
    found = loud((FOLDER / case["file"]).read_bytes())
    right = found[0].name in case["accepted"] if found and case["accepted"] else not found and not case["accepted"]
    assert right is (case["file"].partition("-")[0] not in WRONG), [one.name for one in found]


def test_every_log_has_its_case_and_its_thread() -> None:
    assert sorted(case["file"] for case in CASES) == sorted(path.name for path in FOLDER.glob("*.log"))
    assert all(case["source"] and case["date"][:4].isdigit() for case in CASES)


NAMED: list[tuple[str, dict[str, object]]] = [
    ("n103-vllm-free-memory-low", {"rank": 0}),
    ("n208-sglang-gb10-watchdog-sigkill", {"rank": 0, "nccl_version": "2.28.3", "iface": "enp1s0f0np0"}),
    ("n401-lightning-monarch-internal-name", {"host": "job-0001.internal", "port": 50745}),
    ("n507-local-access-violation", {"host": "node28", "ip": "172.16.12.34", "iface": "mlx5_ib0", "port": 38081}),
]


@each(NAMED, str)
def test_what_the_lines_name_is_told(case: tuple[str, dict[str, object]]) -> None:
    (found, *_) = loud((FOLDER / f"{case[0]}.log").read_bytes())
    assert (found.entities or {}).items() >= case[1].items()


def test_what_no_line_names_is_not_made_up() -> None:
    for text in ("RuntimeError: Connection reset by peer", "(Worker_DP1_TP0 pid=7) ValueError: Free memory is too low"):
        (found,) = report(diagnose([LogSource("run.log", [f"{text}\n".encode()])]), 0.0).diagnoses
        assert found.entities == {}


def test_a_port_that_an_engine_drew_is_not_called_the_masters() -> None:
    for name in ("n102-vllm-mp-zmq-port-collision", "n601-vllm-open-port-race", "n603-skyrl-nested-ray-eaddrinuse"):
        (found,) = loud((FOLDER / f"{name}.log").read_bytes())
        assert "had chosen it as free" in found.message
        assert "master" not in found.message
    for port in (29500, 62000):  # below and above Linux's default range
        (given,) = loud(f"OSError: port {port} was already in use: [Errno 98] Address already in use\n".encode())
        assert "chosen" not in given.message


def test_ranks_of_one_process_are_all_counted() -> None:
    text = (FOLDER / "n1001-jax-one-rank-stuck.log").read_bytes()
    (found,) = report(diagnose([LogSource("run.log", [text])]), 0.0).diagnoses
    assert (found.name, found.severity.value) == ("collective-timeout", "info")
    assert "[process 1] step 4 done" in str(found.evidence)
    assert [one.command for one in found.fix.commands] == ["nccl-doctor hang -w 'node[1-2]'"]
    alone = b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"node2:"))
    (found,) = report(diagnose([LogSource("run.log", [alone])]), 0.0).diagnoses
    assert "ranks 0-3 had their communicator" in found.message
