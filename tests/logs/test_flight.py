"""Dumps of torch's flight recorder: read safely, compared, and told beside the text."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from typing import Any

import pytest

from nccl_doctor.logs import flight
from nccl_doctor.logs.diagnose import LogSource, diagnose


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
    verdict = diagnose([LogSource(f"nccl_trace_rank_{rank}", [data]) for rank, data in enumerate(dumps)])
    return [cause.name for cause in verdict.causes]


@pytest.mark.parametrize("store", [pickle.dumps, lambda tree: json.dumps(tree).encode()])
def test_a_rank_that_is_behind(store: Any) -> None:
    ahead = store(dump(entry(1), entry(2), entry(3, state="started")))
    behind = store(dump(entry(1), entry(2)))
    verdict = diagnose([LogSource("d/nccl_trace_rank_0", [ahead]), LogSource("d/nccl_trace_rank_7", [behind])])
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
        b'{"entries": [{"pg_id": 1}]}\n' * 50_000,
        b'{"pg_config": 1, "entries": [{"collective_seq_id": ' + b"9" * 5000 + b"}]}",
    ],
)
def test_nothing_is_executed_and_nothing_raises(data: bytes) -> None:
    found = flight.read("nccl_trace_rank_3", data)
    assert found is None or found.records == ()
    assert names(data) == []


def test_a_pickle_that_asks_for_memory_is_refused() -> None:
    bomb = b"\x80\x02}r\xff\xff\xff\x03."
    tracemalloc.start()
    try:
        assert flight.read("nccl_trace_rank_3", bomb) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def gloo(seq: int, *, retired: bool = True, frames: Any = (), **more: Any) -> dict[str, Any]:
    """As gloo's ranks write it: scheduled for ever."""
    return entry(seq, "gloo:all_reduce", "scheduled") | {"retired": retired, "frames": frames} | more


def test_gloo_leaves_all_scheduled() -> None:
    stack = [
        {"name": "all_reduce", "filename": "/v/torch/distributed/distributed_c10d.py", "line": 3245},
        {"name": "step", "filename": "/home/u/train.py", "line": 19},
    ]
    waiting = pickle.dumps(dump(gloo(1), gloo(2, retired=False, frames=stack)))
    behind = pickle.dumps(dump(gloo(1)))
    (cause,) = diagnose([LogSource(f"trace_rank_{rank}", [data]) for rank, data in enumerate((waiting, behind))]).causes
    assert [(event.rank, event.text) for event in cause.events] == [
        (1, "rank 1: never came to number 2 of group 0; its last was all_reduce [[8]] number 1 of group 0"),
        (0, "rank 0: waits in all_reduce [[8]] number 2 of group 0 at train.py:19"),
    ]
    assert names(behind, behind) == []


def test_what_pg_status_counts_as_completed_has_ended() -> None:
    tree = dump(gloo(1, retired=False)) | {"pg_status": {"0": {"last_completed_collective": "1"}}}
    assert names(json.dumps(tree).encode()) == []


def test_a_dump_that_is_missing() -> None:
    tree = dump(gloo(1, retired=False)) | {"pg_config": {"": {"ranks": "[0, 1, 2]"}}}
    (cause,) = diagnose([LogSource(f"trace_rank_{rank}", [pickle.dumps(tree)]) for rank in (0, 2)]).causes
    assert (cause.events[0].rank, cause.events[0].message) == (
        1,
        "gave no dump, while others wait in number 1 of group 0",
    )


def test_a_rank_that_is_about_to_leave_where_others_have_been_hides_no_group_of_others() -> None:
    """gloo tells that a call has ended a moment after it has: rank 0's second, which rank 2 has left, is no cause."""
    own: Any = {"process_group": ["1", "undefined"]}
    dumps = [
        dump(gloo(1), gloo(2, retired=False)),
        dump(gloo(1), gloo(2), gloo(1, **own), gloo(2, retired=False, **own)),
        dump(gloo(1), gloo(2), gloo(1, **own)),
    ]
    found = flight.compare(filter(None, (flight.read(f"trace_rank_{n}", pickle.dumps(d)) for n, d in enumerate(dumps))))
    assert found
    assert (found.group, found.seq, [*found.behind]) == ("1", 2, [2])
    alone = flight.compare(filter(None, (flight.read(f"trace_rank_{n}", pickle.dumps(dumps[n])) for n in (0, 2))))
    assert alone
    assert (alone.group, alone.seq, sorted(alone.did)) == ("0", 2, [0, 2])


def test_another_type() -> None:
    left, right = (pickle.dumps(dump(gloo(1, retired=False, input_dtypes=[kind]))) for kind in ("Float", "Double"))
    assert names(left, right) == ["collective-mismatch"]
