from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import repeat

pytestmark = pytest.mark.slow

TESTS = """
import os, pathlib, psutil, pytest

RUNS = pathlib.Path(__file__).with_name("runs")
THIS = len(RUNS.read_text()) if RUNS.exists() else 0

def test_always_well():
    RUNS.write_text("x" * (THIS + 1))

def test_busy_loops_run_beside():
    around = psutil.Process().parent().children(recursive=True)
    assert sum("sum(range(" in " ".join(one.cmdline()) for one in around) == LOOPS

@pytest.mark.parametrize("row", ["a", "b"])
def test_second(row):
    assert (THIS, row) != (1, "b"), "only in the second run"

def test_third():
    if THIS == 2:
        os.abort()
"""


def test_each_failure_is_counted_and_the_first_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of three runs the second has one, and the third ends before its own end."""
    file = tmp_path / "test_odd.py"
    file.write_text(TESTS.replace("LOOPS", str(repeat.BUSY)))
    words = ["--times", "3", "--busy", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)]
    assert repeat.main(words) == 1
    shown = capfd.readouterr().out.splitlines()
    assert [line.split("  ")[-1] for line in shown[:3]] == [
        "well",
        "test_odd.py::test_second[b]",
        "the run itself, which ended with -6",
    ]
    second, where, third, output = shown[3:]
    assert second == "failed 1 of 3 times: test_odd.py::test_second[b]"
    assert "only in the second run" in Path(where.strip()).read_text()
    assert third == "failed 1 of 3 times: the run itself, which ended with -6"
    assert "Aborted" in Path(output.strip()).read_text()


def test_scripts_test_hands_on_what_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "test_well.py").write_text("def test_well(): pass\n")
    script = Path(__file__).parents[1] / "scripts" / "test"
    arguments = ["--times", "2", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run([script, *arguments], capture_output=True, text=True, check=True)
    assert [line.split("  ")[::2] for line in done.stdout.splitlines()] == [["1 of 2", "well"], ["2 of 2", "well"]]
