"""Flight recorders that real ranks on gloo wrote while they stood: the culprit and its line, in both forms."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nccl_doctor.logs.diagnose import LogSource, LogVerdict, diagnose
from tests.patience import LONG_S

SCRIPT = Path(__file__).with_name("gloo_ranks.txt")
RANKS, BAD = 4, 2
PICKLED, JSON = "trace", "json"


pytestmark = pytest.mark.lab  # 24 processes with torch: no quick test on a busy machine


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each scenario, with the dumps of all ranks."""
    folder = tmp_path_factory.mktemp("dumps")
    script = folder / "train.py"
    script.write_text(SCRIPT.read_text())
    subprocess.run([sys.executable, script, folder], check=True, timeout=LONG_S)
    return folder


def judged(folder: Path, kind: str, without: int | None = None) -> LogVerdict:
    files = [f"{kind}_rank_{rank}" for rank in range(RANKS) if rank != without]
    return diagnose([LogSource(name, [(folder / name).read_bytes()]) for name in files])


def line(text: str) -> str:
    """Where the script says this, as dumps tell it."""
    return f"train.py:{SCRIPT.read_text().splitlines().index(text) + 1}"


@pytest.mark.parametrize("kind", [PICKLED, JSON])
def test_healthy_ones_are_silent(dumps: Path, kind: str) -> None:
    assert judged(dumps / "healthy", kind).causes == ()


@pytest.mark.parametrize("kind", [PICKLED, JSON])
@pytest.mark.parametrize(
    ("scenario", "name", "said", "at"),
    [
        ("behind", "collective-timeout", "never came to number 3 of group 0", "        dist.all_reduce(torch.ones(4))"),
        ("sizes", "collective-mismatch", "all_reduce [[1]] Float", "    dist.all_reduce(torch.ones(1 if rank == BAD else 4))"),
        (
            "dtype",
            "collective-mismatch",
            "all_reduce [[4]] Int",
            "    dist.all_reduce(torch.ones(4, dtype=torch.int32 if rank == BAD else torch.float32))",
        ),
        ("operation", "collective-mismatch", "broadcast [[4]] Float", "        dist.broadcast(torch.ones(4), 0)"),
        ("subgroup", "collective-timeout", "never came to number 2 of group 1", "        dist.all_reduce(torch.ones(4), group=group)"),
    ],
)  # fmt: skip
def test_the_rank_and_its_line(dumps: Path, kind: str, scenario: str, name: str, said: str, at: str) -> None:
    (cause,) = judged(dumps / scenario, kind).causes
    first = cause.events[0]
    assert (cause.name, first.rank, first.file) == (name, BAD, f"{kind}_rank_{BAD}")
    assert said in first.text
    if kind == PICKLED:
        assert any(line(at) in event.text for event in cause.events)


@pytest.mark.parametrize("kind", [PICKLED, JSON])
def test_a_dump_that_is_missing(dumps: Path, kind: str) -> None:
    (cause,) = judged(dumps / "behind", kind, without=BAD).causes
    assert (cause.name, cause.events[0].rank) == ("collective-timeout", BAD)
    assert "gave no dump" in cause.events[0].text
