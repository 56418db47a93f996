"""What checks see: what is derived is made once, and what a check does not need it does not get."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from nccl_doctor.checks.view import Derived, View
from nccl_doctor.firewall import blame
from nccl_doctor.judge.diagnose import Judge, judge
from nccl_doctor.model.base import known, skipped, unknown
from nccl_doctor.nccl.cluster_nccl import cluster_nccl
from tests.checks.snapshots import load, patched


def test_what_is_derived_is_made_once_a_judgement() -> None:
    snapshot = patched({})
    with (
        mock.patch("nccl_doctor.checks.view.cluster_nccl", wraps=cluster_nccl) as surveyed,
        mock.patch("nccl_doctor.firewall.blame.judge_dials", wraps=blame.judge_dials) as blamed,
    ):
        first, again = judge(snapshot, "check"), judge(snapshot, "check")
    assert first == again
    assert (surveyed.call_count, blamed.call_count) == (2, 2)


def test_why_dials_failed_is_not_judged_again_where_it_is_known() -> None:
    snapshot = load(Path(__file__).parent / "ports/firewall_blocks_port/fires.json")
    with mock.patch("nccl_doctor.firewall.blame.judge_dials", wraps=blame.judge_dials) as blamed:
        run = Judge("check")
        assert run.questions(snapshot) == ()
        known_already = run.report(snapshot)
        assert blamed.call_count == 1
        assert known_already == judge(snapshot, "check")
    assert any(one.name == "firewall-blocks-port" for one in known_already.diagnoses)


def test_a_fact_that_is_not_known_is_no_fact() -> None:
    assert known("a") == "a"
    assert known(None) is None
    for fact in (unknown("no tool"), skipped("not asked for")):
        with pytest.raises(TypeError, match="not among the needs: no"):
            known(fact)
    view = View(Derived(patched({"mesh": {"$skipped": "not asked for"}})), ())
    with pytest.raises(TypeError, match="not asked for"):
        assert view.mesh


def test_a_running_job_that_holds_the_port_is_called_so() -> None:
    (found,) = judge(load(Path(__file__).parent / "ports/port_in_use/fires-running.json"), "check").diagnoses
    assert found.fix.summary.startswith("A running job of yours holds it (torchrun, pid 48100). ")
