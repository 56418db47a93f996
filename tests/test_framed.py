"""A snapshot that went through a log."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor import framed
from nccl_doctor.errors import SnapshotError
from tests.checks.snapshots import patched

DOCUMENT = patched({}).model_dump_json(by_alias=True, indent=1)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """As the pod's Python prints it, in pieces of 4,000 letters."""
    path: Path = tmp_path_factory.mktemp("pod") / "s.json"
    noise = random.Random(1).randbytes(8000).hex()
    path.write_text(f"{DOCUMENT}\n{noise}")
    done = subprocess.run([sys.executable, "-c", framed.WRITER, str(path)], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_it_comes_back_whole_out_of_a_pods_log(logged: list[str]) -> None:
    assert len(logged) > 1
    assert max(map(len, logged)) < 4100
    lines = [
        "pip: a warning",
        *(f"[pod/a-0-x/check] 2026-01-05T10:00:00Z {line}\r\n" for line in reversed(logged)),
        logged[0],
    ]
    assert framed.read(lines, "log").decode().startswith(DOCUMENT)


def test_the_last_one_counts(logged: list[str]) -> None:
    older = [line.replace(logged[0].split()[2], "00000000") for line in logged[:1]]
    assert framed.read([*older, *logged], "log").decode().startswith(DOCUMENT)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _lines: [], "log: holds no snapshot"),
        (lambda lines: lines[1:], "are missing or cut"),
        (lambda lines: [lines[0][:-9], *lines[1:]], "are missing or cut"),
    ],
)
def test_what_is_not_whole_is_refused_in_a_sentence(logged: list[str], change: object, words: str) -> None:
    assert callable(change)
    with pytest.raises(SnapshotError, match=words):
        framed.read(change(logged), "log")


@given(
    st.lists(
        st.text(max_size=40)
        | st.from_regex(r"nccl-doctor-snapshot [0-9]/[0-9] [0-9a-f]{8} [A-Za-z0-9=]{1,20}", fullmatch=True)
    )
)
def test_no_log_crashes(lines: list[str]) -> None:
    with pytest.raises(SnapshotError):
        framed.read(lines, "log")
