"""Attributes findings to their causes.

A finding follows from a cause if the ``explains`` attribute of the cause or of its check contains an effect for each
symptom of the finding (:mod:`nccl_doctor.model.effect`). A finding without symptoms is matched by name and hosts. A
finding that matches no effect is reported separately, with its own severity. If several causes match, the most severe
cause is chosen; of equally severe causes, the cause with the fewest other effects is chosen. The evidence lists all
remaining matching causes with the words "also possible".
"""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.model.effect import AFTERMATH, Effect, Symptom
from nccl_doctor.model.finding import Consequence, Diagnosis, Finding, Severity
from nccl_doctor.model.register import Check
from nccl_doctor.text.hostlist import fold

Row = tuple[Check, Finding]


def attach_consequences(judged_rows: Iterable[Row]) -> tuple[Diagnosis, ...]:
    """Return the diagnoses, the most severe first; a finding that follows from a cause is attached to the cause."""
    rows = sorted(judged_rows, key=lambda row: (-_severity(*row).rank, row[0].code))
    fitting = [_causes(row, rows) for row in rows]
    above: dict[int, int] = {}  # the cause of each row that follows from another
    for number in sorted(range(len(rows)), key=lambda number: rows[number][0].code):
        cause = next((cause for cause in fitting[number] if _root(cause, above) != number), None)
        above |= {} if cause is None else {number: cause}
    under: dict[int, list[int]] = {number: [] for number in range(len(rows)) if number not in above}
    for number in above:
        under[_root(number, above)].append(number)
    made = (_diagnosis(rows, root, effects, {_root(c, above) for n in effects for c in fitting[n]} - {root})
             for root, effects in under.items())  # fmt: skip
    # an effect may be graver than its cause
    return tuple(sorted(made, key=lambda diagnosis: -diagnosis.severity.rank))


def _causes(row: Row, rows: list[Row]) -> list[int]:
    """Return the indexes of the possible causes of ``row`` in ``rows``, starting with the best match."""
    widths = {number: width for number, cause in enumerate(rows) if cause is not row and (width := fit(cause, row))}
    return sorted(widths, key=lambda number: (-_severity(*rows[number]).rank, widths[number]))


def _root(number: int, above: dict[int, int]) -> int:
    while number in above:
        number = above[number]
    return number


def fit(cause: Row, row: Row) -> int:
    """Return how many kinds of symptoms the matching effects of a cause cover, or 0 if the cause does not match."""
    (check, finding), (follower, shown) = cause, row
    stated = check.explains if finding.explains is None else finding.explains
    hosts, mine = frozenset(finding.hosts), finding.details.failed
    pids, others = finding.details.pids, shown.details.pids
    if pids is not None and others is not None and set(pids).isdisjoint(others):
        return 0  # a host has many processes
    if follower.category == "ports" and (lost := shown.details.failed) is not None and not shown.symptoms:
        # Both name failed dials. The finding blames the host that was not reached, but the cause may be the other end,
        # for example because it looked up a wrong address.
        blamed = all(dial in mine if mine is not None else not hosts.isdisjoint(dial) for dial in lost)
        return int(blamed and follower.name in stated)
    pairs = frozenset(map(frozenset, mine)) if mine else None
    by: dict[Symptom, list[int]] = {}
    for symptom in shown.symptoms or (Symptom(follower.name, frozenset(shown.hosts)),):
        meets = not hosts.isdisjoint(symptom.hosts | symptom.peers)
        named = [1] if symptom.kind in stated and meets else []
        effects = [effect for effect in stated if isinstance(effect, Effect) and symptom.backend is not None]
        by[symptom] = named + [len(effect.kinds) for effect in effects if effect.fits(symptom, hosts, pairs)]
        if not (by[symptom] or (meets and symptom.kind in AFTERMATH)):
            return 0
    return sum(min(widths) for widths in by.values() if widths)


def _severity(check: Check, finding: Finding) -> Severity:
    return finding.severity or check.severity


def _diagnosis(rows: list[Row], root: int, effects: list[int], rivals: Iterable[int]) -> Diagnosis:
    check, finding = rows[root]
    gravest = max((root, *effects), key=lambda number: _severity(*rows[number]).rank)
    follows = (Consequence(code=c.code, name=c.name, hosts=effect.hosts, message=effect.message)
               for c, effect in (rows[number] for number in sorted(effects)))  # fmt: skip
    also = (f"also possible: {other.name} on {fold(item.hosts)}" for other, item in (rows[number] for number in rivals))
    fields = {name: getattr(finding, name) for name in ("hosts", "message", "facts", "details", "fix", "entities")}
    return Diagnosis(
        code=check.code,
        name=check.name,
        severity=_severity(*rows[gravest]),
        evidence=(*finding.evidence, *sorted(also)),
        explains=tuple(follows),
        **fields,
    )
