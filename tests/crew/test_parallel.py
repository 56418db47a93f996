"""Who is accused, and who gets a second try: over a real probe on this machine, and hosts that say nothing."""

from __future__ import annotations

import math
import threading
import time
from typing import cast

import pytest

from nccl_doctor.collect.options import Progress, RunOptions
from nccl_doctor.collect.run import Run
from nccl_doctor.crew.answers import ConnectionLostError, NoAnswerError
from nccl_doctor.crew.parallel import HostReach, LoadWatch
from nccl_doctor.crew.session import PULSE_S, ProbeSession, heartbeat
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.report import Load, MachineLoad
from nccl_doctor.transport.process import LocalTransport, ProcessChannel
from nccl_doctor.transport.ssh import failures
from nccl_doctor.transport.ssh.failures import SshDestination
from tests.collect.nodes import node
from tests.patience import LONG_S


class Slow(LocalTransport):
    """Hosts that run out of time so many times before they answer."""

    def __init__(self, failing: dict[str, float]) -> None:
        self.tries: list[str] = []
        self._failing, self._lock = failing, threading.Lock()

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> ProcessChannel:
        with self._lock:
            self.tries.append(node.name)
            many = self.tries.count(node.name)
        if many <= self._failing.get(node.name, 0):
            raise failures.timed_out(SshDestination(node.name, node.address, 22, "root"), 10.0)
        return super().open(node, command, deadline, latest)


def reached(transport: Slow, count: int) -> tuple[HostReach, Load]:
    reach = HostReach(transport, LONG_S, time.monotonic() + 3 * LONG_S, lambda _: None)
    load = reach.all([node(name=f"node{rank}", rank=rank) for rank in range(count)])
    for session in reach.opened.values():
        session.close()
    return reach, load


def test_a_host_that_was_late_gets_a_second_try_and_only_then_is_accused() -> None:
    transport = Slow({"node1": 1, "node2": math.inf})
    reach, load = reached(transport, 3)
    assert list(reach.failures) == ["node2"]
    assert reach.failures["node2"].detail == "did not answer a TCP connection attempt within 10 s"
    assert sorted(transport.tries) == ["node0", "node1", "node1", "node2", "node2"]
    assert load.second_try == ("node1",)
    assert set(load.hosts) == {"node0", "node1"}
    assert load.controller.busy == any("busy" in line for line in reach.failures["node2"].evidence)


@pytest.mark.parametrize("lag_s", [0.0, 15.0])
def test_one_host_alone_is_asked_twice_only_where_this_machine_had_no_time(
    lag_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadWatch, "now", lambda _: MachineLoad(queue=0.0, cpus=2, lag_s=lag_s))
    reach, _ = reached(transport := Slow({"node0": 1}), 1)
    assert list(reach.failures) == ([] if lag_s else ["node0"])
    assert transport.tries == ["node0"] * (2 if lag_s else 1)


@pytest.mark.parametrize("stood_s", [1.0, 9.0])
def test_what_failed_while_this_machine_stood_still_counts_only_where_it_fails_again(
    stood_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a host may have hung up on us; of one that fails again, the second try's words are told."""

    class HungUp(LocalTransport):
        def __init__(self) -> None:
            self.tries: list[str] = []

        def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> ProcessChannel:
            self.tries.append(node.name)
            target, first = SshDestination(node.name, node.address, 22, "root"), self.tries.count(node.name) == 1
            if node.name == "node1" or first:
                raise failures.broken(target, "the SSH handshake" if first else "the login", "it closed the connection")
            return super().open(node, command, deadline, latest)

    monkeypatch.setattr(heartbeat, "longest_gap", lambda _: stood_s)
    transport = HungUp()
    reach = HostReach(transport, LONG_S, time.monotonic() + 3 * LONG_S, lambda _: None)
    load = reach.all([node(name=f"node{rank}", rank=rank) for rank in range(2)])
    for session in reach.opened.values():
        session.close()
    details = {name: failure.detail for name, failure in reach.failures.items()}
    if stood_s > 2 * PULSE_S:
        assert (details, load.second_try) == ({"node1": "answered but the login failed"}, ("node0",))
        assert sorted(transport.tries) == ["node0", "node0", "node1", "node1"]
    else:
        assert details == dict.fromkeys(("node0", "node1"), "answered but the SSH handshake failed")
        assert load.second_try == ()


@pytest.mark.parametrize(
    ("queue", "usual_s", "share"),
    [
        (1.0, 0.1, 0.35),  # others answer at once
        (1.0, 1.0, 1.0),  # no longer than the first try's 2 s, where nothing here slowed it down
        (40.0, 0.1, 0.35),
        (40.0, 1.5, 3.0),  # 6 s, four times what the others took on this busy machine
        (6.0, 5.0, 3.0),
        (1.0, 0.0, 0.35),  # nobody answered
        (5.0, 0.0, 2.5),
        (40.0, 0.0, 4.0),
    ],
)
def test_who_was_late_on_a_busy_machine_has_as_long_as_that_explains(
    queue: float, usual_s: float, share: float
) -> None:
    reach = HostReach(LocalTransport(), 2.0, math.inf, lambda _: None)
    assert reach._quiet_share(usual_s, MachineLoad(queue=queue, cpus=2)) == pytest.approx(share)


def test_what_busy_means() -> None:
    assert MachineLoad(queue=4.0, cpus=2).busy
    assert MachineLoad(queue=0.0, cpus=2, lag_s=0.6).busy
    assert not MachineLoad(queue=3.9, cpus=2, lag_s=0.4).busy


def test_hosts_are_asked_as_soon_as_they_are_there_and_late_ones_again_at_the_end() -> None:
    """The last host lets us in only when the first has been asked; the one that is late answers when all are through."""
    asked: list[tuple[str, float]] = []
    first = threading.Event()

    class Last(LocalTransport):
        def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> ProcessChannel:
            assert node.name != "node2" or first.wait(LONG_S)
            return super().open(node, command, deadline, latest)

    def look(session: ProbeSession, share: float) -> None:
        asked.append((session.node.name, share))
        first.set()
        if session.node.name == "node1":
            raise NoAnswerError("no answer in time")
        if session.node.name == "node0" and len(asked) > 3:
            raise ConnectionLostError("nobody asked twice")

    until = time.monotonic() + 3 * LONG_S
    reach = HostReach(Last(), LONG_S, until, lambda _: None, look=look, on_looked=lambda _: None)
    load = reach.all([node(name=f"node{rank}", rank=rank) for rank in range(3)])
    for session in reach.opened.values():
        session.close()
    assert sorted(name for name, _ in asked) == ["node0", "node1", "node1", "node2"]
    assert asked[-1][0] == "node1"
    assert asked[-1][1] <= asked[0][1] == 1.0
    assert list(reach.unanswered) == ["node1"]
    assert (load.second_try, reach.failures) == ((), {})


def test_the_users_own_configuration_says_how_long_a_host_has_unless_an_option_does() -> None:
    given: list[int] = []

    class Configured(LocalTransport):
        def connect_timeout(self, node: Node) -> float | None:
            return 60.0 if node.name == "node1" else None

        def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> ProcessChannel:
            given.append(round(deadline - time.monotonic()))
            return super().open(node, f"exit 1 # {command}", deadline, latest)

    for connect_s, wanted in ((None, [10, 60]), (5.0, [5, 5])):
        given.clear()
        reach = HostReach(Configured(), connect_s, time.monotonic() + 3 * LONG_S, lambda _: None)
        reach.all([node(name=f"node{rank}", rank=rank) for rank in (1, 2)])
        assert sorted(given[:2]) == wanted


def test_nobody_is_said_to_be_asked_where_the_last_host_has_failed() -> None:
    phases: list[list[str]] = []

    class Follower:
        def phase(self, _name: str, hosts: list[str], _limit_s: float | None = None) -> None:
            phases.append(hosts)

        def done(self, _host: str) -> None:
            pass

    cluster = Cluster(nodes=(node(),), master_addr="127.0.0.1", master_port=29500)
    Run(cluster, LocalTransport(), RunOptions(), cast("Progress", Follower()))._connected("here")
    assert phases == []
