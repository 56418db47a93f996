"""A file that can't be written costs no run: it is said before any host is contacted, and no report is lost."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.checks.snapshots import patched
from tests.cli.program import assert_one_sentence, run
from tests.hang.made_up import Job
from tests.lab.warm import tool
from tests.patience import LONG_S

FORMS = ("human", "json", "junit", "prometheus", "html")
NEVER = "/proc/x"
"""Looks fit to be written to, for root may; but no file can be made there."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With an ssh of its own that leaves a mark."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(f"#!/bin/sh\ntouch {tmp_path}/contacted\nexit 255\n")
    (tmp_path / "bin" / "ssh").chmod(0o755)
    (tmp_path / "hosts.yaml").write_text("hosts: [192.0.2.1, 192.0.2.2]\n")
    (tmp_path / "seen.json").write_text(patched({}).model_dump_json(by_alias=True))
    (tmp_path / "hang.json").write_text(Job().snapshot.model_dump_json(by_alias=True))
    return tmp_path


OPTIONS = [
    ("check", "--output-file"),
    ("check", "--save"),
    ("check", "--write-hosts"),
    ("check", "--write-failed"),
    ("smoke", "--output-file"),
    ("smoke", "--save"),
    ("smoke", "--save-logs"),
    ("hang", "--output-file"),
    ("hang", "--save"),
    ("ifname", "--output-file"),
]


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_it_is_said_before_any_host_is_contacted(folder: Path, command: str, option: str) -> None:
    (folder / "file").write_text("old")
    bad = "file/x" if option == "--save-logs" else "nowhere/x.html"
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    done = run(command, "hosts.yaml", "--transport", "openssh", option, bad, cwd=folder, PATH=path)
    assert_one_sentence(done, f"{option}: {bad}: can't be written: N")
    assert not (folder / "contacted").exists()
    assert sorted(one.name for one in folder.iterdir()) == ["bin", "file", "hang.json", "hosts.yaml", "seen.json"]
    assert (folder / "file").read_text() == "old"


def test_the_ssh_of_the_fixture_would_have_been_called(folder: Path) -> None:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    run("check", "hosts.yaml", "--transport", "openssh", "--connect-timeout", "5", cwd=folder, PATH=path)
    assert (folder / "contacted").exists()


@pytest.mark.parametrize("words", [("fix-port", "29500"), ("logs", "seen.json"), ("diff", "seen.json", "seen.json")])
def test_nor_does_any_other_command_begin(folder: Path, words: tuple[str, ...]) -> None:
    done = run(*words, "--output-file", "nowhere/x", cwd=folder)
    assert_one_sentence(done, "--output-file: nowhere/x: can't be written: No such file or directory")


def test_the_hosts_file_that_a_port_would_go_into_is_tried(folder: Path) -> None:
    done = run("fix-port", "--next", "--write", "--hosts", "nowhere/hosts.yaml", cwd=folder)
    assert_one_sentence(done, "nowhere/hosts.yaml")


@pytest.mark.parametrize("form", FORMS)
def test_what_fails_at_the_end_stands_on_stdout(folder: Path, form: str) -> None:
    plain = run("check", "--from", "seen.json", "-o", form, cwd=folder)
    done = run("check", "--from", "seen.json", "-o", form, "--output-file", NEVER, cwd=folder)
    assert (done.returncode, done.stderr) == (2, f"{NEVER}: can't be written: No such file or directory\n")
    if form == "html":
        assert done.stdout.startswith("<!doctype html>")
    else:
        assert done.stdout == plain.stdout


@pytest.mark.parametrize("option", ["--save", "--write-hosts", "--write-failed"])
def test_another_file_that_fails_at_the_end_costs_no_report(folder: Path, option: str) -> None:
    plain = run("check", "--from", "seen.json", "-o", "json", cwd=folder)
    done = run("check", "--from", "seen.json", "-o", "json", option, NEVER, cwd=folder)
    assert (done.returncode, done.stderr) == (2, f"{NEVER}: can't be written: No such file or directory\n")
    assert json.loads(done.stdout) == json.loads(plain.stdout)


def test_a_snapshot_of_hang_that_fails_at_the_end_costs_no_report(folder: Path) -> None:
    done = run("hang", "--from", "hang.json", "-o", "json", "--save", NEVER, cwd=folder)
    assert (done.returncode, done.stderr) == (2, f"{NEVER}: can't be written: No such file or directory\n")
    assert json.loads(done.stdout)["verdict"]


def test_of_a_page_a_terminal_gets_the_screen(folder: Path) -> None:
    ours, theirs = pty.openpty()
    words = [tool(), "check", "--from", "seen.json", "-o", "html", "--output-file", NEVER]
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        done = subprocess.Popen(words, cwd=folder, stdout=theirs, stderr=subprocess.DEVNULL)
        os.close(theirs)
        shown = b""
        try:
            while piece := terminal.read(4096):
                shown += piece
        except OSError:  # how Linux tells that the other end is closed
            pass
        assert done.wait(LONG_S) == 2
    assert b"Ready." in shown
    assert b"<html" not in shown


def test_streams_and_devices_are_files_to_write_to(folder: Path) -> None:
    plain = run("check", "--from", "seen.json", "-o", "json", cwd=folder).stdout
    for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        done = run("check", "--from", "seen.json", "-o", "json", "--output-file", name, cwd=folder)
        assert (done.returncode, done.stdout) == (0, plain)
    done = run("check", "--from", "seen.json", "-o", "json", "--output-file", "/dev/null", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_appended_to_keeps_what_it_had(folder: Path) -> None:
    words = [tool(), "check", "--from", "seen.json", "--output-file", "/dev/stdout"]
    with (folder / "all.log").open("ab") as stream:
        stream.write(b"before\n")
        stream.flush()
        assert subprocess.run(words, cwd=folder, stdout=stream, timeout=LONG_S, check=False).returncode == 0
    text = (folder / "all.log").read_text()
    assert text.startswith("before\n")
    assert "Ready." in text
