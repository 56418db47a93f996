"""NCCL's own diagnostics of the all-reduce: when they run, and what becomes of their report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.collect.smoke.plan import SmokeLimits, plan
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.report import Report
from nccl_doctor.nccl.versions import DIAGNOSTICS
from nccl_doctor.snapshot.hosts import HostFacts
from tests.checks.snapshots import patched

REPORT = (Path(__file__).parents[2] / "nccl/ras/diagnostics/two-ranks.txt").read_text().splitlines()
"""As NCCL 2.31.2 printed it on an H200, of two ranks."""
GPU = {"index": 0, "name": "NVIDIA H200", "memory_total_mib": 143771, "memory_used_mib": 0, "driver": "580.159.04"}


def facts(nccl: str, **more: Any) -> dict[str, HostFacts]:
    """Three hosts with a GPU each and this NCCL."""
    own = {
        name: {"facts": {"gpus": [{**GPU, "uuid": f"GPU-{name}"}], **_torch(nccl), **more}}
        for name in ("node1", "node2", "node3")
    }
    return {host.name: host.facts for host in patched({"hosts": own}).hosts if host.facts is not None}


def _torch(nccl: str) -> dict[str, Any]:
    return {"torch": {"version": "2.14.1+cu130", "cuda": "13.0", "hip": None, "nccl": nccl, "location": "/x"}}


def wanted(nccl: str, limits: SmokeLimits | None = None, **more: Any) -> dict[str, str]:
    """The variables of NCCL's diagnostics that the second host's ranks would get."""
    cluster = patched({}).cluster
    made = plan(cluster, facts(nccl, **more), limits or SmokeLimits())
    env = made.request(cluster.nodes[1], 29500)["env"]
    return {name: env[name] for name in DIAGNOSTICS if name in env}


def test_they_run_where_every_nccl_has_them_and_nobody_says_otherwise() -> None:
    assert wanted("2.31.2") == DIAGNOSTICS
    assert wanted("2.30.7") == {}
    assert wanted("2.31.2", SmokeLimits(diagnostics=False)) == {}
    assert wanted("2.31.2", SmokeLimits(backend="gloo")) == {}
    assert wanted("2.31.2", env={"NCCL_RUN_DIAGNOSTICS": "0"}) == {"NCCL_RUN_RAS_DIAGNOSTICS": "1"}


def judged(lines: list[str]) -> Report:
    """The report of a healthy all-reduce during which the first host's rank printed these lines."""
    return judge(patched({"smoke": {"output": {"node1": lines}}}), "check")


def test_a_good_report_is_told_with_its_time() -> None:
    report = judged(REPORT)
    assert report.diagnoses == ()
    assert report.smoke is not None
    assert report.smoke.diagnostics == "own diagnostics in 3.4 ms: nothing found"
    assert judged([]).smoke is not None
    assert judged(["NCCL INFO x"]).smoke.diagnostics is None  # type: ignore[union-attr]


@pytest.mark.parametrize("took", ["1.2.3", "..", "9" * 12, "-1", "nan"])
def test_an_odd_time_is_none(took: str) -> None:
    report = judged([f"node1:812 NCCL DIAG NCCL diagnostics completed in {took} ms across 2 ranks"])
    assert report.smoke is not None
    assert report.smoke.diagnostics is None


@pytest.mark.parametrize(
    ("line", "name", "host"),
    [
        (
            "[INFO] ECC: uncorrected volatile errors on rank(s) {1} (worst=4) across 3 ranks in comm 0x5f",
            "gpu-errors",
            "node2",
        ),
        (
            "[INFO] net bw: ib rank 2 (node3): 121.4 Gbit/s, >30% off median 390.2 Gbit/s in comm 0x5f",
            "link-slow",
            "node3",
        ),
    ],
)
def test_what_nccl_finds_is_a_warning_on_the_ranks_own_host(line: str, name: str, host: str) -> None:
    (found,) = judged([*REPORT, f"node1:812 NCCL DIAG {line}"]).diagnoses
    assert (found.name, found.hosts, found.severity) == (name, (host,), "warning")


def test_what_nccl_left_out_is_said() -> None:
    gap = "node1:812 NCCL DIAG [INFO] NVLink: diagnostics incomplete, gathered 1/3 ranks in comm 0x5f/0x6/0x7 (x)"
    report = judged([*REPORT, gap])
    assert report.smoke is not None
    assert "gathered 1/3 ranks" in (report.smoke.diagnostics or "")
