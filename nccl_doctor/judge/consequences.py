"""From findings to diagnoses: what merely follows stands under its cause."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Check
from nccl_doctor.model.report import Consequence, Diagnosis


def attach_consequences(found: Iterable[tuple[Check, Finding]]) -> tuple[Diagnosis, ...]:
    """Diagnoses, gravest first; a finding that another one explains stands under it.

    A finding follows from another where that one's check names it in ``explains`` and they share a host (of failed
    dials: one end of each is the cause's), or where it is the all-reduce's or a log's: those suffer from every host's
    faults.
    """
    rows = list(found)
    order = sorted(rows, key=lambda row: (-_severity(*row).rank, row[0].code))
    cause_of: dict[int, tuple[Check, Finding]] = {}
    for check, finding in rows:
        for cause in order:
            if cause[1] is not finding and id(cause[1]) not in cause_of and _explains(cause, (check, finding)):
                cause_of[id(finding)] = cause
                break
    causes = [row for row in order if id(row[1]) not in cause_of]
    return tuple(_diagnosis(row, [r for r in rows if _root(cause_of, r) is row[1]]) for row in causes)


def _root(cause_of: dict[int, tuple[Check, Finding]], row: tuple[Check, Finding]) -> Finding | None:
    """The cause at the end of the chain, None for a cause itself."""
    cause = cause_of.get(id(row[1]))
    while cause is not None and id(cause[1]) in cause_of:
        cause = cause_of[id(cause[1])]
    return cause[1] if cause else None


def _explains(cause: tuple[Check, Finding], effect: tuple[Check, Finding]) -> bool:
    own = cause[1].explains
    if effect[0].name not in cause[0].explains or (own is not None and effect[0].name not in own):
        return False
    if effect[0].code[3] in "79":
        return True
    mine = cause[1].facts.get("failed")
    theirs = (
        effect[1].facts.get("failed") if effect[0].category == "ports" else None
    )  # others tell what follows of them
    if mine is not None and theirs is not None:
        # Both name the dials that failed. The effect blames the host that was not reached, and the cause may be the
        # other end: one that looked up a wrong address, say.
        return all(pair in mine for pair in theirs)
    hosts = set(cause[1].hosts)
    if theirs is not None:  # whichever end was blamed
        return all(hosts & {pair["src"], pair["dst"]} for pair in theirs)
    return bool(hosts & set(effect[1].hosts)) and _same_processes(cause[1], effect[1])


def _same_processes(cause: Finding, effect: Finding) -> bool:
    """Whether two findings can be about one process: a host has many, and each finding may name its own ("pids")."""
    mine, theirs = cause.facts.get("pids"), effect.facts.get("pids")
    return mine is None or theirs is None or bool(set(mine) & set(theirs))


def _severity(check: Check, finding: Finding) -> Severity:
    return finding.severity or check.severity


def _diagnosis(row: tuple[Check, Finding], effects: list[tuple[Check, Finding]]) -> Diagnosis:
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
