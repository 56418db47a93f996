"""What fix-port does, on machines that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.act.ports import fix_port
from nccl_doctor.act.ports.fleet import LocalMachine
from nccl_doctor.errors import DoctorError, NotReachedError
from nccl_doctor.model.ports import HolderJob, PortReport
from tests.act.machines import Answer, FakeMachine, holder_job, trial


def free_but(*taken: int) -> Answer:
    return lambda arguments: {"free": [port for port in arguments["ports"] if port not in taken]}


def test_the_next_port_is_free_on_all_of_five_hosts_of_which_three_hold_candidates() -> None:
    machines = [
        FakeMachine(f"node{n}", free=free_but(*taken)) for n, taken in enumerate([[29501], [29502], [29504], [], []])
    ]
    assert fix_port.next_port(machines, 29500) == 29503


def test_well_known_ports_are_passed_over_and_the_end_goes_on_at_1024() -> None:
    assert fix_port.next_port([FakeMachine(free=free_but())], 29399) == 29401
    assert fix_port.next_port([FakeMachine(free=free_but())], 65535) == 1024
    assert fix_port.next_port([FakeMachine(free=free_but())], 22) == 1024


def test_no_port_is_none_and_none_is_asked_twice() -> None:
    machine = FakeMachine(free=lambda _: {"free": []})
    assert fix_port.next_port([machine], 29500) is None
    ports = [port for call in machine.asked for port in call["ports"]]
    assert len(ports) == len(set(ports)) > 64000
    assert 29500 not in ports


def test_a_host_that_does_not_answer_ends_the_search() -> None:
    def lost(_: dict[str, Any]) -> Any:
        raise NotReachedError("node2: no answer in time")

    with pytest.raises(NotReachedError, match="node2"):
        fix_port.next_port([FakeMachine(free=free_but()), FakeMachine("node2", free=lost)], 29500)


def test_a_port_of_this_machine_is_fit() -> None:
    port = fix_port.next_port([LocalMachine()], 29500)
    assert port is not None
    assert fix_port.look(LocalMachine(), port, None, 0).free


@pytest.mark.parametrize(
    ("let_in", "named", "port"),
    [
        (range(32768, 61000), [], 32768),
        (range(4000, 4004), [4000], 4000),
        (range(20000, 20400), [], 20224),
        (range(0), [29400], None),
    ],
)
def test_a_firewall_that_lets_few_ports_in_is_searched_by_its_rules_and_by_halves(
    let_in: range, named: list[int], port: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fix_port,
        "reached",
        lambda _target, others, _address, ports: {one.name: set(ports) & {*let_in} for one in others},
    )

    def free(asked: dict[str, Any]) -> Any:
        drawn = range(32768, 61000)
        return {"free": [port for port in asked["ports"] if asked["ephemeral"] or port not in drawn]}

    machines = [FakeMachine(name, free=free, named=lambda _: {"ports": named}) for name in ("node1", "node2")]
    if port is None:
        with pytest.raises(DoctorError, match=r"node2 can't reach node1 \(10.0.0.1\) on any of the ports that were"):
            fix_port.next_port(machines, 29500, "10.0.0.1")
    else:
        assert fix_port.next_port(machines, 29500, "10.0.0.1") == port


class Processes:
    """A host's processes, that end when a signal says so; each signal is kept."""

    def __init__(self, *alive: tuple[int, int], stubborn: bool = False, child: tuple[int, int] | None = None) -> None:
        self.alive = list(alive)
        self.signals: list[tuple[str, list[tuple[int, int]]]] = []
        self._stubborn, self._child = stubborn, child

    def signal(self, arguments: dict[str, Any]) -> Any:
        family = [one for one in self.alive if one in arguments["processes"] or one == self._child]
        if arguments["signal"]:
            self.signals.append((arguments["signal"], family))
        if arguments["signal"] == "TERM" and self._child:
            self.alive.append(self._child)
        if arguments["signal"] == "KILL" or (arguments["signal"] == "TERM" and not self._stubborn):
            self.alive = [one for one in self.alive if one not in family]
        return {"alive": family, "sent": [pid for pid, _ in family], "denied": []}


JOB = HolderJob.model_validate(holder_job((10, 1), (11, 2)))


def end(processes: Processes, grace_s: float = 0.0) -> fix_port.EndedJob:
    machine = FakeMachine(signal=processes.signal)
    return fix_port.end(machine, [JOB], grace_s, force=False, tell=lambda _: None)


def test_a_job_that_obeys_is_not_killed() -> None:
    processes = Processes((10, 1), (11, 2), (12, 3))
    assert end(processes, 5).gone == (10, 11)
    assert processes.signals == [("TERM", [(10, 1), (11, 2)])]
    assert processes.alive == [(12, 3)]


def test_one_that_does_not_is_killed_with_what_it_started_meanwhile() -> None:
    processes = Processes((10, 1), (11, 2), stubborn=True, child=(20, 9))
    ended = end(processes)
    assert (set(ended.gone), ended.left) == ({10, 11, 20}, ())
    assert processes.signals[-1] == ("KILL", [(10, 1), (11, 2), (20, 9)])


def test_a_job_that_gets_no_signal_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "pid 11 is a shell (sh), in which somebody might work"
    asked: list[Any] = []

    def refuse(arguments: dict[str, Any]) -> Any:
        asked.append(arguments["signal"])
        return {"alive": [(10, 1), (11, 2)], "sent": [], "denied": [(11, why)]}

    monkeypatch.setattr(fix_port, "sleep", lambda _: pytest.fail("it waits"))
    ended = fix_port.end(FakeMachine(signal=refuse), [JOB], 600, force=False, tell=lambda _: None)
    assert (ended, asked) == (((), (10, 11), (why,)), ["TERM"])


def test_a_pid_that_is_used_again_is_another_process() -> None:
    processes = Processes((10, 7), (11, 2))
    assert end(processes).gone == (10, 11)
    assert processes.alive == [(10, 7)]


def test_waiting_lasts_as_long_as_a_time_wait_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(fix_port, "sleep", slept.append)
    waits = {"free": False, "error": "EADDRINUSE", "cause": "time-wait", "time_wait_s": 0.2}
    answers = iter([trial(**waits), trial(**waits), trial(free=True)])
    report = PortReport(host="node1", here=False, port=29500, free=False, cause="time-wait", time_wait_s=30.0)
    told: list[str] = []
    assert fix_port.wait_until_free(FakeMachine(port=lambda _: next(answers)), report, told.append).free
    assert slept == [1.0, 0.25, 0.25]
    assert told[0] == "port 29500: TIME_WAIT, free in 30 s"


def test_a_socket_whose_process_has_just_exited_has_time_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the holder's exit and the last close there is no reason to wait in the answer: however long it held."""
    clock = [0.0]

    def pass_time(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(fix_port, "sleep", pass_time)
    monkeypatch.setattr("nccl_doctor.act.ports.fix_port.time.monotonic", lambda: clock[0])
    held = trial(free=False, error="EADDRINUSE", cause="time-wait", time_wait_s=9.0)
    closing = trial(free=False, error="EADDRINUSE", cause="unknown")
    answers = iter([*[held] * 10, closing, closing, trial(free=True)])
    report = PortReport(host="node1", here=False, port=29500, free=False, cause="time-wait", time_wait_s=9.0)
    assert fix_port.wait_until_free(FakeMachine(port=lambda _: next(answers)), report, lambda _: None).free
    assert clock[0] > 10 * fix_port.SETTLE_S


def test_no_process_is_waited_for() -> None:
    held = trial(free=False, error="EADDRINUSE", cause="listener")
    report = PortReport(host="node1", here=False, port=29500, free=False, cause="listener")
    answer = fix_port.wait_until_free(FakeMachine(port=lambda _: held), report, lambda _: None, settle_s=0.0)
    assert (answer.free, answer.cause) == (False, "listener")
