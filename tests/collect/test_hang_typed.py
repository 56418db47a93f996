"""What a host answers of its ranks: typed, or unknown of that rank alone."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.collect.hang.probe_answers import LOOK, RANKS, host_look, job_ranks, recorded
from nccl_doctor.logs import flight
from nccl_doctor.model.base import Unknown
from nccl_doctor.snapshot.hang import JobRanks, RankState, Recorded
from tests.hang.made_up import Job, call

ENTRY = {
    "collective_seq_id": 17,
    "input_sizes": [[4]],
    "input_dtypes": ["Float"],
    "pg_id": 0,
    "process_group": ["0", "default_pg"],
    "profiling_name": "gloo:all_reduce",
    "retired": False,
    "state": "scheduled",
}
STATUS = {"0": {"last_enqueued_collective": "17", "last_completed_collective": "16", "last_started_collective": "-1"}}
LIVE = {"version": "2.10", "pg_status": STATUS, "entries": [{**ENTRY, "collective_seq_id": 16}, ENTRY]}


def answer() -> dict[str, Any]:
    """A look at node2 as its probe says it."""
    told = Job().recorded(3, call("0", 1)).snapshot.hosts[1].looks[0].model_dump(mode="json", by_alias=True)
    flows = {str(row["pid"]): row.pop("flows") for row in told["ranks"]}
    for row in told["ranks"]:
        row["recorder"] = {"live": LIVE}
    return {**told, "flows": flows}


def job() -> JobRanks:
    found = Job().snapshot.hosts[1].job
    assert found is not None
    return found


def test_a_look() -> None:
    look = host_look(LOOK.answer.validate_python(answer()), job(), flight.read)
    assert [rank.pid for rank in look.ranks] == [1002, 1003]
    told = look.ranks[0].recorder
    assert isinstance(told, Recorded)
    assert (told.issued, told.ended, [one.done for one in told.calls]) == ({"0": 17}, {"0": 16}, [True, False])
    assert (told.calls[1].name, told.calls[1].sizes, told.calls[1].group) == ("all_reduce", "[[4]]", "0")


def test_a_dump_that_was_there() -> None:
    data = base64.b64encode(json.dumps(LIVE).encode()).decode()
    told = recorded({"dump": {"name": "nccl_trace_rank_3", "age_s": 4.5, "data": data}}, 3, flight.read)
    assert isinstance(told, Recorded)
    assert (told.live, told.age_s, told.issued) == (False, 4.5, {"0": 17})


@pytest.mark.parametrize(
    "told",
    [
        {"$unknown": "gave no answer", "traceback": None},
        {"live": {}},
        {"live": {"entries": [], "pg_status": {"0": {"last_enqueued_collective": "x"}}}},
        {"dump": {"name": "x", "age_s": -1, "data": "!"}},
        {"dump": {}},
        [],
        7,
    ],
)
def test_a_recorder_that_is_none(told: Any) -> None:
    assert isinstance(recorded(told, 3, flight.read), Unknown)


@pytest.mark.parametrize("field", ["state", "stack", "recorder"])
@given(
    value=st.one_of(
        st.integers(), st.text(), st.lists(st.integers(), min_size=1), st.dictionaries(st.text(), st.integers())
    )
)
def test_one_malformed_part_leaves_the_others(field: str, value: Any) -> None:
    told = answer()
    told["ranks"][1][field] = value
    look = host_look(LOOK.answer.validate_python(told), job(), flight.read)
    assert isinstance(getattr(look.ranks[1], field), Unknown)
    assert isinstance(look.ranks[0].state, RankState)


def test_ranks_that_were_not_asked_for_are_not_taken() -> None:
    told = answer()
    told["ranks"][1]["pid"] = 4711
    assert [rank.pid for rank in host_look(LOOK.answer.validate_python(told), job(), flight.read).ranks] == [1002]


@pytest.mark.parametrize(
    "odd",
    [
        {"master_addr": "$(x)"},
        {"master_addr": ""},
        {"master_addr": "10.0.0.1 10.0.0.2 "},
        {"master_port": 70000},
        {"world_size": 10**9},
        {"told": {"NCCL_RAS_ADDR": 7}},
        {"pid": None},
    ],
)
def test_a_process_of_anybody_s_hides_no_rank_of_its_host(odd: dict[str, Any]) -> None:
    told = job().model_dump(mode="json", by_alias=True)
    told["ranks"] = [{**told["ranks"][0], "pid": 7, **odd}, *told["ranks"]]
    found = job_ranks(RANKS.answer.validate_python(told))
    assert found.ranks == job().ranks
    assert found.misfits["ranks"].startswith(f"1 of {len(job().ranks) + 1} left out: 0.{next(iter(odd))}")
