from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.errors import UsageError
from nccl_doctor.launch.line import batch_notes, divides


@pytest.mark.parametrize(
    ("batch", "nearest"), [(65, "64 and 72"), (9, "8 and 16"), (7, "that does is 8"), (1, "that does is 8")]
)
def test_a_batch_that_does_not_divide(batch: int, nearest: str) -> None:
    with pytest.raises(UsageError, match=nearest):
        divides(batch, 8)
    divides(64, 8)


@given(st.integers(1, 10**6), st.integers(1, 4096))
def test_the_nearest_batches_do_divide(batch: int, world: int) -> None:
    try:
        divides(batch, world)
        assert batch % world == 0
    except UsageError as error:
        near = [int(word) for word in str(error).rpartition("that do")[2].split() if word.isdigit()]
        assert near
        assert all(number > 0 and number % world == 0 and abs(number - batch) < world for number in near)


@pytest.mark.parametrize(
    "words",
    [
        ("train.py", "--batch", "65"),
        ("train.py", "--batch-size=65", "--epochs", "3"),
        ("train.py", "--total-batch-size", "65"),
        ("train.py", "model=yolo11n.pt", "batch=65"),
        ("pretrain.py", "--global-batch-size", "65"),
    ],
)
def test_a_scripts_own_batch_is_read(words: tuple[str, ...]) -> None:
    notes, (warning,) = batch_notes(words, 8)
    assert not notes
    assert "65 does not divide evenly among 8 ranks; the nearest batch sizes that do are 64 and 72" in warning
    assert batch_notes(tuple(word.replace("65", "64") for word in words), 8)[1] == []


def test_what_a_batch_comes_to_is_said() -> None:
    assert batch_notes(("t.py", "--batch", "64"), 8)[0] == ["--batch 64 over 8 ranks: 8 each"]
    for option in ("--per_device_train_batch_size", "--per-device-batch-size", "--micro-batch-size"):
        assert batch_notes(("t.py", option, "3"), 8) == ([f"{option} 3 on each of 8 ranks: a batch of 24"], [])


@pytest.mark.parametrize(
    "words", [("--batch", "auto"), ("--batch", "-1"), ("--batch",), ("batch", "65"), ("--batches", "65")]
)
def test_what_is_no_batch_is_left_alone(words: tuple[str, ...]) -> None:
    assert batch_notes(("t.py", *words), 8) == ([], [])
