"""The machine that the tool is started on is another than its hosts: a Mac, or Windows."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nccl_doctor.cli.main import main
from tests.lab.cluster import Lab
from tests.wheels import fetch, found

Run = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = Path(__file__).with_name("a_mac.py")


def test_windows_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    for words in (["check"], ["fix-port", "29500"], ["--help"]):
        monkeypatch.setattr(sys, "argv", ["nccl-doctor", *words])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 2
        assert capsys.readouterr() == ("", "nccl-doctor runs on Linux and macOS; on Windows, use WSL\n")


@pytest.fixture
def mac(lab: Lab) -> Iterator[Run]:
    """Runs the tool on the lab's controller as on a Mac; pip finds the wheels there are, and what came is kept."""
    controller = lab.controller
    controller.run("mkdir -p wheels mac")
    fetch()
    with zipfile.ZipFile(found("psutil", "macosx_11_0_arm64")[0]) as wheel:
        for name in wheel.namelist():
            if name == "psutil/__init__.py":
                controller.write(f"/root/mac/{name}", wheel.read(name).decode())

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(fetch()), **env}
        done = controller.run([sys.executable, str(PROGRAM), "/root/mac", *words], env=variables, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    yield run
    controller.run("rm -r wheels mac .cache hosts.yaml; true")


@pytest.mark.lab
def test_from_a_mac_all_is_judged_on_hosts_that_have_no_psutil(lab: Lab, mac: Run, bare_python: str) -> None:
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(python=bare_python))
    done = mac("check", "hosts.yaml", "--no-smoke", "--skip", "torch-missing")
    assert (done.returncode, "could not be judged" in done.stdout) == (0, False), done.stdout + done.stderr
    assert "NCCL will use eth0 on node[1-3]" in done.stdout
    assert lab.controller.run("ls .cache/nccl-doctor").stdout.startswith("psutil-")


@pytest.mark.lab
def test_without_a_wheel_exactly_those_facts_are_unknown_and_it_is_said_once(
    lab: Lab, mac: Run, bare_python: str
) -> None:
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(python=bare_python))
    done = mac("check", "hosts.yaml", "--no-smoke", "--skip", "torch-missing", PIP_FIND_LINKS="")
    assert done.returncode == 3, done.stdout + done.stderr
    text = " ".join(done.stdout.split())
    _row, told = text.split("Could not be judged: ")
    assert told.startswith("node[1-3]: psutil is not installed on the host, and nccl-doctor's own does not fit"), text
    assert told.count("pip could not fetch psutil") == 1, text
    assert "port 29500 is free" in text


@pytest.mark.lab
def test_a_mac_is_no_host_of_a_job(mac: Run) -> None:
    for words in (("check",), ("fix-port", "29500"), ("ifname",), ("check", "-w", "node1,ctl")):
        done = mac(*words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert "only Linux can be looked at" in done.stderr
