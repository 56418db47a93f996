"""What is said of an NCCL that nobody here knows: newer ones, and one whose version could not be told."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.report import Report
from nccl_doctor.snapshot.hosts import Snapshot
from tests.checks.snapshots import NAMES, healthy, overlaid

CONF = "/opt/nccl.conf"


def report(*, nccl: str | None, facts: dict[str, Any] | None = None, env: dict[str, str] | None = None) -> Report:
    """Of a healthy cluster with this NCCL, and node1 with these facts; ``env`` as the job will have it."""
    hosts: dict[str, Any] = {name: {"node": {"env": env or {}}, "facts": {"torch": {"nccl": nccl}}} for name in NAMES}
    for host in hosts.values():
        host["facts"]["libnccl"] = None
    hosts["node1"]["facts"] |= facts or {}
    names = ("env-unknown-variable", "env-bad-value", "env-mismatch")
    return judge(
        Snapshot.model_validate(overlaid(healthy(), {"hosts": hosts})), "check", lambda check: check.name in names
    )


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("NCCL_A_NEW_ONE", "1", "warning"),
        ("NCCL_ALGO", "NewTree", "error"),
        ("NCCL_DEBUG", "FULL", "warning"),
        ("NCCL_IB_SL", "16", "warning"),
    ],
)
def test_what_a_newer_nccl_may_know_is_a_note(name: str, value: str, severity: str) -> None:
    known, newer = (report(nccl=nccl, env={name: value}).diagnoses for nccl in ("2.28.9", "2.40.1"))
    assert [one.severity for one in known] == [severity]
    assert [one.severity for one in newer] == ["info"]
    assert "up to 2.32; this is 2.40.1" in newer[0].message


def test_what_every_nccl_reads_so_stays_a_warning() -> None:
    (one,) = report(nccl="2.40.1", env={"NCCL_IB_DISABLE": "true"}).diagnoses
    assert one.severity == "warning"


@pytest.mark.parametrize("line", ["NCCL_NOT_A_NAME=1", "NCCL_IB_DISABLE=true", "NCCL_PROTO=Simple"])
def test_what_stands_in_a_file_that_an_unknown_nccl_may_not_read_accuses_nobody(line: str) -> None:
    files = [{"path": "/home/ubuntu/.nccl.conf", "text": None}, {"path": "/etc/nccl.conf", "text": None}]
    named = {"config_files": [*files, {"path": CONF, "text": f"{line}\n"}], "env": {"NCCL_CONF_FILE": CONF}}
    own = {"config_files": [{**files[0], "text": f"{line}\n"}, files[1], {"path": CONF, "text": ""}]}
    for facts in (named, {**named, **own}):
        found = report(nccl=None, facts=facts)
        assert found.diagnoses == ()
        ((hosts, reason),) = {(gap.hosts, gap.reason) for check in found.checks for gap in check.gaps}
        assert hosts == ("node1",)
        assert "which one runs there is not known" in reason
    assert report(nccl="2.28.9", facts=named).diagnoses


def test_a_host_in_doubt_hides_no_difference_between_the_others() -> None:
    """Of node2 and node3 it is known how they differ; of node1, whose file may not be read, nothing."""
    files = [{"path": "/home/ubuntu/.nccl.conf", "text": None}, {"path": "/etc/nccl.conf", "text": None}]
    hosts: dict[str, Any] = {name: {"facts": {"libnccl": None}} for name in NAMES}
    hosts["node1"]["facts"] |= {
        "torch": {"nccl": None},
        "env": {"NCCL_CONF_FILE": CONF},
        "config_files": [*files, {"path": CONF, "text": "NCCL_PROTO=LL\n"}],
    }
    hosts["node2"]["node"] = {"env": {"NCCL_PROTO": "Simple"}}
    seen = judge(
        Snapshot.model_validate(overlaid(healthy(), {"hosts": hosts})),
        "check",
        lambda check: check.name == "env-mismatch",
    )
    (found,) = seen.diagnoses
    assert found.facts["values"] == {"node2": "Simple", "node3": None}
