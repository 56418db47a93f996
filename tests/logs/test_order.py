"""The order of files, and of lines of different processes, changes no verdict; an exception of the script's comes first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, permutations
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.log import rank_of_file
from nccl_doctor.logs.prefix import peel
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.finding import Diagnosis
from tests.each import each
from tests.logs.labelled_cases import CASES

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


def named(text: str) -> list[tuple[str, str]]:
    """(process, line) of each line, the process "" where its prefixes name none."""
    facts = diagnose([LogSource("run.log", [text.encode()])]).log.facts
    found = []
    for line in text.splitlines():
        prefix = peel(line)
        process = facts.process(prefix)
        rank = process.rank if process and process.rank is not None else prefix.rank
        of = [rank] if rank is not None else [prefix.host, prefix.ip, prefix.pid]
        found.append(("-".join(str(part) for part in of if part is not None), f"{line}\n"))
    return found


def by_process(text: str) -> Files:
    """A file for each process that prefixes tell apart; lines without one go on where they stand."""
    files: dict[str, str] = {}
    name = "run"
    for of, line in named(text):
        name = of or name
        files[name] = files.get(name, "") + line
    return [(f"{name}.log", text) for name, text in files.items()]


def merge(lines: list[tuple[str, str]], chance: Random) -> Iterator[str]:
    """The lines in another order that keeps that of each process."""
    order = [of for of, _ in lines]
    chance.shuffle(order)
    left = {of: iter([line for other, line in lines if other == of]) for of in order}
    return (next(left[of]) for of in order)


def interleave(text: str, seed: int) -> str:
    """Another interleaving; lines of nobody keep their place, for that alone tells whose they may be."""
    chance = Random(seed)
    parts = groupby(named(text), key=lambda one: one[0] != "")
    return "".join(line for of, part in parts for line in (merge([*part], chance) if of else (one for _, one in part)))


TEXTS = {path.name: path.read_text() for path in (*LOGS, *(HERE / "healthy").glob("*.log"))}
TEXTS |= {f"{case.title} ({kind})": text for case in CASES for kind, text in (("ill", case.log), ("ok", case.healthy))}
SEVERAL = [name for name, text in TEXTS.items() if len({of for of, _ in named(text)} - {""}) > 1]


@each(SEVERAL, str)
def test_no_interleaving_changes_a_verdict(name: str) -> None:
    wanted = verdict([("run.log", TEXTS[name])])
    assert [verdict([("run.log", interleave(TEXTS[name], seed))]) for seed in range(3)] == [wanted] * 3


@each(sorted((HERE / "threads").glob("*.log")), lambda path: path.name)
def test_not_even_of_lines_that_follow_a_process(path: Path) -> None:
    files = by_process(path.read_text())
    lines = [(name, line) for name, text in files for line in text.splitlines(keepends=True)]
    wanted = verdict([("run.log", path.read_text())])
    for seed in range(5):
        assert verdict([("run.log", "".join(merge(lines, Random(seed))))]) == wanted


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
