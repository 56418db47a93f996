"""torch's watchdog: each process group counts its collectives by itself, and knows the rank within the group only."""

from __future__ import annotations

import pytest

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.signs import Case, signs

TIMED_OUT = (
    "[rank{0}]:[E626 05:06:30.929006625 ProcessGroupNCCL.cpp:632] [Rank {in_group}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600012 milliseconds "
    "before timing out."
)
DETECTED = (
    "[rank{0}]:[E626 05:06:30.929106625 ProcessGroupNCCL.cpp:2271] [PG ID 1 PG GUID {group} Rank {in_group}] failure "
    "detected by watchdog at work sequence id: {seq} PG status: last enqueued work: 999, last completed work: {ended}"
)


def lines(rank: int, seq: int, op: str, group: str, *, in_group: int | None = None, ended: int = 5) -> list[str]:
    told = {"seq": seq, "op": op, "group": group, "in_group": rank if in_group is None else in_group, "ended": ended}
    return [one.format(rank, **told) for one in (TIMED_OUT, DETECTED)]


def verdict(*parts: list[str]) -> tuple[str, str]:
    """Return the diagnosis and the message; the ranks' lines of the timeout come first."""
    ordered = [part[at] for at in range(max(map(len, parts))) for part in parts if at < len(part)]
    found = diagnose([LogSource("run.log", ["\n".join([*ordered, ""]).encode()])])
    (cause,) = found.causes
    return cause.name, signs()[cause.name].advice(Case(cause, found.log)).message


def test_groups_that_do_different_things_are_no_mismatch() -> None:
    tensor = [lines(rank, 120, "ALLREDUCE", "5") for rank in (0, 1)]
    data = [lines(rank, 120, "_REDUCE_SCATTER_BASE", "2(mesh_dp)", in_group=rank - 6) for rank in (6, 7)]
    name, message = verdict(*tensor, *data)
    assert name == "collective-timeout"
    assert "ranks 6-7 in _REDUCE_SCATTER_BASE number 120 of process group 2(mesh_dp)" in message
    assert "ranks 0-1 in ALLREDUCE number 120 of process group 5" in message
    assert message.endswith("whose numbers can't be compared.")


def test_newer_torch_names_the_group_in_the_line_of_the_timeout() -> None:
    new = TIMED_OUT.replace("[Rank {in_group}]", "[PG GUID {group} Rank {in_group}]")
    told = [
        [new.format(rank, seq=9, op=op, group=group, in_group=1)]
        for rank, op, group in ((1, "GATHER", "infer_(3,0)"), (5, "BROADCAST", "infer_(3,1)"))
    ]
    name, message = verdict(*told)
    assert (name, "rank 5 in BROADCAST number 9 of process group infer_(3,1)" in message) == (
        "collective-timeout",
        True,
    )
    name, _ = verdict(*([one[0].replace("(3,1)", "(3,0)")] for one in told))
    assert name == "collective-mismatch"


def test_within_a_group_they_are() -> None:
    name, message = verdict(lines(0, 120, "ALLREDUCE", "5"), lines(6, 120, "BROADCAST", "5", in_group=1))
    assert name == "collective-mismatch"
    assert message.endswith("rank 0 ALLREDUCE number 120; rank 6 BROADCAST number 120.")


def test_a_log_that_names_no_group_leaves_a_doubt() -> None:
    name, message = verdict(lines(0, 120, "ALLREDUCE", "")[:1], lines(6, 120, "BROADCAST", "")[:1])
    assert name == "collective-mismatch"
    assert "(unless they are in different process groups, which this log does not name)" in message
    _, message = verdict(lines(0, 120, "ALLREDUCE", "")[:1], lines(6, 119, "ALLREDUCE", "")[:1])
    assert message.endswith("are behind, if all are in one process group: look there first.")


def test_a_smaller_number_of_another_group_is_not_behind() -> None:
    _, message = verdict(lines(0, 120, "ALLREDUCE", "1"), lines(1, 98, "ALLREDUCE", "2"))
    assert "behind" not in message
    _, message = verdict(lines(0, 120, "ALLREDUCE", "1"), lines(1, 98, "ALLREDUCE", "1"))
    assert message.endswith(
        "rank 1 in ALLREDUCE number 98; rank 0 in ALLREDUCE number 120. The ranks with the smallest "
        "number are behind: look there first."
    )


@pytest.mark.parametrize(("seq", "op"), [(121, "ALLREDUCE"), (120, "BROADCAST")])
def test_a_rank_at_two_places_is_in_two_groups(seq: int, op: str) -> None:
    """Old versions of torch name no group."""
    first, second = lines(0, 120, "ALLREDUCE", ""), lines(0, seq, op, "")
    name, message = verdict(first[:1], second[:1], lines(1, 120, "BROADCAST", "")[:1])
    assert name == "collective-timeout"
    assert "can't be compared" in message


def test_ranks_within_two_groups_are_not_one() -> None:
    first = [one.removeprefix("[rank0]:") for one in lines(0, 120, "ALLREDUCE", "5")]
    second = [one.removeprefix("[rank0]:") for one in lines(0, 120, "BROADCAST", "2")]
    name, message = verdict(first, second)
    assert (name, message.endswith("whose numbers can't be compared.")) == ("collective-timeout", True)


def test_a_rank_of_a_known_group_waits_in_the_first_of_several() -> None:
    _, message = verdict(
        lines(0, 120, "ALLREDUCE", "0"), lines(0, 121, "ALLREDUCE", "0"), lines(1, 122, "ALLREDUCE", "0")
    )
    assert "rank 0 in ALLREDUCE number 120; rank 1 in ALLREDUCE number 122. The ranks with the smallest" in message


def test_the_only_group_that_is_named_is_that_of_all() -> None:
    name, _ = verdict(lines(0, 120, "ALLREDUCE", "0(default_pg)"), lines(1, 120, "BROADCAST", "")[:1])
    assert name == "collective-mismatch"


def test_a_group_whose_first_collective_fails_late_is_no_start_that_failed() -> None:
    late = lines(0, 1, "ALLREDUCE", "7", ended=-1)
    found = diagnose([LogSource("run.log", ["\n".join([*late, *lines(1, 4242, "ALLREDUCE", "0"), ""]).encode()])])
    (cause,) = found.causes
    assert "never came together" not in signs()[cause.name].advice(Case(cause, found.log)).fix.summary
