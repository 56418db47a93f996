from __future__ import annotations

import hashlib
import os
import pwd
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.probe.facts import hardware, host, software
from nccl_doctor.probe.tools import Unavailable
from tests.patience import LONG_S


def soon() -> float:
    return time.monotonic() + LONG_S


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_file_is_its_digest_and_a_relative_path_starts_at_home(home: Path) -> None:
    (home / "train.py").write_text("x")
    (entry,) = host.digest_paths(["train.py"], soon())
    assert entry["resolved"] == str(home / "train.py")
    assert (entry["kind"], entry["size"], entry["problem"]) == ("file", 1, None)
    assert entry["files"] == {"": hashlib.sha256(b"x").hexdigest()}


def test_a_folder_is_its_files_without_caches(home: Path) -> None:
    for name in ("src/a.py", "src/deep/b.py", "src/__pycache__/a.pyc"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (entry,) = host.digest_paths(["~/src"], soon())
    assert (entry["kind"], sorted(entry["files"])) == ("folder", ["a.py", "deep/b.py"])


def test_what_is_not_there_is_missing_and_no_failure(home: Path) -> None:
    assert host.digest_paths(["nope"], soon()) == [{"path": "nope", "resolved": str(home / "nope"), "kind": "missing"}]


def test_a_pipe_of_that_name_is_not_waited_for(home: Path) -> None:
    os.mkfifo(home / "pipe")
    (entry,) = host.digest_paths(["pipe"], soon())
    assert entry["files"] == {"": "no regular file"}


def test_too_many_files_and_too_little_time_are_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (home / f"f{number}").write_text("x")
    monkeypatch.setattr(host, "MAX_FILES", 3)
    assert "more than 3 files" in host.digest_paths(["."], soon())[0]["problem"]
    assert "too much to read" in host.digest_paths(["f1"], time.monotonic() - 1)[0]["problem"]


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t.invalid"]
    return subprocess.run(
        ["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_checkout_is_its_commit_and_what_was_changed(home: Path) -> None:
    repo = home / "repo"
    repo.mkdir()
    git(repo, "init", "-q")
    for name in ("a.py", "b.py", "c d.py"):
        (repo / name).write_text(name)
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "first")
    (entry,) = host.digest_paths(["repo"], soon())
    assert (entry["kind"], entry["commit"], entry["files"]) == ("checkout", git(repo, "rev-parse", "HEAD"), {})

    (repo / "c d.py").write_text("changed")
    (repo / "a.py").unlink()
    (repo / "new.py").write_text("untracked")
    (entry,) = host.digest_paths(["repo"], soon())
    assert entry["files"] == {"a.py": "deleted", "c d.py": hashlib.sha256(b"changed").hexdigest()}


def test_a_checkout_that_git_can_not_read_is_told(home: Path) -> None:
    (home / "repo" / ".git").mkdir(parents=True)
    (entry,) = host.digest_paths(["repo"], soon())
    assert entry["kind"] == "checkout"
    assert entry["problem"].startswith("git ended with 128")


def test_plugins_are_found_where_ld_so_looks_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "PLUGIN_FOLDERS", (str(tmp_path / "vendor"),))
    for folder in ("vendor", "mine"):
        (tmp_path / folder).mkdir()
    (tmp_path / "vendor" / "libnccl-net.so").write_bytes(b"\x7fELF NET/OFI Initializing aws-ofi-nccl 1.16.3\0")
    (tmp_path / "vendor" / "libnccl-net-ofi.so").symlink_to("libnccl-net.so")
    (tmp_path / "mine" / "libnccl-tuner-example.so").write_bytes(b"tuner")
    (tmp_path / "mine" / "libnccl.so.2").write_bytes(b"no plugin")
    found = hardware.find_plugins({"LD_LIBRARY_PATH": f"{tmp_path}/mine:{tmp_path}/gone"})
    assert [(one["name"], one["version"]) for one in found] == [
        ("libnccl-tuner-example.so", None),
        ("libnccl-net-ofi.so", "1.16.3"),
    ]


@given(st.binary())
def test_no_file_breaks_the_version(data: bytes) -> None:
    version = hardware.parse_plugin_version(data)
    assert version is None or version.encode() in data


def test_the_answer_of_a_login_shell_stands_behind_its_mark() -> None:
    said = b"Welcome!\n" + software.SHELL_MARK + b"/opt/conda/bin/python3\0/opt/conda\0\0NCCL_DEBUG=INFO\0A=1\n2\0"
    assert software.parse_login_shell(said) == (
        "/opt/conda/bin/python3",
        "/opt/conda",
        {"NCCL_DEBUG": "INFO", "A": "1\n2"},
    )
    assert software.parse_login_shell(software.SHELL_MARK + b"\0\0HOME=/root\0") == (
        None,
        None,
        {"HOME": "/root"},
    )
    with pytest.raises(Unavailable):
        software.parse_login_shell(b"This account is currently not available.\n")


@given(st.binary())
def test_no_answer_breaks_the_login_shell(said: bytes) -> None:
    executable, _, _ = software.parse_login_shell(software.SHELL_MARK + said)
    assert executable is None or executable.startswith("/")


def shell_of(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: SimpleNamespace(pw_shell=program))


def test_an_interactive_login_shell_is_asked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell_of(monkeypatch, "/bin/bash")
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    agent = f"(sleep 60 & echo $! > {home}/agent)\n"  # holds on to the output that it was born with
    (home / ".bash_profile").write_text(f"echo hello\n{agent}export NCCL_DEBUG=INFO CONDA_PREFIX=/opt/conda\n")
    found = software.read_login_shell("python3", soon())
    assert found is not None
    os.kill(int((home / "agent").read_text()), signal.SIGKILL)
    assert found["differing"]["NCCL_DEBUG"] == (None, "INFO")
    assert found["environment"] == "/opt/conda"
    assert found["python"].startswith("/")
    assert not (home / ".bash_history").exists()
    (home / ".bash_profile").unlink()
    named = software.read_login_shell("/usr/bin/python3", soon())
    assert named is not None
    assert named["python"] is None


def test_one_that_hangs_is_ended_and_one_that_can_not_be_asked_is_none(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell_of(monkeypatch, "/bin/bash")
    (home / ".bash_profile").write_text("sleep 60\n")
    with pytest.raises(Unavailable, match="the login shell gave no answer in time"):
        software.read_login_shell("python3", time.monotonic() + 0.5)
    shell_of(monkeypatch, "/bin/tcsh")
    assert software.read_login_shell("python3", soon()) is None
