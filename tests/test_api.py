"""The public functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import nccl_doctor
from nccl_doctor.api import PreflightError
from nccl_doctor.model.finding import Diagnosis, Fix, Severity
from nccl_doctor.model.report import Report

LOG = "node1:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nnode1:1:1 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.2<41000> failed : Connection refused\n"


def test_they_are_imported_only_when_used() -> None:
    script = "import sys, nccl_doctor; print('nccl_doctor.api' in sys.modules, 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
    for name in nccl_doctor.__all__:
        assert getattr(nccl_doctor, name).__name__ == {"LogReport": "Report"}.get(name, name)
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(nccl_doctor, "no_such_name")  # noqa: B009 - the stub does not know it


def test_a_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(LOG)
    found = nccl_doctor.read_log(path)
    assert found.status == "error"
    assert found.diagnoses[0].name == "connection-refused"
    assert nccl_doctor.read_log(str(path), skip=["connection-refused"]).diagnoses == ()
    with pytest.raises(nccl_doctor.DoctorError, match="no such file"):
        nccl_doctor.read_log(tmp_path / "none.log")


def test_this_machine_is_checked() -> None:
    found = nccl_doctor.check(only=["limits", "python-missing"], smoke=False)
    assert isinstance(found, Report)
    assert len(found.hosts) == 1
    with pytest.raises(nccl_doctor.DoctorError, match="no such file"):
        nccl_doctor.check("no-such-hosts.yaml")
    with pytest.raises(nccl_doctor.DoctorError, match="is not the code"):
        nccl_doctor.check(only=["no-such-check"])


def test_the_first_error_is_the_message() -> None:
    one = Diagnosis(
        code="NCD301",
        name="firewall-blocks-port",
        severity=Severity.ERROR,
        hosts=("node1",),
        message="ufw on node1 drops it.",
        fix=Fix(summary="Let the others in."),
    )
    report = Report(command="check", status="error", complete=True, diagnoses=(one,))
    assert str(PreflightError(report)) == "firewall-blocks-port (NCD301): ufw on node1 drops it. Let the others in."


def test_a_preflight_without_a_launcher_says_what_is_missing() -> None:
    with pytest.raises(nccl_doctor.DoctorError, match="--join does not know the number of nodes"):
        nccl_doctor.preflight(token="0" * 16)
