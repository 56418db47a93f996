"""Lines that were made to cost time: judged in a bounded multiple of the time of harmless text of their size.

Both are measured in the same run, as time of the processor, and measured again before a verdict.
"""

from __future__ import annotations

import random

import pytest

from nccl_doctor.logs import reader, scan
from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.prefix import flow
from tests.bench.hostile_logs import RULES, SIZE, harmless, hostile, seconds, start_seconds, units

TIMES = 400
"""Harmless text of 60 kB takes a millisecond; what went wrong took ten thousand times that."""


@pytest.fixture(scope="module")
def allowed() -> float:
    return TIMES * seconds(harmless(SIZE), 5)


def slow(data: bytes, allowed: float) -> bool:
    return all(seconds(data) > allowed for _ in range(3))


@pytest.mark.slow
def test_the_words_of_every_rule_in_one_line_of_60_kb(allowed: float) -> None:
    lines = {rule.pattern: ((unit := " ".join(units(rule)[1:]) + " ") * (SIZE // len(unit))).encode() for rule in RULES}
    assert [pattern for pattern, line in lines.items() if slow(line, allowed)] == []


@pytest.mark.parametrize(
    "line", ["INFO connect returned " * 180 + "Connection refused, retr", "libnccl-net.so/" * 270, "cuIpc" * 800]
)
def test_what_took_seconds(line: str, allowed: float) -> None:
    """Lines of 4 kB that the first pass lets through to a rule which nearly fits, at each of its words."""
    assert not slow(line.encode(), allowed)


@pytest.mark.slow
def test_random_logs_take_the_command_at_most_three_times_as_long() -> None:
    rng, start = random.Random(5), start_seconds()
    logs = [hostile(rng, size) for size in (20_000, 60_000, 200_000) * 3 + (1_000_000,) * 3]
    harmless_ones = {len(log): harmless(len(log)) for log in logs}

    def times(log: bytes) -> float:
        return (start + seconds(log)) / (start + seconds(harmless_ones[len(log)]))

    assert [log[:80] for log in logs if all(times(log) > 3 for _ in range(3))] == []


def test_a_line_that_goes_on_and_on(allowed: float) -> None:
    assert not slow(b"x\n" * (SIZE // 2), allowed)
    assert len(flow(b"x\n" * 200_000, b"")) == 400_000


def test_a_word_said_too_often_is_heard_again_at_the_end() -> None:
    noise = b"validation Error: 0.31\n" * (scan.QUOTA + 5000)
    fault = b"OSError: [Errno 24] Too many open files\nValueError: bad shape\n"
    (cause,) = diagnose([LogSource("x.log", [noise + fault])]).causes
    assert (cause.name, cause.events[0].line) == ("nofile-low", noise.count(b"\n") + 1)
    (cause,) = diagnose([LogSource("x.log", [noise, b"ValueError: bad shape\n"])]).causes
    assert (cause.name, cause.events[0].line) == ("script-failed", noise.count(b"\n") + 1)


def test_a_file_without_line_ends_is_judged_at_a_few_places_and_at_its_end() -> None:
    fault = b"node1:5:7 [0] NCCL WARN Call to ibv_reg_mr failed "
    noise = b"x" * 3000
    scanner = scan.Scanner(reader.all_wordings())
    lines = [*scanner.feed((noise + fault) * 200), *scanner.close()]
    assert len(lines) == scan.WINDOWS
    assert scanner.passed_over
    found = diagnose([LogSource("x.log", [(noise + fault) * 200 + b"torch.OutOfMemoryError: CUDA out of memory. "])])
    assert "out-of-memory" in {cause.name for cause in found.causes}
