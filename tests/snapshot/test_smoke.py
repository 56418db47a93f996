"""What an all-reduce of a snapshot may say of its ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from nccl_doctor.snapshot.smoke import Smoke
from tests.checks import snapshots

CASE = Path(snapshots.__file__).parent / "allreduce" / "allreduce_wrong_result" / "fires-alone.json"


def test_a_wrong_sum_is_of_ranks_that_there_are() -> None:
    smoke = snapshots.load(CASE).smoke
    assert isinstance(smoke, Smoke)
    seen = smoke.model_dump(mode="json", by_alias=True)
    assert Smoke.model_validate(seen) == smoke
    for groups in ([[2147483648]], [[0, len(smoke.ranks)]]):
        with pytest.raises(ValidationError, match="ranks that are none of its own"):
            Smoke.model_validate({**seen, "wrong_groups": groups})
