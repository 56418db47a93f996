"""Dumps of torch's flight recorder: read safely, compared, and told beside the text."""

from __future__ import annotations

import json
import os
import pickle
from typing import Any

import pytest

from nccl_doctor.logs import flight
from nccl_doctor.logs.diagnose import Source, diagnose


def entry(seq: int, name: str = "nccl:all_reduce", state: str = "completed", sizes: Any = ((8,),)) -> dict[str, Any]:
    return {
        "collective_seq_id": seq,
        "process_group": ("0", "default_pg"),
        "profiling_name": name,
        "state": state,
        "input_sizes": sizes,
        "is_p2p": False,
    }


def dump(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"version": "2.4", "pg_config": {}, "entries": list(entries)}


def names(*dumps: bytes) -> list[str]:
    verdict = diagnose([Source(f"nccl_trace_rank_{rank}", [data]) for rank, data in enumerate(dumps)])
    return [cause.name for cause in verdict.causes]


@pytest.mark.parametrize("store", [pickle.dumps, lambda tree: json.dumps(tree).encode()])
def test_a_rank_that_is_behind(store: Any) -> None:
    ahead = store(dump(entry(1), entry(2), entry(3, state="started")))
    behind = store(dump(entry(1), entry(2)))
    verdict = diagnose([Source("d/nccl_trace_rank_0", [ahead]), Source("d/nccl_trace_rank_7", [behind])])
    (cause,) = verdict.causes
    assert cause.name == "collective-timeout"
    assert (cause.events[0].rank, cause.events[0].file) == (7, "d/nccl_trace_rank_7")
    assert "never came to number 3" in cause.events[0].text


def test_ranks_that_differ() -> None:
    left = pickle.dumps(dump(entry(1), entry(2, "nccl:all_reduce", "started")))
    right = pickle.dumps(dump(entry(1), entry(2, "nccl:broadcast", "started")))
    assert names(left, right) == ["collective-mismatch"]
    other = pickle.dumps(dump(entry(1), entry(2, "nccl:all_reduce", "started", ((9,),))))
    assert names(left, other) == ["collective-mismatch"]


def test_all_ended() -> None:
    whole = pickle.dumps(dump(entry(1), entry(2)))
    assert names(whole, whole) == []


class _Bomb:
    def __reduce__(self) -> Any:
        return os.abort, ()


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(_Bomb()),
        pickle.dumps({"entries": [_Bomb()]}),
        pickle.dumps([1]),
        b"\x80\x04garbage",
        b'{"entries": 3, "pg_config": 1}',
        b'{"entries": [{"collective_seq_id": "x"}], "pg_config": 1}',
    ],
)
def test_nothing_is_executed_and_nothing_raises(data: bytes) -> None:
    found = flight.read("nccl_trace_rank_3", data)
    assert found is None or found.records == ()
    assert names(data) == []
