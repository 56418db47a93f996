"""Annotations of a workflow: a line each, and nothing that a host says ends or begins one."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings

from nccl_doctor.model.report import Report
from nccl_doctor.report import github
from nccl_doctor.report.render import RenderOptions
from tests.report.reports import ALL, healthy, host_away, log, one_fault, render
from tests.report.strategies import REPORTS

ANNOTATION = re.compile(r"::(error|warning|notice) ((?:(?:title|file|line)=[^,:]*,?)+)::(.*)")


def found_in(report: Report) -> list[re.Match[str]]:
    *lines, _ = render(report, "github").splitlines()
    found = [ANNOTATION.fullmatch(line) for line in lines]
    assert None not in found, lines
    return [one for one in found if one is not None]


def test_a_fault_is_an_error_with_its_commands() -> None:
    (one,) = found_in(one_fault())
    assert (one[1], one[2]) == ("error", "title=NCD301 firewall-blocks-port on node1")
    assert "%0Anode1: firewall-cmd" in one[3]
    assert render(one_fault(), "github").splitlines()[-1].startswith("1 error, 0 warnings")


def test_what_was_not_judged_is_a_warning() -> None:
    assert "not judged" in render(host_away(), "github")
    assert render(healthy(), "github").startswith("Ready. ")


def test_a_log_line_has_its_place() -> None:
    assert any("file=" in one[2] and "line=" in one[2] for one in found_in(log()))


@pytest.mark.parametrize("name", ALL)
def test_every_report_has_this_form(name: str) -> None:
    assert len(found_in(ALL[name]())) >= len(ALL[name]().diagnoses)


@settings(suppress_health_check=list(HealthCheck), max_examples=50, deadline=None)
@given(REPORTS)
def test_no_text_begins_another_annotation(report: Report) -> None:
    lines = github.render(report, RenderOptions()).splitlines()
    assert sum(line.startswith("::") for line in lines) == len(found_in(report)) == len(lines) - 1
