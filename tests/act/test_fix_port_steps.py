"""What a call of fix-port does, and in which order, on machines that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.act.ports.fix_port import Steps, about_port, about_process, moved
from nccl_doctor.act.ports.fleet import Fleet
from nccl_doctor.errors import DoctorError
from nccl_doctor.model.ports import PortReport, ProcessIdentity
from tests.act.machines import FakeMachine, holder_job, trial


class Asked:
    """Keeps what was said, and answers the question."""

    def __init__(self, yes: bool = True) -> None:
        self.said: list[str] = []
        self.questions: list[PortReport] = []
        self._yes = yes

    def confirm(self, report: PortReport) -> bool:
        self.questions.append(report)
        return self._yes

    def steps(self, **chosen: Any) -> Steps:
        done = {"kill": False, "force": False, "wait": False, "grace_s": 0.0} | chosen
        return Steps(**done, confirm=self.confirm, tell=lambda _text: None, say=self.said.append)


def fleet(machine: FakeMachine) -> Fleet:
    made = Fleet(None, None, "auto", 0, 1)
    made.target = machine
    return made


def held(refusal: str | None = None, *, final: bool = False) -> dict[str, Any]:
    return {**trial(free=False, cause="listener"), "jobs": [holder_job((7, 1), refusal=refusal, final=final)]}


def test_a_port_for_which_there_is_no_other_is_told_all_the_same_and_why() -> None:
    asked = Asked()
    machine = FakeMachine(port=lambda _: held(), free=lambda _: {"free": []})
    assert about_port(fleet(machine), 29500, None, asked.steps()).suggestion is None
    assert asked.said == []  # there is none, which is no fault

    def broken(_: dict[str, Any]) -> Any:
        raise DoctorError("node1: no answer in time")

    report = about_port(fleet(FakeMachine(port=lambda _: held(), free=broken)), 29500, None, asked.steps())
    assert (report.free, report.suggestion) == (False, None)
    assert asked.said == ["no port to move to: node1: no answer in time"]


@pytest.mark.parametrize(
    ("refusal", "final", "force", "wanted"),
    [
        ("somebody watches it", False, False, "somebody watches it"),
        ("it is PID 1", True, True, "it is PID 1"),
        (None, False, False, "it was not confirmed"),
        ("somebody watches it", False, True, "it was not confirmed"),
    ],
)
def test_nothing_is_ended_that_may_not_be_or_that_nobody_confirmed(
    refusal: str | None, final: bool, force: bool, wanted: str
) -> None:
    asked = Asked(yes=False)
    machine = FakeMachine(port=lambda _: held(refusal, final=final), free=lambda _: {"free": [29501]})
    report = about_port(fleet(machine), 29500, None, asked.steps(kill=True, force=force))
    assert (report.refused, report.ended, report.suggestion and report.suggestion.port) == (wanted, (), 29501)
    assert len(asked.questions) == (wanted == "it was not confirmed")
    assert {call["do"] for call in machine.asked} == {"port", "free"}


def test_a_process_without_a_job_is_asked_about_alone() -> None:
    machine = FakeMachine(port=lambda _: {**trial(free=True), "trial": None, "jobs": []})
    assert about_process(fleet(machine), ProcessIdentity(4711), Asked().steps(kill=True)).refused is None


def test_a_port_to_move_to_or_a_sentence() -> None:
    report = moved(fleet(FakeMachine(free=lambda asked: {"free": asked["ports"]})), 29500)
    assert (report.port, report.instead_of, report.free) == (29501, 29500, True)
    with pytest.raises(DoctorError, match="no port from 1024 to 65535 is free"):
        moved(fleet(FakeMachine(free=lambda _: {"free": []})), 29500)
