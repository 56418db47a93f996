"""Whole logs: the file's name begins with the diagnosis; mutations must not change it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.logs.diagnose import LogSource, LogVerdict, diagnose
from nccl_doctor.logs.signs import Case, signs
from tests.each import each

CASES = sorted((Path(__file__).parent / "cases").glob("*.log"))


def verdict_of(text: str | bytes, name: str = "run.log") -> LogVerdict:
    data = text if isinstance(text, bytes) else text.encode()
    return diagnose([LogSource(name, [data])])


def first(text: str | bytes) -> str | None:
    causes = verdict_of(text).causes
    return causes[0].name if causes else None


def expected(path: Path) -> str:
    return max((name for name in signs() if path.stem.startswith(name)), key=len)


@each(CASES, lambda path: path.stem)
def test_diagnosis(path: Path) -> None:
    assert first(path.read_bytes()) == expected(path)


@each(CASES, lambda path: path.stem)
def test_evidence_is_quoted_from_its_line(path: Path) -> None:
    verdict = verdict_of(path.read_bytes(), str(path))
    lines = path.read_text().splitlines()
    case = Case(verdict.causes[0], verdict.log)
    assert case.evidence()
    for quoted in case.evidence():
        assert quoted.file == str(path)
        assert quoted.text.strip("… ") in lines[quoted.line - 1]


@each(CASES, lambda path: path.stem)
def test_words_are_short_and_commands_name_what_the_log_names(path: Path) -> None:
    verdict = verdict_of(path.read_bytes())
    words = signs()[verdict.causes[0].name].advice(Case(verdict.causes[0], verdict.log))
    assert 20 < len(words.message) < 500
    assert len(words.fix.commands) <= 1
    for command in words.fix.commands:
        assert command.command.startswith("nccl-doctor ")


def test_entities_of_a_connection() -> None:
    verdict = verdict_of((Path(__file__).parent / "cases" / "no-route-to-host-nccl27.log").read_bytes())
    assert Case(verdict.causes[0], verdict.log).entities() == {
        "host": "fig02",
        "ip": "10.40.0.11",
        "port": 41733,
        "iface": "ens3",
        "rank": 1,
        "nccl_version": "2.7.8",
    }


def test_what_follows_stands_under_the_cause() -> None:
    verdict = verdict_of((Path(__file__).parent / "cases" / "out-of-memory.log").read_bytes())
    (cause,) = verdict.causes
    assert [name for name, _ in cause.follows] == ["collective-timeout"]


# --- mutations: what launchers, terminals and collectors do to logs ------------------------------------------------


def cut(lines: list[str], rng: random.Random) -> list[str]:
    keep = min(len(lines), 4)
    return [f"epoch {n} step {rng.randint(1, 999)} loss 0.{n}" for n in range(20)] + lines[: max(keep, len(lines) - 1)]


def wrap(lines: list[str], rng: random.Random) -> list[str]:
    width = rng.choice((80, 100, 120, 137, 160))
    return [line[at : at + width] for line in lines for at in range(0, max(len(line), 1), width)]


def interleave(lines: list[str], rng: random.Random) -> list[str]:
    noise = [
        f"zeta{n}:77:78 [{n}] NCCL INFO Channel 0{n}/0 : {n}[{n}] -> {n + 1}[{n + 1}] via P2P/IPC" for n in range(8)
    ]
    return [line for each in lines for line in (*rng.sample(noise, 3), each)]


def joined(lines: list[str], rng: random.Random) -> list[str]:
    noise = "zeta1:77:78 [1] NCCL INFO Connected all rings "
    return [noise + line if re.match(r"[\w-]+:\d+:\d+ ", line) and rng.random() < 0.5 else line for line in lines]


def prefixed(prefix: str) -> Callable[[list[str], random.Random], list[str]]:
    return lambda lines, _rng: [prefix + line for line in lines]


def timeless(lines: list[str], _rng: random.Random) -> list[str]:
    stamp = re.compile(r"^(?:\[?\d{4}-\d\d-\d\d[T ][\d:.]+Z?\]? ?)|(?<=\[)[EW]\d+ [\d:.]+ ")
    return [stamp.sub("", line) for line in lines]


def colored(lines: list[str], _rng: random.Random) -> list[str]:
    return [f"\x1b[36m{line[: len(line) // 3]}\x1b[0m{line[len(line) // 3 :]}" for line in lines]


def dos(lines: list[str], _rng: random.Random) -> list[str]:
    return [line + "\r" for line in lines]


MUTATIONS: dict[str, Callable[[list[str], random.Random], list[str]]] = {
    "cut": cut,
    "wrap": wrap,
    "interleave": interleave,
    "joined": joined,
    "timeless": timeless,
    "colored": colored,
    "dos": dos,
    "mpirun": prefixed("[1,3]<stdout>:"),
    "torchrun": prefixed("[default3]:"),
    "ray": prefixed("(RayWorkerWrapper pid=12, ip=10.4.4.4) "),
    "srun": prefixed("11: "),
    "pdsh": prefixed("gpu-node-17: "),
    "kubernetes": prefixed("2025-01-02T03:04:05.678901234Z stderr F "),
    "stacked": prefixed("2025-01-02T03:04:05.678Z [pod/trainer-1/pytorch] [rank1]: "),
    "quoted": prefixed("> "),
}


@pytest.mark.slow
def test_mutations_keep_the_diagnosis() -> None:
    rng = random.Random(7)
    lost = []
    for path in CASES:
        lines = path.read_text().splitlines()
        for name, mutate in MUTATIONS.items():
            if first("\n".join(mutate(lines, rng)) + "\n") != expected(path):
                lost.append(f"{name}: {path.stem}")
    total = len(CASES) * len(MUTATIONS)
    assert len(lost) <= total * 0.05, f"{1 - len(lost) / total:.1%} kept; lost: {lost}"


# --- nothing raises --------------------------------------------------------------------------------------------------

PIECES = [line for path in CASES for line in path.read_text().splitlines() if line]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES).map(str.encode), st.binary(max_size=80)), max_size=12), st.data())
def test_nothing_raises(pieces: list[bytes], data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([b"\n", b"\r\n", b" ", b""])).join(pieces)
    size = data.draw(st.integers(1, 200))
    blocks = [text[at : at + size] for at in range(0, len(text), size)]
    verdict = diagnose([LogSource("x", blocks)])
    assert len(verdict.causes) <= 3
    for cause in verdict.causes:
        case = Case(cause, verdict.log)
        assert signs()[case.cause.name].advice(case).message
        assert case.evidence()
        case.entities()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CASES), st.integers(1, 300))
def test_how_blocks_are_cut_does_not_matter(path: Path, size: int) -> None:
    data = path.read_bytes()
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    whole, pieces = diagnose([LogSource("x", [data])]), diagnose([LogSource("x", blocks)])
    assert [c.name for c in whole.causes] == [c.name for c in pieces.causes]
    assert Case(whole.causes[0], whole.log).evidence() == Case(pieces.causes[0], pieces.log).evidence()
