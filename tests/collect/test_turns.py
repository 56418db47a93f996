"""Who goes first where runs want the same hosts: simulated hosts, many runs, one thread a run."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from nccl_doctor.collect import turns
from nccl_doctor.collect.turns import Refused, RunTurns, Ticket
from nccl_doctor.crew.answers import ConnectionLostError, Contract, HolderAnswer, TurnAnswer
from nccl_doctor.snapshot.network import PortTrial
from tests.collect.nodes import node
from tests.patience import LONG_S, joined


class Host:
    """A host that gives its turn to one run at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holder: dict[str, Any] | None = None


class Session:
    """As much of a session as turns need."""

    lost = None

    def __init__(self, name: str, host: Host) -> None:
        self.node, self._host, self._ticket = node(name=name), host, ""

    def ask(self, contract: Contract[Any], _deadline: float, **said: Any) -> TurnAnswer | None:
        with self._host.lock:
            if contract.name == "end_turn":
                if self._host.holder is not None and self._host.holder["run"] == self._ticket:
                    self._host.holder = None
                return None
            self._ticket = said["ticket"]["run"]
            if self._host.holder is None or self._host.holder["run"] == self._ticket:
                self._host.holder = said["ticket"]
                return TurnAnswer(holder=None, trial=said["port"] and PortTrial(port=said["port"], free=True))
            return TurnAnswer(holder=HolderAnswer(user="bob", held_s=3.0, **self._host.holder), trial=None)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PAUSE_S", (0.0, 0.002))


@pytest.mark.parametrize("seed", range(20))
def test_every_run_gets_all_its_hosts_and_never_shares_one(seed: int) -> None:
    draw = random.Random(seed)
    hosts = {f"node{number}": Host() for number in range(6)}
    running: dict[str, str] = {}
    faults: list[str] = []

    def work(number: int, names: list[str]) -> None:
        mine = RunTurns([Session(name, hosts[name]) for name in names], Ticket(began=draw.random()))  # type: ignore[misc]
        told = mine.take(time.monotonic() + LONG_S, {}, lambda _holder: None)
        if isinstance(told, Refused):
            faults.append(f"{number}: {told}")
        for name in names:
            if name in running:
                faults.append(f"{name} has {running[name]} and {number}")
            running[name] = str(number)
        time.sleep(draw.random() / 200)
        for name in names:
            del running[name]
        mine.leave()

    threads = [
        threading.Thread(target=work, args=(number, draw.sample([*hosts], draw.randint(1, 6)))) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread)
    assert not faults
    assert all(host.holder is None for host in hosts.values())


def test_who_does_not_get_it_in_time_says_why_and_holds_nothing() -> None:
    taken, free = Host(), Host()
    taken.holder = {"run": "b", "began": 1.0, "controller": "gpu02"}
    mine = RunTurns([Session("node1", free), Session("node2", taken)], Ticket(began=0.0))  # type: ignore[list-item]
    met: list[HolderAnswer] = []
    told = mine.take(time.monotonic() + 1, {}, met.append)
    assert isinstance(told, Refused)
    assert str(told) == "another check of bob from gpu02 has been testing node2 for 3 s"
    assert met
    assert free.holder is None


def test_the_new_trial_is_the_masters_alone() -> None:
    sessions = [Session(name, Host()) for name in ("node1", "node2")]
    told = RunTurns(sessions).take(time.monotonic(), {"node1": 29500}, lambda _holder: None)  # type: ignore[arg-type]
    assert told == PortTrial(port=29500, free=True)


def test_a_host_that_is_lost_is_judged_elsewhere() -> None:
    class Lost(Session):
        def ask(self, *_said: object, **_more: object) -> TurnAnswer | None:
            raise ConnectionLostError("the connection ended")

    sessions = [Session("node1", Host()), Lost("node2", Host())]
    assert RunTurns(sessions).take(time.monotonic(), {}, lambda _holder: None) is None  # type: ignore[arg-type]
