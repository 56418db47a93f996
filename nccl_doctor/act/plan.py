"""Plans the steps of ``nccl-doctor fix``, and the steps that undo a run.

The plan also lists the actions that are left to the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nccl_doctor.act.record import RanStep
from nccl_doctor.judge.remedies import operations, settings
from nccl_doctor.model.acts import ByHand, Step, Undo
from nccl_doctor.model.engine import ClusterSource
from nccl_doctor.model.finding import Command, Diagnosis
from nccl_doctor.model.operation import Operation
from nccl_doctor.model.report import Report
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.text.shell import word


def plan(
    report: Report, snapshot: Snapshot, hide: Callable[[str], str] = lambda text: text
) -> tuple[tuple[Step, ...], tuple[ByHand, ...]]:
    """Return the steps that fix a report's diagnoses (the most severe first), and the diagnoses left to the user.

    A command in which ``hide`` finds a secret can't be shown for confirmation, so the fix is left to the user.
    """
    steps: list[Step] = []
    by_hand: list[ByHand] = []
    for diagnosis in sorted(report.diagnoses, key=lambda item: -item.severity.rank):
        made = list(_steps(diagnosis, snapshot))
        if made and all(hide(item.command) == item.command for item in made):
            known = {(item.host, item.place, item.command) for item in steps}
            steps += [item for item in made if (item.host, item.place, item.command) not in known]
        else:
            by_hand.append(_left(diagnosis))
    boots = {host.name: host.facts.identity for host in snapshot.hosts if host.facts is not None}
    return tuple(
        item.model_copy(update={"number": number, "boot_id": getattr(boots.get(item.host or ""), "boot_id", None)})
        for number, item in enumerate(steps, 1)
    ), tuple(by_hand)


def _left(diagnosis: Diagnosis) -> ByHand:
    named = {"code": diagnosis.code, "name": diagnosis.name, "severity": diagnosis.severity, "hosts": diagnosis.hosts}
    return ByHand.model_validate(named | {"summary": diagnosis.fix.summary, "commands": diagnosis.fix.commands})


def _steps(diagnosis: Diagnosis, snapshot: Snapshot) -> Iterator[Step]:
    named: dict[str, Any] = {"number": 1, "code": diagnosis.code, "mends": diagnosis.name, "message": diagnosis.message}
    if variables := settings(diagnosis, snapshot):
        file = ClusterSource(snapshot.cluster).file
        words = ", ".join(f"{name}: {word(value)}" for name, value in variables.items())
        yield Step(
            **named,
            host=None,
            command=f"write into {file}, under env: {words}",
            undo=FROM_BEFORE,
            survives_reboot=True,
            settings=dict(variables),
        )
    for command in operations(diagnosis, snapshot):
        assert command.operation is not None, "operations have one"
        yield _step(command, command.operation, named, disruptive=diagnosis.fix.risk == "disruptive")


FROM_BEFORE = "the values before it"


def _step(command: Command, operation: Operation, named: dict[str, Any], *, disruptive: bool) -> Step:
    can_be_undone = operation.look is not None and type(operation).undo is not Operation.undo
    return Step(
        **named,
        host=command.host,
        command=command.command,
        place=command.place,
        outside=command.side == "outside",
        root=operation.root,
        risk="disruptive" if operation.ends_process or disruptive else "safe",
        undo=FROM_BEFORE if can_be_undone else None,
        survives_reboot=operation.survives_reboot,
        operation=operation,
    )


def undo_plan(ran: Sequence[RanStep], file: str | None) -> tuple[Step, ...]:
    """Return steps that undo the recorded steps, in reverse order; ``file`` is the hosts file that was changed."""
    back: list[Step] = []
    for step in reversed(ran):
        if not step.can_be_undone:
            continue
        names = ", ".join(step.settings)
        command = f"write into {file}, under env: the values of {names} from before" if step.settings else step.undo
        assert command is not None, "it can be undone"
        shared = {name: getattr(step, name) for name in Undo.model_fields.keys() & RanStep.model_fields.keys()}
        back.append(
            Step(
                number=len(back) + 1,
                host=step.host,
                command=command,
                place=step.place,
                outside=step.outside,
                root=step.root,
                code=step.code,
                mends=step.mends,
                takes_back=step.number,
                undoes=Undo(redo=step.command, **shared),
                settings=dict(step.settings),
            )
        )
    return tuple(back)
