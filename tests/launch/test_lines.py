"""Launch lines as the documentation of launchers has them, and the same with mistakes, against three hosts of 8 GPUs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.launch.line import read_line
from nccl_doctor.model.finding import Outcome, Severity
from nccl_doctor.model.report import Report
from tests.checks.snapshots import patched

HERE = Path(__file__).parent / "lines"
JUDGING = ("launch-line-wrong", "ifname-no-match", "env-unknown-variable", "env-bad-value", "job-variable-conflict")
GPU = {"name": "NVIDIA H100 80GB HBM3", "memory_total_mib": 81559, "memory_used_mib": 0, "driver": "570.86.15"}


def lines(name: str) -> list[str]:
    text = (HERE / f"{name}.txt").read_text().splitlines()
    return [line for line in text if line and not line.startswith("#")]


def told(line: str) -> Report:
    """What is said of a line, whose port and variables the hosts get as the command line gives them."""
    read = read_line(tuple(shlex.split(line)))
    port = read.master["MASTER_PORT"]
    env = {name: value for name, value in read.variables.items() if name.startswith("NCCL_")}
    hosts = {
        f"node{number}": {
            "node": {"env": env},
            "facts": {"gpus": [{**GPU, "index": index, "uuid": f"GPU-{number}{index}"} for index in range(8)]},
        }
        for number in (1, 2, 3)
    }
    cluster = {"line": line, **({"master_port": int(port)} if port else {})}
    return judge(patched({"cluster": cluster, "hosts": hosts}), "check", lambda check: check.name in JUDGING)


@pytest.mark.parametrize("line", lines("right"))
def test_a_right_line_gets_no_error(line: str) -> None:
    assert [found for found in told(line).diagnoses if found.severity is Severity.ERROR] == []


@pytest.mark.parametrize("line", lines("wrong"))
def test_a_wrong_line_is_named_or_not_judged(line: str) -> None:
    report = told(line)
    unknown = [check.reason for check in report.checks if check.outcome is Outcome.UNKNOWN]
    assert report.diagnoses or unknown


@pytest.mark.parametrize("line", lines("wrong"))
def test_no_remedy_fails_its_own_judgement(line: str) -> None:
    for found in told(line).diagnoses:
        if found.name == "launch-line-wrong":
            for one in found.fix.commands:
                assert [again.message for again in told(one.command).diagnoses] == [], one.command


def test_there_are_sixty_of_each() -> None:
    assert len(lines("right")) >= 60
    assert len(lines("wrong")) >= 60
    assert set(lines("right")) & set(lines("wrong")) == set()
