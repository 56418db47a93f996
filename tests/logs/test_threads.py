"""Logs after public threads, most of 2026: ``threads/cases.jsonl`` names the thread and the accepted diagnoses of each.

The decisive lines, their order and the cause are the threads'; hosts, addresses and times are made up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.report import Diagnosis
from tests.each import each

FOLDER = Path(__file__).parent / "threads"
CASES: list[dict[str, Any]] = [json.loads(line) for line in (FOLDER / "cases.jsonl").read_text().splitlines()]

WRONG = (
    "n201",  # no wording of Ray's wait for a placement group
    "n202",  # vLLM's "Every node should have a unique IP address" is taken for any exception
    "n203",  # the same, with more addresses than nodes
    "n204",  # ZMQ can't bind an address that is not the host's: taken for any exception
    "n205",  # the same, with Ray's own address on the line
    "n303",  # gloo's loopback on one host, where all connected
    "n501",  # no wording of Mooncake's registration of GPU memory
    "n504",  # ibv_modify_qp without NCCL's prefix
    "n505",  # no wording of UCCL's queue pairs
    "n602",  # vLLM's search for a free port that found one
    "n702",  # the launcher's words of ssh outrank NCCL's own start
    "n703",  # no wording of the TCPXO shim
    "n905",  # ibv_reg_mr without NCCL's prefix
    "n1001",  # several ranks of one process are counted as one
)
"""Read wrongly up to now; what mends one takes it out."""


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
