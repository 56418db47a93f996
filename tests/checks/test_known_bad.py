"""The rows of known faults are whole: dated, sourced, in ranges, each with a fixture that meets it."""

from __future__ import annotations

from datetime import date

from nccl_doctor.checks.software.nccl_known_bad import parse_plugin
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.finding import Severity
from nccl_doctor.nccl.known_bad import rows
from nccl_doctor.nccl.versions import parse_version
from tests.checks.live import HERE
from tests.checks.snapshots import load

KEYS = {"nccl", "where", "severity", "fault", "way", "unless", "shows", "date", "source"}
WHERE = {"machine", "wheel", "gpu", "gpus", "hosts", "ofi_below", "uneven"}


def test_every_row_is_dated_and_has_its_thread() -> None:
    for row in rows():
        assert row.keys() <= KEYS
        assert row["where"]
        assert row["where"].keys() <= WHERE
        assert parse_version(row["nccl"][0]) < parse_version(row["nccl"][1])
        assert date.fromisoformat(row["date"]) > date(2024, 1, 1)
        assert row["source"].startswith("https://github.com/")
        assert Severity(row["severity"]) is not Severity.ERROR


def test_every_row_has_a_fixture_that_meets_it() -> None:
    paths = (HERE / "software/nccl_known_bad").glob("fires*.json")
    reports = [judge(load(path), "check", lambda each: each.name == "nccl-known-bad") for path in paths]
    assert {found.facts["source"] for one in reports for found in one.diagnoses} == {row["source"] for row in rows()}


def test_a_plugins_version_is_read_as_far_as_it_is_one() -> None:
    assert parse_plugin("1.17.1-aws") == (1, 17, 1)
    assert parse_plugin("²") == ()
