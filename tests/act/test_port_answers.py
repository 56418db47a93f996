"""What a lying host tells ``fix-port``: it is refused in one sentence, or shown for what it is; nothing breaks."""

from __future__ import annotations

import copy
import json
import random
import socket
import time
from typing import Any

import pytest

from nccl_doctor.act.ports import fix_port
from nccl_doctor.act.ports.fleet import SessionMachine
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.errors import NotReachedError
from nccl_doctor.model.ports import HolderJob, PortReport
from nccl_doctor.probe.ports.requests import look
from nccl_doctor.report.fix_port import screen
from nccl_doctor.report.render import render
from tests.act.machines import FakeMachine, holder_job, trial
from tests.collect.nodes import node
from tests.crew.liars import Liar, lying, opened
from tests.lab.lying_probe import bent


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What the probe really says of a port that a process of ours holds."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        answer = look({"port": port, "pid": None, "started": None, "grace_s": 10})
    said: dict[str, Any] = json.loads(json.dumps(answer))
    return said


def machine(answer: Any) -> SessionMachine:
    return SessionMachine(opened(Liar(lambda request: [{"id": request["id"], "ok": answer}])))


def shown(answer: Any) -> str:
    report = fix_port.look(machine(answer), 29500, None, 0)
    return screen(report) + render("fix-port", "json", report)


def test_what_the_probe_says_goes_through_as_it_is(told: dict[str, Any]) -> None:
    here = FakeMachine("here", port=lambda _: told)
    assert fix_port.look(machine(told), 29500, None, 0) == fix_port.look(here, 29500, None, 0)
    assert told["jobs"][0]["root"]


@pytest.mark.parametrize("part", range(4))
def test_whatever_it_says_there_is_a_screen_or_one_sentence(told: dict[str, Any], part: int) -> None:
    outcomes = set()
    for seed in range(part * 100, part * 100 + 100):
        try:
            outcomes.add(bool(shown(bent(copy.deepcopy(told), random.Random(seed)))))
        except NotReachedError as error:
            outcomes.add(str(error).startswith("here: it answered what the probe never says"))
    assert outcomes == {True}


def changed(told: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    answer = copy.deepcopy(told)
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    inside: Any = answer
    for step in way:
        inside = inside[step]
    inside[last] = value
    return answer


LIES = [
    ("jobs.0.holders", []),
    ("jobs.0.root", 4_000_000),
    ("jobs.0.members", []),
    ("jobs.0.holders.0.started", 1e300),
    ("jobs.0.holders.0.pid", -1),
    ("jobs.0.holders.0.pid", "1; reboot"),
    ("jobs.0.members.0.started", "7; reboot"),
    ("jobs.0.members.0.gpus", [{"pid": 1, "gpu": "0", "uuid": [], "memory_mib": {}}]),
    ("jobs.0.refusal", ["no"]),
    ("range", {"low": 1, "high": 2, "reserved": "8080 ; reboot"}),
    ("range", {"low": 1, "high": 2, "reserved": "0-30000000"}),
    ("elsewhere", [{"pid": "1 -- reboot", "command": "x", "unit": None}]),
    ("trial.cause", "innocent"),
    ("trial.sockets.0.remote_address", "$(reboot)"),
    ("trial.time_wait_s", 1e999),
    ("trial", []),
    ("uid", None),
]


@pytest.mark.parametrize(("path", "value"), LIES)
def test_a_lie_is_told_with_the_host_and_where_it_is(told: dict[str, Any], path: str, value: Any) -> None:
    with pytest.raises(NotReachedError, match="here: it answered what the probe never says"):
        shown(changed(told, path, value))


@pytest.mark.parametrize("alive", [[[-1, 1]], [[1]], [["1", "$(reboot)"]], [[1, 2]] * 5000, {}, None])
def test_no_signal_goes_to_what_is_no_process(alive: Any) -> None:
    job = HolderJob.model_validate(holder_job((10, 1)))
    with pytest.raises(NotReachedError, match="here: "):
        fix_port.end(machine({"alive": alive, "denied": []}), [job], 0.0, force=False, tell=lambda _: None)


def test_a_host_that_tells_of_ever_more_processes_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fix_port, "sleep", lambda _: None)
    numbers = iter(range(1, 2**22, 4000))

    def more(request: dict[str, Any]) -> list[bytes | dict[str, Any]]:
        first = next(numbers)
        return [{"id": request["id"], "ok": {"alive": [[first + n, 1] for n in range(4000)], "denied": []}}]

    job = HolderJob.model_validate(holder_job((10, 1)))
    with pytest.raises(NotReachedError, match="here: it reports more than"):
        fix_port.end(SessionMachine(opened(Liar(more))), [job], 600.0, force=False, tell=lambda _: None)


def test_a_time_wait_is_waited_for_no_longer_than_the_kernel_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fix_port, "MOST_WAIT_S", 0.2)
    monkeypatch.setattr(fix_port, "sleep", lambda _: time.sleep(0.05))
    waits = trial(free=False, error="EADDRINUSE", cause="time-wait", time_wait_s=1e9)
    report = PortReport(host="node1", here=False, port=29500, free=False, cause="time-wait", time_wait_s=1e9)
    assert not fix_port.wait_until_free(FakeMachine(port=lambda _: waits), report, lambda _: None).free


def test_free_is_only_what_was_asked_for() -> None:
    assert fix_port.next_port([machine({"free": [22, 29503]})], 29500) == 29503
    with pytest.raises(NotReachedError, match="here"):
        fix_port.next_port([machine({"free": [[]]})], 29500)


def test_silence_and_damage_are_one_sentence() -> None:
    for said in ([b"NONCE {]"], [{"id": 7, "ok": None}], [{"id": 1}], [{"id": 1, "event": {}}], []):
        with pytest.raises(NotReachedError, match="here: "):
            fix_port.look(SessionMachine(lying(*said)), 29500, None, 0)


class Late(Liar):
    """Each of its answers comes after the deadline of the first who waits for it."""

    overdue = False

    def send(self, data: bytes, deadline: float) -> None:
        self.overdue = data.startswith(b'{"id"')
        super().send(data, deadline)

    def read_line(self, deadline: float) -> bytes | None:
        if self.overdue:
            self.overdue = False
            raise TimeoutError
        return super().read_line(deadline)


def test_hosts_that_answer_late_are_given_more_time_to_listen_and_to_dial() -> None:
    def answer(request: dict[str, Any]) -> list[bytes | dict[str, Any]]:
        listens = {"ports": [one["port"] for one in request.get("sockets", ())], "errors": {}}
        dialled = {"connected": 0, "failed": [[0, 29501, "refused", None, 0.1]]}
        return [{"id": request["id"], "ok": {"listen": listens, "dial": dialled}.get(request["do"])}]

    target, *others = (
        SessionMachine(ProbeSession.open(Late(answer), node(name=name), time.monotonic() + 5, 30)) for name in "abc"
    )
    assert fix_port.reached(target, others, "10.0.0.1", [29501]) == {"b": set(), "c": set()}
