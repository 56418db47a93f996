"""The order of files, and of lines of different processes, changes no verdict; an exception of the script's comes first."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.log import rank_of_file
from nccl_doctor.logs.prefix import peel
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.report import Diagnosis
from tests.each import each

HERE = Path(__file__).parent
LOGS = sorted([*(HERE / "threads").glob("*.log"), *(HERE / "cases").glob("*.log")])

Files = list[tuple[str, str]]

GONE = (
    "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [10.0.0.9]:5428: Connection reset by peer. "
    "This is typically caused by a remote worker crashing. Check the logs of the remote worker\n"
)
WITHOUT_STORE = (
    "[rank0]: torch.distributed.DistBackendError: [0] is setting up NCCL communicator and retrieving ncclUniqueId from "
    "[1] via c10d key-value store by key '0', but store->get('0') got error: failed to recv, got 0 bytes\n"
)
RAISED = (
    "Traceback (most recent call last):\n  File \"train.py\", line 9, in <module>\n    x = d['lr']\nKeyError: 'lr'\n"
)
DOCKER = "n0:12:13 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\n"


def diagnoses(files: Files) -> list[Diagnosis]:
    return list(report(diagnose([LogSource(name, [text.encode()]) for name, text in files]), 0.0).diagnoses)


def verdict(files: Files) -> list[str]:
    """The causes."""
    return sorted(one.name for one in diagnoses(files))


def by_process(text: str) -> Files:
    """A file for each process that prefixes tell apart; lines without one go on where they stand."""
    files: dict[str, str] = {}
    name = "run"
    for line in text.splitlines(keepends=True):
        prefix = peel(line.rstrip("\n"))
        of = [str(part) for part in (prefix.host, prefix.rank, prefix.ip, prefix.pid) if part is not None]
        name = "-".join(of) or name
        files[name] = files.get(name, "") + line
    return [(f"{name}.log", text) for name, text in files.items()]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(LOGS), st.data())
def test_the_order_of_files_changes_no_verdict(path: Path, data: st.DataObject) -> None:
    files = by_process(path.read_text())
    assert verdict(data.draw(st.permutations(files))) == verdict(files)


@each(
    [
        (("rank0.log", GONE), ("rank1.log", RAISED)),
        (("rank0.log", WITHOUT_STORE), ("rank1.log", RAISED)),
        (("rank0.log", DOCKER + GONE), ("rank1.log", RAISED)),
        (("rank0.log", GONE), ("rank1.log", DOCKER + RAISED)),
        (("a/attempt_0/0/stderr.log", GONE), ("a/attempt_0/1/stderr.log", RAISED)),
    ],
    str,
)
def test_a_scripts_exception_comes_before_every_loss_of_it(files: tuple[tuple[str, str], ...]) -> None:
    for order in permutations(files):
        first, *others = diagnoses([*order])
        assert (first.name, first.facts["ranks"], others) == ("script-failed", [1], [])
        assert "KeyError: 'lr'" in first.message
    for texts in permutations(text for _, text in files):
        assert diagnoses([("run.log", "".join(texts))])[0].name == "script-failed"


@each(["", "During handling of the above exception, another exception occurred:\n\n"], str)
def test_what_the_rank_that_lost_another_makes_of_it_is_no_cause(between: str) -> None:
    raised = "".join(f"[rank0]: {line}" for line in (between + RAISED).splitlines(keepends=True))
    raised = raised.replace("KeyError: 'lr'", "MyError: gave up")
    assert verdict([("run.log", GONE + raised)]) == ["peer-died"]


def test_a_files_name_tells_the_rank() -> None:
    names = (
        "rank1.log",
        "logs/rank_12.txt",
        "a/attempt_0/3/stderr.log",
        "node-rank0",
        "rank.log",
        "frank1.log",
        "x/3.log",
    )
    assert [rank_of_file(name) for name in names] == [1, 12, 3, None, None, None, None]
