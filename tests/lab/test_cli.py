import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import cli, state
from tests.lab.faults import all_faults
from tests.patience import LONG_S

ROOT = Path(__file__).parents[2]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run `scripts/lab` with a place of its own for its state."""
    monkeypatch.setattr(state, "STATE", tmp_path / "lab.json")
    interrupt = signal.getsignal(signal.SIGINT)

    def call(*words: str) -> tuple[int, str, str]:
        with Path("/dev/null").open() as nothing:
            monkeypatch.setattr("sys.stdin", nothing)
            status = cli.main(list(words))
        output = capfd.readouterr()
        return status, output.out, output.err

    yield call
    signal.signal(signal.SIGINT, interrupt)
    if (left := state.load()) is not None:
        left.down()


@pytest.mark.lab
def test_up_shell_down(run: Run) -> None:
    status, told, _ = run("up", "--hosts", "2", "--fault", "mtu-small", "--on", "node2")
    assert status == 0
    assert "scripts/lab shell ctl nccl-doctor check hosts.yaml" in told
    supervisor = json.loads(state.STATE.read_text())["supervisor"]
    assert run("shell", "ctl", "cat", "hosts.yaml")[1].endswith("hosts:\n- node1\n- node2\n")
    assert run("shell", "node2", "cat", "/sys/class/net/eth0/mtu") == (0, "1400\n", "")
    assert run("shell", "node1", "cat", "/sys/class/net/eth0/mtu") == (0, "1500\n", "")
    assert run("shell", "node1", "sh", "-c", "exit 5")[0] == 5
    assert run("shell", "node1", "nccl-doctor", "check") == (
        127,
        "",
        "node1: nccl-doctor: No such file or directory; it is on ctl, the controller.\n",
    )
    assert run("shell", "node1", "/etc/passwd") == (126, "", "node1: /etc/passwd: Permission denied.\n")
    assert run("up") == (2, "", "A lab stands already; 'scripts/lab down' takes it down.\n")
    assert run("down")[0] == 0
    assert not state.STATE.exists()
    assert not Path(f"/proc/{supervisor}/ns/net").exists()


@pytest.mark.lab
def test_a_lab_that_stands_keeps_nothing_of_who_built_it(tmp_path: Path) -> None:
    """`scripts/lab up 2>&1 | tail` ends: the pipe has no other writer left."""
    code = (
        "import sys, pathlib; from tests.lab import cli, state; state.STATE = pathlib.Path(sys.argv[1]);"
        "sys.exit(cli.main(sys.argv[2:]))"
    )

    def lab(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(tmp_path / "lab.json"), *words]
        return subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=LONG_S, check=True,
        )  # fmt: skip

    try:
        assert "Take it down" in lab("up", "--hosts", "1").stdout
    finally:
        lab("down")


@pytest.mark.lab
def test_state_of_a_dead_lab_is_no_lab(run: Run) -> None:
    state.STATE.write_text(json.dumps({"supervisor": 1, "started": -1, "hosts": []}))
    assert run("down") == (2, "", "No lab stands; 'scripts/lab up' builds one.\n")
    assert not state.STATE.exists()


@pytest.mark.lab
def test_unknown_fault_builds_nothing(run: Run) -> None:
    status, _, told = run("up", "--fault", "earthquake")
    assert (status, told.partition(";")[0]) == (2, "No fault is named 'earthquake'")
    assert not state.STATE.exists()


def test_faults_are_listed(run: Run) -> None:
    status, told, _ = run("faults")
    assert status == 0
    assert [line.split()[0] for line in told.splitlines()] == list(all_faults())
