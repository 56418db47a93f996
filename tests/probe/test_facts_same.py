from __future__ import annotations

import hashlib
import os
import pwd
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.probe.facts import checkout, hardware, same, software
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
    (entry,) = same.digest_paths(["train.py"], soon())
    assert entry["resolved"] == str(home / "train.py")
    assert (entry["kind"], entry["size"], entry["problem"]) == ("file", 1, None)
    assert entry["files"] == {"": hashlib.sha256(b"x").hexdigest()}


def test_a_folder_is_its_files_without_caches(home: Path) -> None:
    for name in ("src/a.py", "src/deep/b.py", "src/__pycache__/a.pyc"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (entry,) = same.digest_paths(["~/src"], soon())
    assert (entry["kind"], sorted(entry["files"])) == ("folder", ["a.py", "deep/b.py"])


def test_what_is_not_there_is_missing_and_no_failure(home: Path) -> None:
    assert same.digest_paths(["nope"], soon()) == [{"path": "nope", "resolved": str(home / "nope"), "kind": "missing"}]


def test_a_pipe_of_that_name_is_not_waited_for(home: Path) -> None:
    os.mkfifo(home / "pipe")
    (entry,) = same.digest_paths(["pipe"], soon())
    assert entry["files"] == {"": "no regular file"}


def test_too_many_files_and_too_little_time_are_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (home / f"f{number}").write_text("x")
    monkeypatch.setattr(same, "MAX_FILES", 3)
    assert "more than 3 files" in same.digest_paths(["."], soon())[0]["problem"]
    assert "too much to read" in same.digest_paths(["f1"], time.monotonic() - 1)[0]["problem"]


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
    (entry,) = same.digest_paths(["repo"], soon())
    assert (entry["kind"], entry["commit"], entry["files"]) == ("checkout", git(repo, "rev-parse", "HEAD"), {})

    (repo / "c d.py").write_text("changed")
    (repo / "a.py").unlink()
    (repo / "new.py").write_text("untracked")
    (entry,) = same.digest_paths(["repo"], soon())
    assert entry["files"] == {"a.py": "deleted", "c d.py": hashlib.sha256(b"changed").hexdigest()}


def test_a_checkout_that_git_can_not_read_is_told(home: Path) -> None:
    (home / "repo" / ".git").mkdir(parents=True)
    (entry,) = same.digest_paths(["repo"], soon())
    assert entry["kind"] == "checkout"
    assert entry["problem"] == "is a Git checkout without HEAD"


def test_plugins_are_found_where_ld_so_looks_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "PLUGIN_FOLDERS", (str(tmp_path / "vendor"),))
    for folder in ("vendor", "mine"):
        (tmp_path / folder).mkdir()
    (tmp_path / "vendor" / "libnccl-net.so").write_bytes(b"\x7fELF NET/OFI Initializing aws-ofi-nccl 1.16.3\0")
    (tmp_path / "vendor" / "libnccl-net-ofi.so").symlink_to("libnccl-net.so")
    (tmp_path / "mine" / "libnccl-tuner-example.so").write_bytes(b"tuner")
    (tmp_path / "mine" / "libnccl.so.2").write_bytes(b"no plugin")
    os.mkfifo(tmp_path / "mine" / "libnccl-net-pipe.so")
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
    assert software.parse_login_shell(software.SHELL_MARK + b"\0\0HOME=/root\0") == (None, None, {"HOME": "/root"})
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


@pytest.fixture
def repo(home: Path) -> Path:
    """A checkout with two files, whose index is older than what a test changes."""
    folder = home / "repo"
    folder.mkdir()
    git(folder, "init", "-q")
    for name in ("a.py", "b.py"):
        (folder / name).write_text(name)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def look(path: str = "repo") -> dict[str, Any]:
    (entry,) = same.digest_paths([path], soon())
    return entry


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_each_version_of_the_index_is_read(home: Path, version: int, object_format: str) -> None:
    folder = home / "repo"
    folder.mkdir()
    git(folder, "init", "-q", f"--object-format={object_format}")
    git(folder, "config", "index.version", str(version))
    names = ["a", "deep/er/b.py", "deep/er/c.py", "ä ö", "x" * 200, *(f"n/{number:03}" for number in range(50))]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "link").symlink_to("a")
    git(folder, "add", ".")
    if version == 3:  # written only where an entry needs it
        (folder / "later").write_text("")
        git(folder, "add", "-N", "later")
    git(folder, "commit", "-qm", "first", "-a")
    assert (look()["commit"], look()["files"]) == (git(folder, "rev-parse", "HEAD"), {})
    (folder / "deep/er/c.py").write_text("other")
    (folder / "link").unlink()
    (folder / "link").symlink_to("b")
    assert sorted(look()["files"]) == ["deep/er/c.py", "link"]


def test_what_is_staged_is_a_difference(repo: Path) -> None:
    before = look()["staged"]
    (repo / "a.py").write_text("staged")
    git(repo, "add", "a.py")
    assert look()["staged"] != before


def test_a_touched_file_and_packed_references_are_no_change(repo: Path) -> None:
    git(repo, "pack-refs", "--all")
    os.utime(repo / "a.py")
    assert (look()["commit"], look()["files"]) == (git(repo, "rev-parse", "HEAD"), {})


def test_a_file_of_lfs_is_what_its_pointer_says(repo: Path) -> None:
    data = os.urandom(5000)
    pointer = checkout.LFS.format(hashlib.sha256(data).hexdigest(), len(data))
    (repo / "a.py").write_text(pointer)
    git(repo, "commit", "-qam", "pointer")
    (repo / "a.py").write_bytes(data)
    assert look()["files"] == {}


def test_worktrees_and_submodules(repo: Path, home: Path) -> None:
    git(repo, "worktree", "add", "-q", str(home / "tree"))
    assert (look("tree")["kind"], look("tree")["commit"]) == ("checkout", git(repo, "rev-parse", "HEAD"))
    git(home / "tree", "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(repo), "sub")
    git(home / "tree", "commit", "-qm", "submodule")
    assert look("tree")["files"] == {}
    (home / "tree/sub/a.py").write_text("x")
    git(home / "tree/sub", "commit", "-qam", "second")
    assert sorted(look("tree")["files"]) == ["sub"]


RUNS_SOMETHING = {
    "filter": ('[filter "x"]\n\tclean = {}\n\tprocess = {}\n', {".gitattributes": "* filter=x\n"}),
    "fsmonitor": ("[core]\n\tfsmonitor = {}\n", {}),
    "hooks": ("[core]\n\thooksPath = {}\n", {}),
    "textconv": ('[diff "x"]\n\ttextconv = {}\n\tcommand = {}\n', {".gitattributes": "* diff=x\n"}),
    "include": (
        "[include]\n\tpath = evil\n",
        {".git/evil": '[filter "x"]\n\tclean = {}\n', ".git/info/attributes": "* filter=x\n"},
    ),
    "alias": (
        "[alias]\n\tstatus = !{}\n\trev-parse = !{}\n[core]\n\tpager = {}\n\teditor = {}\n\tsshCommand = {}\n",
        {},
    ),
}


@pytest.mark.parametrize("way", RUNS_SOMETHING)
def test_nothing_that_a_checkout_names_is_run(repo: Path, home: Path, way: str) -> None:
    program = home / "evil"
    program.write_text(f"#!/bin/sh\necho ran >> {home}/canary\n")
    program.chmod(0o755)
    configuration, files = RUNS_SOMETHING[way]
    with (repo / ".git/config").open("a") as file:
        file.write(configuration.replace("{}", str(program)))
    for name, text in files.items():
        (repo / name).write_text(text.replace("{}", str(program)))
    for name in ("post-index-change", "fsmonitor-watchman", "post-checkout"):
        (repo / ".git/hooks" / name).write_text(f"#!/bin/sh\necho ran >> {home}/canary\n")
        (repo / ".git/hooks" / name).chmod(0o755)
    (repo / "a.py").write_text("B.py")  # of the same size
    os.utime(repo / "a.py", (1, 1))
    assert look()["files"] == {"a.py": hashlib.sha256(b"B.py").hexdigest()}
    assert not (home / "canary").exists()


@given(st.binary(max_size=300), st.sampled_from([20, 32]))
def test_no_index_breaks_the_reader(data: bytes, width: int) -> None:
    for text in (data, b"DIRC\0\0\0\2\0\0\0\1" + data, b"DIRC\0\0\0\4\0\0\0\1" + data):
        with suppress(ValueError, IndexError, struct.error, Unavailable):
            for entry in checkout.parse_index(text, width):
                assert ".." not in entry.path.split("/")


STRANGER = 12345


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody may enter; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="same-") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "root").mkdir(mode=0o700)
        (place / "root/secret").write_text("secret")
        (place / "mine").mkdir()
        os.chown(place / "mine", STRANGER, STRANGER)
        yield place


def test_root_reads_what_a_stranger_named_with_that_ones_rights(shared: Path) -> None:
    (shared / "mine/link").symlink_to(shared / "root/secret")
    (shared / "mine/folder").mkdir()
    (shared / "mine/folder/link").symlink_to(shared / "root/secret")
    (shared / "mine/own.py").write_text("own")
    for path in ("mine/link", "mine/folder", "mine/folder/link", "mine/own.py"):
        os.chown(shared / path, STRANGER, STRANGER, follow_symlinks=False)
    secret = hashlib.sha256(b"secret").hexdigest()
    told = same.digest_paths([f"{shared}/mine/{name}" for name in ("link", "folder", "own.py")], soon())
    assert secret not in repr(told)
    assert told[0]["problem"] == "Permission denied"
    assert told[1]["files"] == {"link": f"link to {shared}/root/secret"}
    assert told[2]["files"] == {"": hashlib.sha256(b"own").hexdigest()}


@pytest.mark.parametrize("whose", ["git", "submodule"])
def test_root_goes_nowhere_that_a_stranger_s_checkout_names(shared: Path, whose: str) -> None:
    """Its commondir names any folder; the path itself is root's, in which others may write."""
    checkout_folder = shared / "code" if whose == "git" else shared / "code/sub"
    for place in dict.fromkeys((shared / "code", checkout_folder)):
        place.mkdir(exist_ok=True)
        git(place, "init", "-q")
        (place / "a.py").write_text("x")
        git(place, "add", "a.py")
        git(place, "commit", "-qm", "first")
    if whose == "submodule":
        git(shared / "code", "add", "sub")
    secret = git(checkout_folder, "rev-parse", "HEAD")
    (shared / "root/refs").mkdir()
    (shared / "root/refs/x").write_text(secret)
    (checkout_folder / ".git/commondir").write_text(str(shared / "root"))
    (checkout_folder / ".git/HEAD").write_text("ref: refs/x")
    for path in (checkout_folder / ".git/commondir", checkout_folder / ".git"):
        os.chown(path, STRANGER, STRANGER)
    (found,) = same.digest_paths([f"{shared}/code"], soon())
    assert found.get("commit") != secret
    assert found["problem"] == (
        "is a Git checkout whose .git/commondir leads to a place that users other than root chose"
    )


def test_a_stranger_s_pipe_is_not_even_opened(shared: Path) -> None:
    pipes = shared / "pipes"  # root's, for a group: its members may put anything there
    pipes.mkdir()
    os.mkfifo(shared / "root/pipe", 0o600)
    (pipes / "a").symlink_to(shared / "root/pipe")
    os.mkfifo(pipes / "b")
    for name in ("a", "b"):
        os.chown(pipes / name, STRANGER, STRANGER, follow_symlinks=False)
    heard: list[int] = []
    writers = [
        threading.Thread(target=lambda path=path: heard.append(os.open(path, os.O_WRONLY)), daemon=True)
        for path in (shared / "root/pipe", pipes / "b")
    ]
    for writer in writers:
        writer.start()
    told = same.digest_paths([str(pipes), f"{pipes}/a", f"{pipes}/b"], soon())
    assert told[0]["files"] == {"a": f"link to {shared}/root/pipe", "b": "no regular file"}
    assert heard == []
    for path in (shared / "root/pipe", pipes / "b"):
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    for writer in writers:
        writer.join()
    for number in heard:
        os.close(number)
