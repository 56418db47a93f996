"""Reports for machines, through the command line and read by their own readers."""

from __future__ import annotations

from pathlib import Path

import pytest
import xmlschema
from prometheus_client.parser import text_string_to_metric_families

from nccl_doctor.cli.options import KeepOptions
from nccl_doctor.cli.snapshots import keep
from tests.checks.snapshots import patched
from tests.cli.program import run

XSD = Path(__file__).parents[1] / "report" / "junit.xsd"


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    few = patched({"hosts": {"node2": {"facts": {"limits": {"nofile_soft": 256}}}}})
    keep(few, KeepOptions(tmp_path / "s.json", save_whole=True))
    return tmp_path


def test_prometheus_has_the_time_of_the_run_and_is_written_at_once(seen: Path) -> None:
    done = run("check", "--from", "s.json", "-o", "prometheus", "--output-file", "nccl_doctor.prom", cwd=seen)
    assert (done.returncode, done.stdout) == (0, "")
    families = {
        family.name: family for family in text_string_to_metric_families((seen / "nccl_doctor.prom").read_text())
    }
    (sample,) = families["nccl_doctor_last_run_timestamp_seconds"].samples
    assert sample.value == 1767225600.0
    assert [s.labels["name"] for s in families["nccl_doctor_diagnosis"].samples] == ["nofile-low"]
    assert [path.name for path in seen.iterdir() if path.name.startswith(".")] == []


def test_junit_is_valid(seen: Path) -> None:
    done = run("check", "--from", "s.json", "-o", "junit", cwd=seen)
    xmlschema.XMLSchema(XSD).validate(done.stdout)
    assert 'name="NCD603 nofile-low"' in done.stdout
