"""What ``scripts/test`` makes of its words, and what it says of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.patience import LONG_S
from tests.run import QUICK, ROOT, command


def test_without_words_all_run_by_more_forks_than_cores() -> None:
    words, text = command([], ROOT, 2)
    assert words == ["--forks", "8"]
    assert "All tests, in 8 forks" in text
    assert "Ten to fifteen minutes" in text


def test_quick_leaves_out_what_takes_long_and_never_waits() -> None:
    words, text = command(["--quick", "-x"], ROOT, 2)
    assert words == ["--forks", "8", "-m", QUICK, "-x"]
    assert "about two minutes" in text


@pytest.mark.parametrize("own", [["--forks", "0"], ["--forks=1"], ["--collect-only"]])
def test_who_says_how_many_forks_gets_these(own: list[str]) -> None:
    assert command(own, ROOT, 2)[0] == own


def test_a_path_counts_from_where_it_is_typed_and_else_from_the_root() -> None:
    here = Path(__file__)
    for folder, word in ((here.parent, "test_run.py"), (ROOT, "tests/test_run.py"), (Path("/"), str(here))):
        words, text = command([f"{word}::test_one[a b]", "-q"], folder, 2)
        path, name = words[0].split("::")
        assert ((ROOT / path).resolve(), name, words[1:]) == (here, "test_one[a b]", ["-q"])
        assert "as long as these tests take" in text
    words, text = command(["-k", "lab"], here.parent, 2)  # which is a folder there, too
    assert (words[-2:], "All tests" in text) == (["-k", "lab"], True)


def test_the_script_runs_one_test_from_its_folder() -> None:
    name = test_quick_leaves_out_what_takes_long_and_never_waits.__name__
    done = subprocess.run(
        [ROOT / "scripts/test", f"{Path(__file__).name}::{name}"],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=LONG_S, check=True,
    )  # fmt: skip
    assert "1 passed" in done.stdout
    assert f"{Path(__file__).name}::{name}: as long as" in done.stderr


@pytest.mark.parametrize("name", ["bench", "check", "lab", "picture", "readme", "test"])
def test_a_script_without_the_development_group_says_what_installs_it(tmp_path: Path, name: str) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    done = subprocess.run([f"scripts/{name}"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"scripts/{name} needs what scripts/setup installs: run that first.\n"
