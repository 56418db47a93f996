"""Determines the outcome of ``nccl-doctor fix`` from the follow-up check rather than from the output of commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nccl_doctor.model.acts import FixReport, NamedFault, Step
from nccl_doctor.model.finding import CheckResult, Diagnosis, Outcome, Severity
from nccl_doctor.model.report import Report
from nccl_doctor.text.hostlist import grouped

FaultKey = tuple[str, str]
"""The name of a diagnosis and the affected host, which is "" if the diagnosis concerns no host."""


def compared(ran: FixReport, after: Report) -> FixReport:
    """Add the outcome of each diagnosis for which a step was run to the report on a run.

    Also add the warnings and errors that are new or still exist.

    A diagnosis counts as fixed on a host if the follow-up check passes on the host. If the follow-up check can no
    longer evaluate the host, the outcome is unknown.
    """
    chosen = _faults(ran.before, {step.mends for step in ran.plan if _was_run(step, ran)})
    now = _faults(after.diagnoses)
    consequences = {item.name: item.hosts for diagnosis in after.diagnoses for item in diagnosis.explains}
    hidden = {(name, host) for name, hosts in consequences.items() for host in hosts}
    checks = {check.name: check for check in after.checks}
    remaining = [fault for fault in chosen if fault in now or fault in hidden]
    judged = [fault for fault in chosen if fault not in remaining and _passed(checks.get(fault[0]), fault[1], after)]
    grave = {item.name for item in after.diagnoses if item.severity.rank >= Severity.WARNING.rank}
    explained = ((entry.name, host) for item in ran.before for entry in item.explains for host in entry.hosts)
    known = {*_faults(ran.before), *explained}
    others = [entry for entry in now if entry in known and entry not in chosen and entry[0] in grave]
    return ran.model_copy(
        update={
            "after": after.diagnoses,
            "complete": after.complete,
            "mended": _named(judged),
            "unjudged": _named(fault for fault in chosen if fault not in (*remaining, *judged)),
            "remaining": _named([*remaining, *others]),
            "new": _named(fault for fault in now if fault not in known and fault[0] in grave),
        }
    )


def exit_code(ran: FixReport, after: int) -> int:
    """Return the exit code of the follow-up check, or 1 if a step failed or did not fix its fault."""
    failed = any(result.outcome != "done" for result in ran.results)
    chosen = {step.mends for step in ran.plan if _was_run(step, ran)}
    still = {fault.name for fault in (*ran.remaining, *ran.unjudged)} & chosen
    return 1 if failed or still or ran.after is None else after


def _was_run(step: Step, ran: FixReport) -> bool:
    return any(result.number == step.number and result.outcome != "not-run" for result in ran.results)


def _faults(diagnoses: Sequence[Diagnosis], names: Iterable[str] | None = None) -> list[FaultKey]:
    wanted = None if names is None else set(names)
    some = (diagnosis for diagnosis in diagnoses if wanted is None or diagnosis.name in wanted)
    return list(dict.fromkeys((diagnosis.name, host) for diagnosis in some for host in diagnosis.hosts or ("",)))


def _passed(check: CheckResult | None, host: str, after: Report) -> bool:
    if check is None or check.outcome not in (Outcome.PASS, Outcome.FOUND, Outcome.NOT_APPLICABLE):
        return False
    reached = {summary.name for summary in after.hosts if summary.reached}
    return (not host or host in reached) and not any(host in gap.hosts or not gap.hosts for gap in check.gaps)


def _named(faults: Iterable[FaultKey]) -> tuple[NamedFault, ...]:
    return tuple(NamedFault(name=name, hosts=tuple(filter(None, hosts))) for name, hosts in grouped(faults).items())
