"""Tests that forks run: each once, none lost with a fork that dies, and what they share is theirs alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.patience import LONG_S
from tests.run import ROOT

TESTS = """
import os
import pytest

@pytest.fixture(scope="session")
def place(tmp_path_factory):
    yield tmp_path_factory.mktemp("place")
    with open(os.environ["ENDED"], "a") as file:
        file.write("ended\\n")

@pytest.fixture(scope="module")
def counted():
    return []

@pytest.mark.parametrize("number", range(30))
def test_in_turn(counted, number):
    counted.append(number)
    assert counted == list(range(number + 1))

@pytest.mark.parametrize("number", range(60))
def test_alone(place, tmp_path, capfd, number):
    assert place.parent == tmp_path.parent
    os.write(1, b"%d" % number)
    assert capfd.readouterr().out == str(number)

@pytest.mark.parametrize("number", range(60, 63))
def test_that_ends(place, number):
    print("heard")
    if number == 60:
        os.kill(os.getpid(), 9)
    assert number == 62
"""


def run(folder: Path, *words: str) -> tuple[str, dict[str, str]]:
    """What pytest prints of the tests above in three forks, and what failed with which words."""
    (folder / "conftest.py").write_text('pytest_plugins = ("tests.forks",)\n')
    (folder / "test_some.py").write_text(TESTS)
    report = folder / "report.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", folder,
         "--forks", "3", f"--junit-xml={report}", *words],
        cwd=folder, env={"PYTHONPATH": str(ROOT), "PATH": "", "ENDED": str(folder / "ended")},
        capture_output=True, text=True, timeout=LONG_S, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    ends = {case.get("name", ""): case.find("failure") for case in ET.parse(report).iter("testcase")}
    assert (done.returncode, len(ends)) == (1, int(next(ET.parse(report).iter("testsuite")).get("tests", "")))
    return done.stdout, {name: end.text or "" for name, end in ends.items() if end is not None}


def test_each_runs_once_and_a_dead_fork_fails_only_what_it_ran(tmp_path: Path) -> None:
    text, failures = run(tmp_path)
    assert "2 failed, 91 passed" in text
    assert failures.keys() == {"test_that_ends[60]", "test_that_ends[61]"}
    assert failures["test_that_ends[60]"] == "The process that ran this test ended: -9."
    assert "assert 61 == 62" in failures["test_that_ends[61]"]
    assert "heard" in text
    assert 1 <= (tmp_path / "ended").read_text().count("ended") <= 3  # by fork, not by group of tests


def test_after_the_first_failure_no_other_begins(tmp_path: Path) -> None:
    text, failures = run(tmp_path, "-x")
    assert "stopping after 1 failures" in text
    assert len(failures) == 1
