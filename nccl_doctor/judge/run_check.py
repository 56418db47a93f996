"""Runs one check over a snapshot: what it found, or why it could not judge.

From findings to diagnoses: what merely follows stands under its cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from nccl_doctor.checks.view import PHASES, Derived, View
from nccl_doctor.model.base import Skipped, Unknown
from nccl_doctor.model.engine import engines, engines_of
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Check, Unjudged
from nccl_doctor.model.report import Consequence, Diagnosis, Gap, Outcome
from nccl_doctor.snapshot.hosts import Host, Snapshot
from nccl_doctor.text.hostlist import fold, grouped

UNREACHED = "no host was reached"

SUBJECTS = {
    "gpus": "no GPU on any host",
    "gpu_health": "no GPU on any host",
    "rdma": "no RDMA device on any host",
    "step": "no host is looked at from within a Slurm job",
    "same": "no file was named that has to be the same",
    "surroundings": "no container on any host",
}
"""Facts that are lists of what a check is about, and what is said where they are empty on every host."""


_Row = tuple[Check, Finding]


@dataclass
class CheckRun:
    """A check's outcome, why, and its findings."""

    check: Check
    outcome: Outcome
    reason: str | None = None
    findings: list[Finding] = field(default_factory=list)
    looked_at: str | None = None
    gaps: tuple[Gap, ...] = ()


def run_check(check: Check, derived: Derived) -> CheckRun:
    """Runs a check over all hosts; a crash is its outcome and nobody else's."""
    snapshot = derived.snapshot
    phase_reason = _phase_reason(check, snapshot)
    if phase_reason is None and not snapshot.reached and check.category != "access":
        phase_reason = Outcome.UNKNOWN, UNREACHED
    if phase_reason is not None:
        outcome, reason = phase_reason
        return CheckRun(check, outcome, reason)
    hosts: list[Host] = []
    gaps: list[Unjudged] = []
    findings: list[Finding] = []
    try:
        hosts, gaps = _known(check, derived)
        assert check.function is not None
        for result in check.function(View(derived, tuple(hosts))):
            if isinstance(result, Unjudged):
                gaps.append(result)
            else:
                findings.append(result)
    except Exception as error:  # noqa: BLE001 - a fault of one check must not silence the others
        return CheckRun(check, Outcome.CRASH, f"{type(error).__name__}: {error}", findings)
    if findings:
        return CheckRun(check, Outcome.FOUND, None, findings)
    absent = _nothing_to_judge(check, snapshot, hosts)
    if gaps or (absent is None and not snapshot.reached):  # whom one fault of access keeps away shows no other
        by_reason = grouped((gap.reason, gap.hosts) for gap in gaps)
        merged = tuple(Gap(hosts=tuple(chain(*hosts)), reason=reason) for reason, hosts in by_reason.items())
        reasons = "; ".join(f"{fold(gap.hosts)}: {gap.reason}" if gap.hosts else gap.reason for gap in merged)
        return CheckRun(check, Outcome.UNKNOWN, reasons or UNREACHED, gaps=merged)
    if absent is not None:
        return CheckRun(check, Outcome.NOT_APPLICABLE, absent)
    return CheckRun(check, Outcome.PASS, looked_at=_looked_at(check, hosts))


def _looked_at(check: Check, hosts: list[Host]) -> str:
    """Names the facts that a verdict rests on: ``interfaces, env of node[1-3]``."""
    what = ", ".join(need.replace("_", " ") for need in check.needs) or "what was seen"
    return f"{what} of {fold(host.name for host in hosts)}" if hosts else what


def _nothing_to_judge(check: Check, snapshot: Snapshot, hosts: list[Host]) -> str | None:
    """Why a check that found nothing had nothing to look at; None where it had."""
    engine = next((engine for engine in engines() if engine.name == check.scope), None)
    if engine is not None and not _in_scope(check, snapshot):
        return engine.absent
    facts = [host.facts for host in hosts if host.facts is not None]
    for need in check.needs:
        if need in SUBJECTS and facts and not any(getattr(one, need) for one in facts):
            return SUBJECTS[need]
    return None


def _phase_reason(check: Check, snapshot: Snapshot) -> tuple[Outcome, str] | None:
    """Why a check can't run at all: a phase that it needs was skipped or could not be carried out."""
    for need in check.needs:
        if need in PHASES:
            value = getattr(snapshot, need)
            if isinstance(value, Skipped):
                return Outcome.SKIP, value.reason
            if isinstance(value, Unknown):
                return Outcome.UNKNOWN, value.reason
    return None


def _in_scope(check: Check, snapshot: Snapshot) -> tuple[Host, ...]:
    """The hosts that a check judges, reached or not."""
    if check.scope in ("all", "master"):
        return snapshot.hosts[:1] if check.scope == "master" else snapshot.hosts
    return tuple(host for host in snapshot.hosts if check.scope in {engine.name for engine in engines_of(host.node)})


def _known(check: Check, derived: Derived) -> tuple[list[Host], list[Unjudged]]:
    """The hosts whose needed facts are known, and why the others can't be judged."""
    snapshot = derived.snapshot
    unknown = derived.nccl.unknown if check.needs_nccl else {}
    hosts: list[Host] = []
    gaps: list[Unjudged] = []
    for host in _in_scope(check, snapshot):
        if host.facts is None:
            # Its absence is a diagnosis already; a gap only where the check is about this host alone.
            if check.scope == "master" and check.needs:
                gaps.append(Unjudged((host.name,), "not reached"))
            continue
        missing = [getattr(host.facts, need) for need in check.needs if need not in PHASES]
        reasons = [value.reason for value in missing if isinstance(value, Unknown)]
        reasons += [unknown[host.name]] if host.name in unknown else []
        if reasons:
            gaps.append(Unjudged((host.name,), reasons[0]))
        else:
            hosts.append(host)
    return hosts, gaps


def attach_consequences(found: Iterable[tuple[Check, Finding]]) -> tuple[Diagnosis, ...]:
    """Diagnoses, gravest first; a finding that another one explains stands under it.

    A finding follows from another where that one's check names it in ``explains`` and they share a host (of failed
    dials: one end of each is the cause's; where it names hosts ``because_of`` which it is, one of those), or where it
    is the all-reduce's or a log's: those suffer from every host's faults.
    """
    rows = list(found)
    order = sorted(range(len(rows)), key=lambda number: (-_severity(*rows[number]).rank, rows[number][0].code))
    cause_of: dict[int, int] = {}
    for number, row in enumerate(rows):
        causes = (each for each in order if each != number and each not in cause_of and _explains(rows[each], row))
        if (cause := next(causes, None)) is not None:
            cause_of[number] = cause
    effects: dict[int, list[_Row]] = {number: [] for number in order if number not in cause_of}
    for number, row in enumerate(rows):
        root = number
        while root in cause_of:
            root = cause_of[root]
        if root != number:
            effects[root].append(row)
    return tuple(_diagnosis(rows[number], its) for number, its in effects.items())


def _explains(cause: _Row, effect: _Row) -> bool:
    (check, finding), (follower, symptom) = cause, effect
    if follower.name not in check.explains or (finding.explains is not None and follower.name not in finding.explains):
        return False
    if follower.job_wide:
        return True
    hosts, mine = set(finding.hosts), finding.facts.get("failed")
    theirs = symptom.facts.get("failed") if follower.category == "ports" else None  # others tell what follows of them
    if theirs is not None:
        # Both name the dials that failed. The effect blames the host that was not reached, and the cause may be the
        # other end: one that looked up a wrong address, say.
        return all(pair in mine if mine is not None else hosts & {pair["src"], pair["dst"]} for pair in theirs)
    # a host has many processes, and each finding may name its own
    pids, others = finding.facts.get("pids"), symptom.facts.get("pids")
    apart = pids is not None and others is not None and set(pids).isdisjoint(others)
    return not apart and not hosts.isdisjoint(symptom.facts.get("because_of", symptom.hosts))


def _severity(check: Check, finding: Finding) -> Severity:
    return finding.severity or check.severity


def _diagnosis(row: _Row, effects: list[_Row]) -> Diagnosis:
    check, finding = row
    gravest = max((row, *effects), key=lambda r: _severity(*r).rank)
    consequences = tuple(
        Consequence(code=c.code, name=c.name, hosts=effect.hosts, message=effect.message) for c, effect in effects
    )
    return Diagnosis(
        code=check.code,
        name=check.name,
        severity=_severity(*gravest),
        explains=consequences,
        **{name: getattr(finding, name) for name in ("hosts", "message", "evidence", "facts", "fix", "entities")},
    )
