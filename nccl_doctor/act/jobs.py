"""Runs the steps of ``fix`` that need no shell: ending leftover jobs, and setting variables in the hosts file."""

from __future__ import annotations

from datetime import datetime, timezone
from time import monotonic

from nccl_doctor.act.ports.fix_port import Steps, end_leftover
from nccl_doctor.act.ports.fleet import LIFETIME_S, LocalMachine, QueriedMachine, SessionMachine
from nccl_doctor.act.record import Journal, entry
from nccl_doctor.act.root import CONNECT_S
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.errors import DoctorError, NotReachedError
from nccl_doctor.inventory.edits import read_env, write_env
from nccl_doctor.model.acts import Step, StepResult
from nccl_doctor.model.cluster import Node
from nccl_doctor.model.engine import place_of
from nccl_doctor.model.operations.programs import EndJob
from nccl_doctor.model.ports import GRACE_S, ProcessIdentity
from nccl_doctor.text.shell import clean
from nccl_doctor.transport.base import AccessError, Transport


def end_job(step: Step, operation: EndJob, node: Node, transport: Transport) -> StepResult:
    """End a leftover job, unless a different process now has the same PID."""
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    known = {"number": step.number, "host": step.host, "at": at}
    machine: QueriedMachine | None = None
    try:
        machine = _machine(node, transport)
        process = ProcessIdentity(operation.pid, operation.ticks)
        steps = Steps(True, False, True, GRACE_S, lambda _report: True, lambda _text: None, lambda _text: None)
        report = end_leftover(machine, operation.port, process, steps)
    except (NotReachedError, AccessError) as error:
        why = error.failure.detail if isinstance(error, AccessError) else str(error)
        return StepResult.model_validate({**known, "outcome": "not-run", "reason": clean(why)})
    finally:
        if machine is not None:
            machine.close()
    if report.gone and not report.ended:
        return StepResult.model_validate({**known, "outcome": "done", "was_there": True, "reason": "it had ended"})
    if report.refused or report.left or not report.ended:
        why = report.refused or "some of its processes still run"
        return StepResult.model_validate({**known, "outcome": "failed", "reason": clean(why)})
    output = f"ended pid {' '.join(map(str, report.ended))}"
    return StepResult.model_validate({**known, "outcome": "done", "exit_code": 0, "output": output})


def set_variables(step: Step, file: str, journal: Journal | None) -> StepResult:
    """Write variables to the hosts file.

    An undo restores the previous values unless the variables have been changed again.
    """
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    known = {"number": step.number, "host": None, "at": at}
    try:
        now = read_env(file, step.settings)
        if step.undoes is not None:
            before = step.undoes.settings_before
            if now == before or now != step.settings:
                why = "it is not there any more" if now == before else "somebody else has changed it since"
                return StepResult.model_validate({**known, "outcome": "changed", "reason": why, "over": now == before})
            write_env(file, before)
            return StepResult.model_validate({**known, "outcome": "done", "exit_code": 0, "over": True})
        if now == step.settings:
            return StepResult.model_validate({**known, "outcome": "done", "was_there": True})
        mine = entry(step, settings_before=now, at=at)
        if journal is not None:
            journal.write(mine)
        write_env(file, step.settings)
        if journal is not None:
            journal.write(mine.model_copy(update={"outcome": "done", "exit_code": 0}))
    except DoctorError as error:
        return StepResult.model_validate({**known, "outcome": "failed", "reason": clean(str(error))})
    return StepResult.model_validate({**known, "outcome": "done", "exit_code": 0})


def _machine(node: Node, transport: Transport) -> QueriedMachine:
    if node.local and not place_of(node):
        return LocalMachine()
    deadline = monotonic() + CONNECT_S
    return SessionMachine(ProbeSession.open(transport, node, deadline, LIFETIME_S + GRACE_S))
