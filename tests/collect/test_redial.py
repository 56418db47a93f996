from __future__ import annotations

from typing import Any, cast

import pytest

from nccl_doctor.collect.mesh.dials import retry
from nccl_doctor.collect.mesh.plan import DialTarget
from nccl_doctor.crew.answers import DIAL, Dialled, Hello, ProbeError
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.model.report import MachineLoad
from tests.collect.nodes import node

LOST, REFUSED = [0, 29500, "timed-out", "ETIMEDOUT", 3.0], [1, 40000, "refused", "ECONNREFUSED", 0.001]
TARGETS = {
    name: [DialTarget("c", "10.0.0.3", (29500, 40000)), DialTarget("d", "10.0.0.4", (40000,))]
    for name in ("a", "b", "silent")
}


class Somebody:
    def __init__(self, name: str, rank: int, load: MachineLoad | None = None) -> None:
        self.node = node(name=name, rank=rank)
        self.hello = Hello(python="3.11.2", machine="x86_64", pid=7, load=load)


SESSIONS = cast("list[ProbeSession]", [Somebody("a", 0), Somebody("b", 1), Somebody("silent", 2)])


def told(connected: int, failed: list[list[Any]]) -> Dialled:
    return DIAL.answer.validate_python({"connected": connected, "failed": failed})


def redialled(failed: list[list[Any]], second: list[list[Any]], connected: int = 1000) -> tuple[list[Any], list[Any]]:
    asked: list[Any] = []

    def dial(session: ProbeSession, targets: list[DialTarget]) -> Dialled:
        asked.append((session.node.name, targets))
        return told(len(targets) - len(second), second)

    answers: list[Dialled | Exception] = [told(connected, failed), told(connected, []), ProbeError("gone")]
    return asked, retry(SESSIONS, TARGETS, answers, dial)


@pytest.mark.parametrize("lost", [LOST, [0, 29500, "reset", "ECONNRESET", 0.2]])
def test_a_lost_dial_is_tried_once_more_and_no_other(lost: list[Any]) -> None:
    asked, (first, second, silent) = redialled([lost, REFUSED], [])
    assert asked == [("a", [DialTarget("c", "10.0.0.3", (29500,))])]
    assert first == told(1001, [REFUSED])
    assert second == told(1000, [])
    assert isinstance(silent, ProbeError)


def test_what_fails_again_stays_as_it_was_seen_first() -> None:
    _, (first, *_) = redialled([LOST], [[0, 29500, "refused", "ECONNREFUSED", 0.001]])
    assert first == told(1000, [LOST])


@pytest.mark.parametrize("failed", [[], [REFUSED], [LOST] * 120])
def test_none_many_or_told_failures_cost_no_second_try(failed: list[list[Any]]) -> None:
    asked, (first, *_) = redialled(failed, [])
    assert (asked, first) == ([], told(1000, failed))


def test_in_a_small_mesh_a_pair_that_times_out_is_believed() -> None:
    asked, _ = redialled([LOST] * 4, [], connected=10)
    assert asked == []


BUSY = cast("list[ProbeSession]", [Somebody("a", 0, MachineLoad(queue=9.0, cpus=2))])


@pytest.mark.parametrize(("saved", "tries"), [([0, 5], 1), ([3, 2], 2), ([2, 0, 5], 2), ([1, 1, 1, 1, 5], 4)])
def test_what_a_busy_host_lost_is_tried_as_long_as_that_helps(saved: list[int], tries: int) -> None:
    """Most of its dials timed out; each try gets so many through."""
    rows = [[0, port, "timed-out", "ETIMEDOUT", 3.0] for port in range(29500, 29505)]
    targets = {"a": [DialTarget("c", "10.0.0.3", tuple(range(29500, 29505)))]}
    asked: list[int] = []

    def dial(_session: ProbeSession, wanted: list[DialTarget]) -> Dialled:
        asked.append(len(wanted))
        through = saved[len(asked) - 1]
        late = [[place, wanted[place].ports[0], "timed-out", "ETIMEDOUT", 3.0] for place in range(through, len(wanted))]
        return told(through, late)

    (answer,) = retry(BUSY, targets, [told(1, rows)], dial)
    assert len(asked) == tries
    assert isinstance(answer, Dialled)
    assert answer.connected == 1 + sum(saved[:tries])
    assert len(answer.failed) == 5 - sum(saved[:tries])


def test_a_host_without_files_dials_again_and_that_counts() -> None:
    full = [0, 29500, "failed", "EMFILE", 3.0]
    asked, (first, *_) = redialled([full, REFUSED], [[0, 29500, "refused", "ECONNREFUSED", 0.001]], connected=1)
    assert asked == [("a", [DialTarget("c", "10.0.0.3", (29500,))])]
    assert first == told(1, [REFUSED, [0, 29500, "refused", "ECONNREFUSED", 0.001]])
    _, (first, *_) = redialled([full, REFUSED], [], connected=1)
    assert first == told(2, [REFUSED])


def test_a_host_that_has_no_file_then_either_says_nothing_of_the_network() -> None:
    full = [0, 29500, "failed", "EMFILE", 3.0]
    _, (first, *_) = redialled([full, REFUSED], [full], connected=1)
    assert isinstance(first, ProbeError)
    assert str(first) == "it may open no more files, for 1 of them"
