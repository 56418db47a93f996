"""The machine that the tool is started on is another than its hosts: a Mac, or Windows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nccl_doctor.cli.main import main
from tests.lab.cluster import Lab

Run = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = Path(__file__).with_name("a_mac.py")


def test_windows_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    for words in (["check"], ["fix-port", "29500"], ["--help"]):
        monkeypatch.setattr(sys, "argv", ["nccl-doctor", *words])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 2
        assert capsys.readouterr() == ("", "nccl-doctor does not run on Windows; use Linux, or try WSL (untested)\n")


@pytest.fixture
def mac(lab: Lab) -> Iterator[Run]:
    """Runs the tool on the lab's controller as on a Mac."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        done = lab.controller.run([sys.executable, str(PROGRAM), *words], check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    yield run
    lab.controller.run("rm -f hosts.yaml")


@pytest.mark.lab
def test_from_a_mac_all_is_judged_on_hosts_that_have_no_package(lab: Lab, mac: Run, bare_python: str) -> None:
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(python=bare_python))
    done = mac("check", "hosts.yaml", "--no-smoke", "--skip", "torch-missing")
    assert (done.returncode, "could not be judged" in done.stdout) == (0, False), done.stdout + done.stderr
    assert "NCCL will use eth0 on node[1-3]" in done.stdout


@pytest.mark.lab
def test_a_mac_is_no_host_of_a_job(mac: Run) -> None:
    for words in (("check",), ("fix-port", "29500"), ("ifname",), ("check", "-w", "node1,ctl")):
        done = mac(*words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert "only Linux can be checked" in done.stderr
