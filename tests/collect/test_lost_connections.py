"""Many dials to one port at once: which pairs are tried, and what their answers mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from nccl_doctor.collect.mesh.lost_connections import DIALS, MANY_DIALS, ConnectionTrials
from nccl_doctor.collect.mesh.plan import DialTarget
from nccl_doctor.crew.answers import DIAL, Dialled, Hello, ProbeError
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.snapshot.mesh import LostConnections
from tests.collect.nodes import node

PORTS = (40000, 40001, 40002)
MASTER = ("a", 29500)
DIAL_S = 3.0
LATE = ["timed-out", "ETIMEDOUT", 3.0]


class Somebody:
    def __init__(self, name: str, rank: int) -> None:
        self.node = node(name=name, rank=rank)
        self.hello = Hello(python="3.11.2", machine="x86_64", pid=7, load=None)


def told(connected: int, failed: list[list[Any]], trips: list[list[Any]] | None = None) -> Dialled:
    return DIAL.answer.validate_python({"connected": connected, "failed": failed, "trips": trips or []})


Loss = Callable[[str, str], tuple[int, int]]


class Mesh:
    """A mesh of hosts, with the losses of each path: connections without an answer, and with a late one."""

    def __init__(self, names: str, loss: Loss) -> None:
        self.sessions = [Somebody(name, rank) for rank, name in enumerate(names)]
        self.targets = {
            name: [
                DialTarget(other, f"10.0.0.{rank}", self.ports(other))
                for rank, other in enumerate(names)
                if other != name
            ]
            for name in names
        }
        self.loss = loss
        self.tried: list[tuple[str, str, int]] = []
        self.outcome: list[Any] = LATE
        self.count = DIALS if len(names) <= 16 else MANY_DIALS
        self.closed = 0

    @staticmethod
    def ports(name: str) -> tuple[int, ...]:
        return (29500, *PORTS) if name == "a" else PORTS

    def dial(self, session: ProbeSession, targets: list[DialTarget], seconds: float) -> Dialled:
        assert seconds <= DIAL_S
        src = session.node.name
        assert all(len(target.ports) == 1 for target in targets)
        if len(targets) % self.count:  # late dials are repeated
            vain = [[at, to.ports[0], *LATE] for at, to in enumerate(targets) if to.ports[0] == self.closed]
            return told(len(targets) - len(vain), vain)
        self.tried += [(src, targets[at].dst, targets[at].ports[0]) for at in range(0, len(targets), self.count)]
        failed, trips = [], []
        for at, target in enumerate(targets):
            lost, late = self.loss(src, target.dst)
            if at % self.count < lost:
                failed.append([at, target.ports[0], *self.outcome])
            else:
                trips.append([at, 90, int(at % self.count < lost + late)])
        return told(len(targets) - len(failed), failed, trips)

    def answers(self, failed: dict[str, list[list[Any]]]) -> list[Dialled | Exception]:
        whole = {name: sum(len(to.ports) for to in targets) for name, targets in self.targets.items()}
        return [told(whole[name] - len(failed.get(name, [])), failed.get(name, [])) for name in self.targets]

    def run(
        self, first: dict[str, list[list[Any]]], then: dict[str, list[list[Any]]] | None = None
    ) -> tuple[list[Dialled | Exception], tuple[LostConnections, ...]]:
        sessions = cast("list[ProbeSession]", self.sessions)
        before, after = self.answers(first), self.answers(first if then is None else then)
        return ConnectionTrials(sessions, self.targets, before, after, self.dial, DIAL_S, MASTER).run()


def sound(_src: str, _dst: str) -> tuple[int, int]:
    return 0, 0


def test_each_host_of_a_small_mesh_tries_the_next_one_and_nothing_is_lost() -> None:
    mesh = Mesh("abc", sound)
    answers, losses = mesh.run({})
    assert sorted(mesh.tried) == [("a", "b", 40002), ("b", "c", 40002), ("c", "a", 40002)]
    assert answers == mesh.answers({})
    assert losses == ()


def test_each_host_of_a_large_mesh_does_so_too() -> None:
    """Met by chance, a path that loses one connection of sixteen would need ten dials of each pair."""
    names = "abcdefghijklmnopq"
    mesh = Mesh(names, lambda _src, dst: (2, 0) if dst == "k" else (0, 0))
    losses = mesh.run({})[1]
    assert {(src, dst) for src, dst, _ in mesh.tried} >= set(zip(names, names[1:] + names[0], strict=True))
    assert {one.dst for one in losses} == {"k"}
    assert len(losses) == 5  # of its neighbour, and of four others


def test_a_single_lost_connection_is_tried_once_more() -> None:
    mesh = Mesh("ab", lambda src, _dst: (1, 0) if src == "a" else (0, 0))
    (loss,) = mesh.run({})[1]
    assert (loss.src, loss.tried, loss.lost, loss.by_port) == ("a", 2 * DIALS, 2, True)
    assert [src for src, *_ in mesh.tried] == ["a", "b", "a"] or [src for src, *_ in mesh.tried] == ["a", "a", "b"]


@pytest.mark.parametrize(("lost", "is_lossy"), [(DIALS // 2, True), (DIALS, False)])
def test_between_two_hosts_a_path_that_lost_every_dial_may_lose_half(lost: int, *, is_lossy: bool) -> None:
    mesh = Mesh("ab", lambda src, _dst: (lost, 0) if src == "a" else (0, 0))
    failed = {"a": [[0, port, *LATE] for port in PORTS]}
    answers, losses = mesh.run(failed)
    assert [(one.src, one.lost) for one in losses] == [("a", lost)] * is_lossy
    assert answers == mesh.answers(failed)


def test_both_ends_of_a_path_that_loses_connections_are_tried_with_others() -> None:
    mesh = Mesh("abcd", lambda _src, dst: (4, 0) if dst == "d" else (0, 0))
    answers, losses = mesh.run({})
    assert {(one.src, one.dst) for one in losses} == {("a", "d"), ("b", "d"), ("c", "d")}
    assert all(one.by_port and (one.tried, one.lost, one.resent) == (DIALS, 4, 0) for one in losses)
    for answer in answers[:3]:  # one failed dial for each such path
        assert isinstance(answer, Dialled)
        (row,) = answer.failed
        assert (row.outcome, row.port) == ("timed-out", 40002)
    assert answers[3] == mesh.answers({})[3]


def test_a_dial_that_succeeds_when_repeated_makes_a_pair_doubtful() -> None:
    mesh = Mesh("abcdefghijklmnopq", lambda src, dst: (3, 0) if (src, dst) == ("c", "b") else (0, 0))
    answers, losses = mesh.run({"c": [[1, 40001, *LATE]]}, {})
    assert mesh.tried[0] == ("c", "b", 40001)
    assert [(one.src, one.dst, one.port, one.lost) for one in losses] == [("c", "b", 40001, 3)]
    third = answers[2]
    assert isinstance(third, Dialled)
    assert [row.port for row in third.failed] == [40001]


def test_a_pair_that_lost_all_its_dials_is_tried_beside_one_that_lost_some() -> None:
    mesh = Mesh("abc", lambda _src, dst: (8, 0) if dst == "c" else (0, 0))
    failed = {"a": [[1, port, *LATE] for port in PORTS], "b": [[1, 40001, *LATE]]}
    _, losses = mesh.run(failed)
    assert {(one.src, one.dst) for one in losses} == {("a", "c"), ("b", "c")}


def test_doubtful_pairs_come_first_and_a_listener_is_not_overrun() -> None:
    mesh = Mesh("abcdefgh", sound)
    late = {name: [[list("abcdefgh".replace(name, "")).index("b"), 40001, *LATE]] for name in "acdefgh"}
    mesh.run(late, {})
    at_b = [(src, port) for src, dst, port in mesh.tried if dst == "b"]
    assert sorted(at_b) == [(name, 40001) for name in "acde"]


def test_a_pair_without_any_answer_but_the_masters_port_stays_as_it_was() -> None:
    failed = {"b": [[0, port, *LATE] for port in PORTS]}  # a firewall that opens only the master's port
    mesh = Mesh("ab", lambda src, _dst: (DIALS, 0) if src == "b" else (0, 0))
    answers, losses = mesh.run(failed)
    assert mesh.tried == [("a", "b", 40002), ("b", "a", 40002)]  # once more: it might lose half
    assert answers == mesh.answers(failed)
    assert losses == ()


def test_a_closed_port_beside_open_ones_loses_every_connection_and_stays_as_it_was() -> None:
    mesh = Mesh("ab", lambda src, _dst: (DIALS, 0) if src == "b" else (0, 0))
    failed = {"b": [[0, 40001, *LATE]]}
    answers, losses = mesh.run(failed)
    assert ("b", "a", 40001) in mesh.tried
    assert answers == mesh.answers(failed)
    assert losses == ()


@pytest.mark.parametrize(
    ("lost", "late", "is_reported", "by_port"),
    [
        (0, 3, False, False),
        (1, 2, False, False),
        (2, 0, True, True),
        (2, 3, True, False),
        (0, 4, True, False),
        (6, 12, True, False),
    ],
)
def test_losses_at_random_are_no_failed_dials(lost: int, late: int, *, is_reported: bool, by_port: bool) -> None:
    mesh = Mesh("ab", lambda src, _dst: (lost, late) if src == "a" else (0, 0))
    answers, losses = mesh.run({})
    assert [one.by_port for one in losses] == [by_port] * is_reported
    assert (answers == mesh.answers({})) is not by_port


@pytest.mark.parametrize("outcome", [["timed-out", "SILENT", 6.0], ["intercepted", None, 3.2]])
def test_a_program_that_is_late_lost_nothing(outcome: list[Any]) -> None:
    mesh = Mesh("ab", lambda *_: (5, 0))
    mesh.outcome = outcome
    assert mesh.run({})[1] == ()


def test_late_dials_of_a_path_that_loses_packets_are_no_failed_ones() -> None:
    """Without the last packet of the handshake, a dial looks as if a proxy had accepted it."""
    mesh = Mesh("ab", lambda src, _dst: (2, 20) if src == "a" else (0, 0))
    answers, losses = mesh.run({"a": [[0, 40000, *LATE], [0, 40001, "intercepted", None, 3.2]]})
    assert len(losses) == 1
    assert answers == mesh.answers({})


def test_a_closed_port_stays_closed_on_a_path_that_loses_packets() -> None:
    """The master's port may be closed while others answer late; only what answers is taken back."""
    mesh = Mesh("ab", lambda src, _dst: (2, 20) if src == "b" else (0, 0))
    mesh.closed = 29500
    answers, losses = mesh.run({"b": [[0, 29500, *LATE], [0, 40001, *LATE]]})
    assert [one.by_port for one in losses] == [False]
    assert answers == mesh.answers({"b": [[0, 29500, *LATE]]})


def test_refused_connections_are_no_loss() -> None:
    mesh = Mesh("ab", lambda *_: (5, 0))
    mesh.outcome = ["refused", "ECONNREFUSED", 0.001]
    assert mesh.run({})[1] == ()


def test_a_host_that_answers_no_more_is_passed_over() -> None:
    mesh = Mesh("abc", lambda _src, dst: (4, 0) if dst == "b" else (0, 0))
    answers: list[Dialled | Exception] = [*mesh.answers({})[:1], ProbeError("gone"), *mesh.answers({})[2:]]
    sessions = cast("list[ProbeSession]", mesh.sessions)

    def dial(session: ProbeSession, targets: list[DialTarget], seconds: float) -> Dialled:
        if session.node.name == "c":
            raise ProbeError("gone")
        assert session.node.name != "b"
        return mesh.dial(session, targets, seconds)

    after, losses = ConnectionTrials(sessions, mesh.targets, answers, answers, dial, DIAL_S, MASTER).run()
    assert [(one.src, one.dst) for one in losses] == [("a", "b")]
    assert isinstance(after[1], ProbeError)
