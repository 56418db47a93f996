from __future__ import annotations

import re

import pytest

from nccl_doctor.nccl.variables import register
from nccl_doctor.nccl.versions import CLASSES, NEWEST, OLDEST, Behaviour, behaviour, oldest_with, parse_version, show


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.27.7", (2, 27, 7)),
        ("2.27.5-1", (2, 27, 5)),
        ("2.21.5+cuda12.4", (2, 21, 5)),
        ("2.26.2.post1", (2, 26, 2)),
        ("v2.4.8", (2, 4, 8)),
        ("2.28", (2, 28, 999)),
    ],
)
def test_reads_versions_as_people_and_wheels_write_them(text: str, expected: tuple[int, int, int]) -> None:
    assert parse_version(text) == expected


@pytest.mark.parametrize("text", ["", "2", "new", "2.x.1", "2.3.7", "1.3.4", "2.28.3 or later"])
def test_refuses_the_rest(text: str) -> None:
    with pytest.raises(ValueError, match="NCCL"):
        parse_version(text)


def test_shows_them_as_they_were_given() -> None:
    assert [show(parse_version(text)) for text in ("2.28", "2.27.7")] == ["2.28", "2.27.7"]


def test_each_class_begins_where_something_changed() -> None:
    assert [since for since, _ in CLASSES] == sorted({since for since, _ in CLASSES})
    assert len({how for _, how in CLASSES}) == len(CLASSES)
    assert behaviour((2, 28, 2)) != behaviour((2, 28, 3)) == behaviour((2, 99, 0))
    assert behaviour((2, 3, 7)) == Behaviour()


@pytest.mark.parametrize("torch", ["2.8.0+cu126", "2.13.0+cpu", "3.0", "2.8"])
def test_a_new_torch_comes_with_no_old_nccl(torch: str) -> None:
    assert oldest_with(torch) == (2, 27, 3)


@pytest.mark.parametrize("torch", ["2.7.1+cu118", "1.13", "nightly", ""])
def test_an_old_torch_may_come_with_any(torch: str) -> None:
    assert oldest_with(torch) == OLDEST


def test_the_newest_series_is_that_of_the_register_of_variables() -> None:
    assert max(tuple(map(int, re.findall(r"\d+", known.since)[:2])) for known in register().values()) == NEWEST
