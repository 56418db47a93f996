"""Answers of RAS. well, empty, incomplete, dead and stopped-and-dead were recorded from libnccl 2.32.3; the others are
composed from what src/ras/client_support.cc prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.logs.log import KEPT, Event
from nccl_doctor.logs.reader import from_answer
from nccl_doctor.logs.rule import RAS_LINE
from nccl_doctor.nccl.ras import MalformedAnswerError, RasAnswer, RasProcess, parse, parse_lines
from nccl_doctor.text.bounds import CrowdedError

ANSWERS = Path(__file__).parent / "ras"
NODE_2, NODE_3 = RasProcess("10.88.0.2", 18, (1,)), RasProcess("10.88.0.3", 18, (2,))


def answer(name: str) -> RasAnswer:
    return parse((ANSWERS / name).read_text())


@pytest.mark.parametrize("name", ["well.txt", "empty.json"])
def test_all_well(name: str) -> None:
    assert answer(name) == RasAnswer(nccl_version="2.32.3")


def test_silent_and_dead_processes() -> None:
    incomplete, dead, both = map(answer, ("incomplete.txt", "dead.txt", "stopped-and-dead.txt"))
    assert (incomplete.missing, incomplete.missing_count, incomplete.timeouts) == ((NODE_3,), 1, 2)
    assert (dead.dead, dead.dead_count, dead.missing_count) == ((NODE_3,), 1, 0)
    assert (both.missing, both.dead) == ((NODE_2,), (NODE_3,))


def test_counts_name_the_ranks_behind() -> None:
    (communicator,) = answer("behind.txt").communicators
    assert communicator.hash == "fa93daea854b060b"
    (groups,) = communicator.launched().values()
    assert [(one.value, one.size, [rank.rank for rank in one.ranks]) for one in groups] == [
        (0, 1, [12]),
        (60, 1, [7]),
        (640, 30, []),
    ]
    (rank,) = groups[1].ranks
    assert (rank.rank, rank.gpu, rank.pid, rank.host) == (7, 3, 3748990, "10.137.190.124")


def test_the_first_versions_count_all_collectives_together() -> None:
    found = answer("old.txt")
    (communicator,) = found.communicators
    assert [(rank.rank, rank.pid) for rank in communicator.missing] == [(21, 3487984)]
    assert found.missing == (RasProcess("172.16.64.213", 3487984, (5,)),)
    (late, early) = communicator.launched()["collective"]
    assert (late.value, late.size, [(rank.rank, rank.pid) for rank in late.ranks]) == (
        6649,
        5,
        [(0, 101), (2, 103), (3, None)],
    )
    assert (early.size, early.ranks) == (26, ())


def test_errors_and_statuses() -> None:
    found = answer("errors.txt")
    assert found.statuses == ("ABORT", "RUNNING")
    assert (found.dead, found.dead_count) == ((RasProcess("fe80::5", 77, (0, 1)),), 2)
    (communicator,) = found.communicators
    told = [(one.topic, one.value, one.size, [rank.rank for rank in one.ranks]) for one in communicator.groups]
    assert told == [
        ("error", "Remote process error", 3, []),
        ("error", "Unhandled CUDA error", 1, [1]),
        ("status", "RUNNING", 31, []),
        ("status", "ABORT", 1, [1]),
    ]


def test_json_of_the_versions_that_forget_a_comma() -> None:
    found = answer("no-comma.json")
    with pytest.raises(json.JSONDecodeError):
        json.loads((ANSWERS / "no-comma.json").read_text())
    (communicator,) = found.communicators
    assert (communicator.hash, communicator.size) == ("0a93daea854b060b", 6)
    assert [(rank.rank, rank.dead) for rank in communicator.missing] == [(4, True), (5, False)]
    assert found.dead == (RasProcess("10.0.0.3", 15, (0,)),)
    behind, ahead = communicator.launched()["AllReduce"]
    assert (behind.value, [rank.rank for rank in behind.ranks], ahead.size) == (60, [2], 3)
    assert [(one.value, one.ranks[0].rank) for one in communicator.groups if one.topic == "error"] == [
        ("Remote process error", 3)
    ]
    assert found.timeouts == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "HTTP/1.1 400 Bad Request",
        "{}",
        '{"nccl_version": 5, "communicators": []}',
        '{"nccl_version": "2", "communicators": [{"hash": "0x1", "size": ' + "9" * 5000 + "}]}",
        '{"nccl_version": "2", "communicators": [{"hash": "$(reboot)", "size": 2}]}',
        '{"nccl_version": "2", "communicators": [{"hash": "1", "size": 2, "ranks": [{"rank": 0, "host": "a b"}]}]}',
    ],
)
def test_what_ras_never_says_is_one_sentence(text: str) -> None:
    with pytest.raises(MalformedAnswerError, match=r"^RAS answered "):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "{" * 100_000,
        '{"communicators": [' + "{}," * 300_000,
        '{"communicators": [' + "0," * 3_000_000,
        "NCCL version 2.28.9 compiled\n" + "\n" * 300_000,
    ],
)
def test_what_asks_for_more_than_an_answer_holds_is_not_parsed(text: str) -> None:
    with pytest.raises(CrowdedError, match="more than"):
        parse(text)


def test_many_processes_take_no_time_for_each_other() -> None:
    ranks = ",".join(
        f'{{"rank":{pid},"host":"10.0.0.1","pid":{pid},"status":{{"considered_dead":true}}}}' for pid in range(30_000)
    )
    text = f'{{"nccl_version":"2.28.9","communicators":[{{"hash":"1","size":2,"missing_ranks":[{ranks}]}}]}}'
    found = parse(text)
    assert found.dead_count == 30_000
    event = Event.of_file("ras.json", RAS_LINE, "the answer of RAS")
    assert [one.rank for one in from_answer(found, event)] == list(range(KEPT))


LINES = [line for path in ANSWERS.glob("*.txt") for line in path.read_text().splitlines()]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=60)), max_size=30))
def test_no_lines_raise(lines: list[str]) -> None:
    for communicator in parse_lines(lines).communicators:
        communicator.launched()
