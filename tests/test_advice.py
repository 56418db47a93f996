"""Every advice rendered: none announces what doesn't come, and none gives a command without a word of what for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.log import Cause, Event
from nccl_doctor.logs.signs import Case, signs
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.finding import Diagnosis
from nccl_doctor.model.register import entry
from nccl_doctor.report.human import diagnosis
from nccl_doctor.report.text import Screen, painter
from tests.checks.live import LIVE, folder
from tests.checks.snapshots import load
from tests.logs.labelled_cases import CASES

PLACEHOLDERS = ("{", "}", "None", "()", "''")


def assert_whole(found: Diagnosis) -> None:
    """The screen ends with a sentence, or with what a colon before it announced."""
    for width in (80, 120):
        *_, prose = lines = list(
            diagnosis(found.model_copy(update={"evidence": ()}), Screen(painter(color=False), width))
        )
        if found.fix.commands:
            prose = lines[lines.index("") - 1]
        assert prose.endswith(":" if found.fix.commands else "."), lines
    summary = found.fix.summary.replace("clusterIP: None", "")  # Kubernetes' own word
    assert not any(mark in summary for mark in PLACEHOLDERS), found


STATES = [(check.name, path) for check in LIVE for path in sorted(folder(check).glob("fires*.json"))]


@pytest.mark.parametrize("path", [pytest.param(path, id=f"{name}/{path.stem}") for name, path in STATES])
def test_a_live_check(path: Path) -> None:
    diagnoses = judge(load(path), "check").diagnoses
    assert diagnoses
    for found in diagnoses:
        assert_whole(found)


@pytest.mark.parametrize("name", signs())
@pytest.mark.parametrize("text", ["", "E host worker-0 127.0.0.1"])
def test_of_a_log_that_names_no_host(name: str, text: str) -> None:
    """The least that a log can say: a fault, and nobody that it is about."""
    log = diagnose([LogSource("run.log", [b"nothing\n"])]).log
    event = Event.of_file("run.log", "wording", text, name=name)
    said = signs()[name].advice(Case(Cause(name, (event,)), log))
    registered = entry(name)
    assert_whole(
        Diagnosis(
            code=registered.code, name=name, severity=registered.severity, hosts=(), message=said.message, fix=said.fix
        )
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.topic}-{case.title}")
def test_of_a_told_log(case: Any) -> None:
    for found in report(diagnose([LogSource("run.log", [case.log.encode()])]), 0.0).diagnoses:
        assert_whole(found)
