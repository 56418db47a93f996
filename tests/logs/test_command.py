"""The command itself: exit codes, JSON, passing through, following, and what a terminal gets to see."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nccl_doctor.logs import run
from tests.checks.snapshots import load
from tests.cli.program import run_on
from tests.lab.warm import tool
from tests.patience import LONG_S

COMMAND = [sys.executable, "-c", "import typer; from nccl_doctor.cli.logs import logs; typer.run(logs)"]
FAULT = "n1:1:2 [0] NCCL WARN Bootstrap : no socket interface found\n"
HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J n1\x9b31m:1:2 [0] NCCL WARN Connect to 10.0.0.9<4242> failed : No route to host \x07\u202e\n"
    "$(reboot):1:2 [0] NCCL WARN Bootstrap : no socket interface found\n"
    "n1:1:2 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ;reboot\n"
)


def doctor(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_on(stdin, "logs", *args, cwd=Path.cwd())


def test_a_healthy_log_is_0_and_a_fault_is_1(tmp_path: Path) -> None:
    healthy, broken = tmp_path / "a.log", tmp_path / "b.log"
    healthy.write_text("step 1 loss 0.5\n")
    broken.write_text(FAULT)
    assert doctor(str(healthy)).returncode == 0
    assert doctor(str(broken)).returncode == 1
    assert doctor(str(broken), "--fail-on", "never").returncode == 0


def test_what_cannot_be_read_is_2_and_one_sentence() -> None:
    done = doctor("/nowhere/x.log")
    assert (done.returncode, done.stderr) == (2, "/nowhere/x.log: no such file or folder\n")


@pytest.mark.parametrize(("writer", "code"), [('cat "$LOG"', 1), ("true", 3)])
def test_what_a_command_writes_within_the_line(tmp_path: Path, writer: str, code: int) -> None:
    """``<(command)`` is a pipe, too, whose writer may be gone before we come."""
    (tmp_path / "b.log").write_text(FAULT)
    line = f"exec {tool()} logs <({writer})"
    done = subprocess.run(
        ["bash", "-c", line],
        check=False,
        capture_output=True,
        timeout=LONG_S,
        env={**os.environ, "LOG": f"{tmp_path}/b.log"},
    )
    assert done.returncode == code, done.stderr


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "b.log"
    path.write_text("fine\n" + FAULT)
    document = json.loads(doctor(str(path), "-o", "json").stdout)
    (diagnosis,) = document["diagnoses"]
    assert (document["schema"], document["command"], document["status"]) == (1, "logs", "error")
    assert (diagnosis["code"], diagnosis["name"], diagnosis["severity"]) == ("NCD206", "ifname-no-match", "error")
    assert diagnosis["evidence"] == [{"file": str(path), "line": 2, "text": FAULT.strip()}]
    assert diagnosis["entities"]["host"] == "n1"


def test_selection(tmp_path: Path) -> None:
    path = tmp_path / "b.log"
    path.write_text(FAULT)
    assert doctor(str(path), "--skip", "ifname-no-match").returncode == 0
    assert doctor(str(path), "--only", "NCD206").returncode == 1


def test_tee_passes_the_text_through() -> None:
    text = "step 1\r\nstep 2 \x1b[31mred\x1b[0m\n"
    done = doctor("-", "--tee", "-q", stdin=text)
    assert done.returncode == 0
    assert done.stdout.replace("\r\n", "\n") == text.replace("\r\n", "\n")


def test_tee_leaves_stdout_to_json() -> None:
    done = doctor("-", "--tee", "-o", "json", stdin=FAULT)
    assert json.loads(done.stdout)["diagnoses"]
    assert FAULT.strip() in done.stderr


@pytest.mark.parametrize("tee", [False, True])
def test_a_terminal_gets_no_control_character(tee: bool) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [tool(), "logs", "-", "--color", "never", *(["--tee"] if tee else [])],
        stdin=subprocess.PIPE,
        stdout=follower,
        stderr=follower,
        close_fds=True,
    )
    os.close(follower)
    assert process.stdin
    process.stdin.write(HOSTILE.encode())
    process.stdin.close()
    seen = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    os.close(leader)
    assert process.wait(LONG_S) == 1
    text = seen.decode().replace("\r\n", "\n")
    assert "no-route-to-host" in text
    assert [char for char in text if char != "\n" and not char.isprintable()] == []
    commands = [line for line in text.splitlines() if line.startswith("nccl-doctor ") and "-w" in line]
    assert all("reboot" not in command for command in commands)


def has_read(pid: int, path: Path) -> bool:
    """Whether a process has a file open, and has come to its end."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just closed it
            if descriptor.readlink() == path:
                state = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text()
                return int(state.split()[1]) == path.stat().st_size
    return False


def test_follow_reports_while_the_job_still_runs(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("step 1\n")
    process = subprocess.Popen([*COMMAND, str(path), "--follow", "-q"], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + LONG_S
    while not has_read(process.pid, path):
        assert process.poll() is None
        assert time.monotonic() < deadline
    with path.open("a") as file:
        file.write(FAULT)
    output, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 1
    assert "ifname-no-match" in output


def test_follow_takes_one_source(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("fine\n")
    done = doctor(str(tmp_path), "--follow")
    assert (done.returncode, done.stderr) == (2, "--follow takes one file, or - for standard input\n")


def bytes_read() -> int:
    """By this process, from whatever file, since it began."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_following_a_long_log_reads_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "GRACE_S", 0.0)
    path = tmp_path / "long.log"
    path.write_bytes(b"[rank0]: step 1 loss 0.5\n" * 1_000_000 + FAULT.encode())
    before = bytes_read()
    verdict = run.LogsRun((str(path),), follow=True).read()
    assert [cause.name for cause in verdict.causes] == ["ifname-no-match"]
    assert bytes_read() - before < path.stat().st_size * 1.2


def test_a_log_is_judged_without_what_snapshots_need() -> None:
    """Loading it takes as long as reading 200 MB."""
    code = (
        "import sys, nccl_doctor.logs.run, nccl_doctor.logs.verdict; print('nccl_doctor.snapshot.hosts' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LONG_S)
    assert done.stdout == "False\n"


MODIFY = (
    "node1:11:40 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with {error}, on dev mlx5_0:1, "
    "curr state INIT, next state RTR, local GID index 3, local GID {own}, remote GID {other}\n"
)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("110 Connection timed out", "no answer from the peer's GID"),
        ("113 No route to host", "no answer from the peer's GID"),
        ("101 Network is unreachable", "no route leads from this device's interface"),
        ("61 No data available", "the GID at that index is empty"),
        ("22 Invalid argument", "the GID at that index does not exist"),
    ],
)
def test_an_rdma_error_says_which_device_and_index_and_what_it_means(error: str, words: str) -> None:
    text = MODIFY.format(error=error, own="::ffff:10.1.0.1", other="::ffff:10.2.0.2")
    (found,) = json.loads(doctor("-", "-o", "json", stdin=text).stdout)["diagnoses"]
    assert found["name"] == "ib-fault"
    assert found["message"].startswith("RDMA over mlx5_0 port 1 (GID index 3, 10.1.0.1 to 10.2.0.2) failed on node1: ")
    assert words in found["message"]


@pytest.mark.parametrize(
    ("own", "other", "words"),
    [
        ("::ffff:10.1.0.1", "::ffff:10.2.0.2", "node1's mlx5_0 on p0 and node2's mlx5_0 on p0 are at place 0 of both"),
        ("::ffff:10.1.0.1", "::ffff:10.1.0.2", "10.1.0.1 is of node1's mlx5_0 on p0, 10.1.0.2 is of node2's mlx5_1"),
        ("::ffff:10.8.0.1", "fe80::1", None),
    ],
)
def test_a_snapshot_of_the_hosts_names_the_ports(own: str, other: str, words: str | None, tmp_path: Path) -> None:
    crossed = load(Path(__file__).parents[1] / "checks/rdma/rdma_pair_unreachable/fires.json")
    (tmp_path / "seen.json").write_text(crossed.model_dump_json(by_alias=True))
    text = MODIFY.format(error="110 Connection timed out", own=own, other=other)
    done = doctor("-", "--with", str(tmp_path / "seen.json"), "-o", "json", stdin=text)
    (found,) = json.loads(done.stdout)["diagnoses"]
    assert ("In the snapshot" in found["message"]) == (words is not None)
    assert words is None or words in found["message"]


def test_a_snapshot_that_is_none_gets_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "seen.json").write_text("{}")
    done = doctor("-", "--with", str(tmp_path / "seen.json"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not an nccl-doctor snapshot" in done.stderr
