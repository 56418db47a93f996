from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.model.finding import CheckResult, Gap, Outcome, Severity
from tests.report.reports import STALE, UNREACHABLE, healthy, passed, render

NOTE = STALE.model_copy(update={"severity": Severity.INFO})


def check(outcome: Outcome, reason: str | None = None, code: str = "NCD305") -> CheckResult:
    return CheckResult(code=code, name=f"fault-{code}", category="ports", outcome=outcome, reason=reason)


def unjudged(*gaps: list[Gap]) -> str:
    """The screen of checks, each with its gaps."""
    checks = tuple(
        check(Outcome.UNKNOWN, "told in short", f"NCD6{n:02}").model_copy(update={"gaps": tuple(each)})
        for n, each in enumerate(gaps)
    )
    return render(healthy().model_copy(update={"checks": checks}), "human", color=False)


@pytest.mark.parametrize(
    ("update", "end"),
    [
        ({}, "Ready. 57 checks passed (6.2 s)."),
        ({"timings": {}}, "Ready. 57 checks passed."),
        ({"checks": passed(1)}, "Ready. 1 check passed (6.2 s)."),
        ({"checks": ()}, "No faults found (6.2 s)."),
        ({"checks": (), "timings": {}}, "No faults found."),
        ({"complete": False}, "No faults found, 57 checks passed (6.2 s). Not everything could be checked."),
        ({"diagnoses": (NOTE,)}, "Ready. 1 note, 57 checks passed (6.2 s). More: nccl-doctor explain NCD601"),
        ({"diagnoses": (STALE,)}, "1 warning, 57 checks passed (6.2 s). More: nccl-doctor explain NCD601"),
        (
            {"diagnoses": (UNREACHABLE, UNREACHABLE)},
            "2 errors, 0 warnings, 57 checks passed (6.2 s). More: nccl-doctor explain NCD101",
        ),
        (
            {"diagnoses": (STALE, UNREACHABLE, UNREACHABLE.model_copy(update={"code": "NCD105"}))},
            "2 errors, 1 warning, 57 checks passed (6.2 s).\nMore: nccl-doctor explain NCD101, NCD105",
        ),
        (
            {"checks": (*passed(3), check(Outcome.UNKNOWN, "no root"), check(Outcome.SKIP)), "complete": False},
            "No faults found, 3 checks passed, 1 could not be judged (6.2 s).",
        ),
        (
            {"checks": (*passed(3), check(Outcome.SKIP, "not requested (--mesh none)"))},
            "No faults found, 3 checks passed (6.2 s). Not checked: the ports between hosts\n(--mesh none).",
        ),
        (
            {"checks": (*passed(3), *(check(Outcome.SKIP, "not selected", f"NCD30{n}") for n in range(5)))},
            "No faults found, 3 checks passed (6.2 s). Not checked: 5 checks that were not\nselected.",
        ),
        (
            {"checks": (*passed(3), check(Outcome.SKIP, "not selected")), "command": "smoke"},
            "Ready. 3 checks passed (6.2 s).",
        ),
        (
            {"checks": (*passed(3), check(Outcome.CRASH, "KeyError: 'x'"))},
            "No faults found, 3 checks passed, 1 crashed (6.2 s).",
        ),
    ],
)
def test_the_last_line_counts(update: dict[str, Any], end: str) -> None:
    report = healthy().model_copy(update={"next_step": None, **update})
    assert render(report, "human", color=False).endswith(f"\n\n{end}\n")


def test_the_next_step_is_the_very_last() -> None:
    report = healthy().model_copy(update={"next_step": "Start with:  train"})
    assert render(report, "human", color=False).endswith("(6.2 s).\nStart with:  train\n")


def test_a_next_step_that_hides_something_is_not_shown() -> None:
    report = healthy().model_copy(update={"next_step": "Start with:  \u202etrain"})
    assert render(report, "human", color=False).endswith("(6.2 s).\n")


def test_what_could_not_be_judged_is_folded_by_reason() -> None:
    many = tuple(check(Outcome.UNKNOWN, "no root", f"NCD6{n:02}") for n in range(8))
    report = healthy().model_copy(update={"checks": (*many, check(Outcome.UNKNOWN, "no netlink", "NCD701"))})
    text = " ".join(render(report, "human", color=False).split())
    assert "Could not be judged: no root (fault-NCD600, fault-NCD601, fault-NCD602, fault-NCD603" in text
    assert "fault-NCD605 and 2 more) no netlink (fault-NCD701)" in text
    assert "fault-NCD607)" in " ".join(render(report, "human", color=False, verbose=True).split())


def test_one_reason_is_said_once_whatever_hosts_the_checks_are_about() -> None:
    text = unjudged(
        [Gap(hosts=("node1",), reason="no netlink")],
        [Gap(hosts=("node1", "node2"), reason="no netlink"), Gap(hosts=("node1", "gpu1", "gpu2"), reason="no root")],
        [Gap(hosts=("node2", "node1"), reason="no netlink")],
        [Gap(hosts=(), reason="no netlink")],
    )
    assert "  node[1-2]: no netlink (fault-NCD601, fault-NCD602; on node1: fault-NCD600)\n" in text
    assert "  node1,gpu[1-2]: no root (fault-NCD601)\n" in text
    assert "  no netlink (fault-NCD603)\n" in text
    assert text.count("no netlink") == 2


def test_no_check_is_said_to_lack_a_verdict_on_another_s_hosts() -> None:
    text = unjudged([Gap(hosts=("node1",), reason="no root")], *[[Gap(hosts=("node2", "node3"), reason="no root")]] * 7)
    assert "  node[1-3]: no root (on node1: fault-NCD600; on node[2-3]: fault-NCD601," in text
    assert "fault-NCD605 and 2 more)" in " ".join(text.split())


@pytest.mark.parametrize("reason", ["kubectl: not found", "OSError: [Errno 24]", "x[3-1]: y", "node[1-2]: no netlink"])
def test_a_reason_is_never_read_for_hosts(reason: str) -> None:
    """It is text of anybody: a snapshot's, or an error's."""
    assert f"  {reason} (fault-NCD600)\n" in unjudged([Gap(hosts=(), reason=reason)])
    assert f"  node7: {reason} (fault-NCD600)\n" in unjudged([Gap(hosts=("node7",), reason=reason)])
    alone = healthy().model_copy(update={"checks": (check(Outcome.UNKNOWN, reason),)})
    assert f"  {reason} (fault-NCD305)\n" in render(alone, "human", color=False)


def test_a_crashed_check_is_named() -> None:
    report = healthy().model_copy(update={"checks": (check(Outcome.CRASH, "KeyError: 'x'"),)})
    assert ("Crashed (a bug in nccl-doctor):\n  NCD305 fault-NCD305: KeyError: 'x'\n") in render(
        report, "human", color=False
    )


def test_ready_is_green_and_an_error_red() -> None:
    assert "\x1b[1;32mReady.\x1b[0m 57 checks" in render(healthy(), "human", color=True)
    report = healthy().model_copy(update={"diagnoses": (UNREACHABLE,)})
    assert "\x1b[1;31m1 error\x1b[0m, 0 warnings" in render(report, "human", color=True)
