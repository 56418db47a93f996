"""Runs the checks over a snapshot, puts what merely follows under its cause, and makes the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain

from nccl_doctor import summary
from nccl_doctor.checks.allreduce.output_causes import causes_from_output
from nccl_doctor.cluster import Cluster
from nccl_doctor.derived import Derived, FailedDials
from nccl_doctor.finding import Finding, Severity
from nccl_doctor.host_words import seen
from nccl_doctor.hostlist import fold, grouped
from nccl_doctor.inet import network_of, prefix_length
from nccl_doctor.model import CheckResult, Consequence, Diagnosis, Gap, HostSummary, Outcome, Report
from nccl_doctor.registry import PHASES, Check, Unjudged, View, all_checks
from nccl_doctor.rows import NOT_SELECTED
from nccl_doctor.snapshot import Host, Interfaces, Skipped, Smoke, Snapshot, Unknown
from nccl_doctor.transport.inside_options import placed

Selection = Callable[[Check], bool]

OUTSIDE = ("container-differs", "container-unreachable")
"""Diagnoses whose commands act on a container from its host."""

UNREACHED = "no host was reached"
FAULTS = ("allreduce-failed", "allreduce-timeout")
SETTLED = ("interfaces", "environment", "software")
"""Categories of what does not change between the look at a host and the all-reduce: their checks know better than a
log, which guesses. A port may be taken in between."""

ENGINES = {
    "ssh": "no host is reached over SSH",
    "slurm": "no host is a node of a Slurm job",
    "kube": "no host is a pod",
    "inside": "no container is entered",
}
"""What a check says that judges one engine's hosts, where there are none."""

SUBJECTS = {
    "gpus": "no GPU on any host",
    "gpu_health": "no GPU on any host",
    "rdma": "no RDMA device on any host",
    "step": "no host is looked at from within a Slurm job",
    "same": "no file was named that has to be the same",
    "surroundings": "no container on any host",
}
"""Facts that are lists of what a check is about, and what is said where they are empty on every host."""


@dataclass
class _CheckYield:
    """What one check came to: its outcome, why, and its findings."""

    check: Check
    outcome: Outcome
    reason: str | None = None
    findings: list[Finding] = field(default_factory=list)
    looked_at: str | None = None
    gaps: tuple[Gap, ...] = ()


def judge(
    snapshot: Snapshot,
    command: str,
    selected: Selection = lambda _check: True,
    dials: FailedDials | None = None,
) -> Report:
    """The report of a snapshot.

    Args:
        snapshot: all that was seen.
        command: the report is of.
        selected: which checks run.
        dials: why dials of its mesh failed, where that is known already.
    """
    derived = Derived(snapshot, dials)
    judged = [
        _run(check, derived) if selected(check) else _CheckYield(check, Outcome.SKIP, NOT_SELECTED)
        for check in all_checks()
        if check.function is not None
    ]
    judged = _with_causes_from_output(judged, derived)
    diagnoses = attach_consequences((j.check, finding) for j in judged for finding in j.findings)
    diagnoses = tuple(_placed(diagnosis, snapshot.cluster) for diagnosis in diagnoses)
    results = tuple(
        CheckResult(
            code=j.check.code,
            name=j.check.name,
            category=j.check.category,
            outcome=j.outcome,
            reason=j.reason,
            looked_at=j.looked_at,
            gaps=j.gaps,
        )
        for j in judged
    )
    return summary.report(snapshot, command, diagnoses, results, [_host(host, derived) for host in snapshot.hosts])


def _placed(diagnosis: Diagnosis, cluster: Cluster) -> Diagnosis:
    """Says for each command whether it is for a host's container; what needs root changes the machine around it."""
    fix = diagnosis.fix
    commands = placed(fix.commands, cluster, inside=not (fix.needs_root or diagnosis.name in OUTSIDE))
    return diagnosis.model_copy(update={"fix": fix.model_copy(update={"commands": commands})})


def _with_causes_from_output(judged: list[_CheckYield], derived: Derived) -> list[_CheckYield]:
    """The same with what the output of a failed all-reduce shows as its cause.

    A cause that a live check has found takes that as its consequence, as it takes the all-reduce's failure.
    """
    failed = {j.check.name for j in judged if j.check.name in FAULTS and j.findings}
    smoke = derived.snapshot.smoke
    if not failed or not isinstance(smoke, Smoke):
        return judged
    by_name = {j.check.name: j for j in judged}
    entries = {check.name: check for check in all_checks()}
    for name, finding in causes_from_output(smoke):
        entry, live = entries[name], by_name.get(name)
        settled = entry.category in SETTLED and entry.function is not None
        if live is not None and (live.findings or (settled and _run(entry, derived).outcome is Outcome.PASS)):
            continue
        cause = replace(entry, explains=(*entry.explains, *failed))
        by_name = {n: replace(j, check=_explaining(j.check, failed, name)) for n, j in by_name.items()}
        by_name[name] = _CheckYield(cause, Outcome.FOUND, None, [finding])
    return sorted(by_name.values(), key=lambda j: j.check.code)


def _explaining(check: Check, failed: set[str], name: str) -> Check:
    """A check that explains the all-reduce's failure explains what its output says, too."""
    return replace(check, explains=(*check.explains, name)) if failed & set(check.explains) else check


def _host(host: Host, derived: Derived) -> HostSummary:
    node = host.node
    chosen = derived.nccl.interfaces.get(host.name)
    return HostSummary(
        name=node.name,
        address=node.address,
        node_rank=node.node_rank,
        reached=host.facts is not None,
        nccl_interface=chosen,
        network=chosen and _network(host, chosen.address),
        seen={} if host.facts is None else seen(host.facts, derived.kube.pods.get(host.name)),
        spent=derived.snapshot.spent.get(host.name, {}),
    )


def _network(host: Host, address: str) -> str | None:
    """The net of one of the host's addresses; None where it doesn't tell its mask."""
    interfaces = host.facts.interfaces if host.facts else None
    if not isinstance(interfaces, Interfaces):
        return None
    masks = (one.netmask for one in interfaces.addresses if one.address == address and one.netmask)
    mask = next(masks, None)
    if mask is None:
        return None
    return str(network_of(f"{address.partition('%')[0]}/{prefix_length(mask)}"))


def _run(check: Check, derived: Derived) -> _CheckYield:
    """One check over all hosts; a crash is its outcome and nobody else's."""
    snapshot = derived.snapshot
    phase_reason = _phase_reason(check, snapshot)
    if phase_reason is None and not snapshot.reached and check.category != "access":
        phase_reason = Outcome.UNKNOWN, UNREACHED
    if phase_reason is not None:
        outcome, reason = phase_reason
        return _CheckYield(check, outcome, reason)
    hosts, gaps = _known(check, snapshot)
    findings: list[Finding] = []
    try:
        assert check.function is not None
        for result in check.function(View(derived, tuple(hosts))):
            if isinstance(result, Unjudged):
                gaps.append(result)
            else:
                findings.append(result)
    except Exception as error:  # noqa: BLE001 - a fault of one check must not silence the others
        return _CheckYield(check, Outcome.CRASH, f"{type(error).__name__}: {error}", findings)
    if findings:
        return _CheckYield(check, Outcome.FOUND, None, findings)
    absent = _nothing_to_judge(check, snapshot, hosts)
    if gaps or (absent is None and not snapshot.reached):  # whom one fault of access keeps away shows no other
        merged = _merged(gaps)
        told = "; ".join(f"{fold(gap.hosts)}: {gap.reason}" if gap.hosts else gap.reason for gap in merged)
        return _CheckYield(check, Outcome.UNKNOWN, told or UNREACHED, gaps=merged)
    if absent is not None:
        return _CheckYield(check, Outcome.NOT_APPLICABLE, absent)
    return _CheckYield(check, Outcome.PASS, looked_at=_looked_at(check, hosts))


def _looked_at(check: Check, hosts: list[Host]) -> str:
    """What a verdict rests on: ``interfaces, env of node[1-3]``."""
    what = ", ".join(need.replace("_", " ") for need in check.needs) or "what was seen"
    return f"{what} of {fold(host.name for host in hosts)}" if hosts else what


def _nothing_to_judge(check: Check, snapshot: Snapshot, hosts: list[Host]) -> str | None:
    """Why a check that found nothing had nothing to look at; None where it had."""
    if check.scope in ENGINES and not _in_scope(check, snapshot):
        return ENGINES[check.scope]
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
    return tuple(host for host in snapshot.hosts if check.scope in host.node.engines)


def _known(check: Check, snapshot: Snapshot) -> tuple[list[Host], list[Unjudged]]:
    """The hosts whose needed facts are known, and why the others can't be judged."""
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
        if reasons:
            gaps.append(Unjudged((host.name,), reasons[0]))
        else:
            hosts.append(host)
    return hosts, gaps


def _merged(gaps: Iterable[Unjudged]) -> tuple[Gap, ...]:
    """Gaps with the same reason made one."""
    by_reason = grouped((gap.reason, gap.hosts) for gap in gaps)
    return tuple(Gap(hosts=tuple(chain.from_iterable(hosts)), reason=reason) for reason, hosts in by_reason.items())


def attach_consequences(found: Iterable[tuple[Check, Finding]]) -> tuple[Diagnosis, ...]:
    """Diagnoses, gravest first; a finding that another one explains stands under it.

    A finding follows from another where that one's check names it in ``explains`` and they share a host, or where it
    is the all-reduce's or a log's: those suffer from every host's faults.
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
    mine, theirs = cause[1].facts.get("failed"), effect[1].facts.get("failed")
    if mine is not None and theirs is not None:
        # Both name the dials that failed. The effect blames the host that was not reached, and the cause may be the
        # other end: one that looked up a wrong address, say.
        return all(pair in mine for pair in theirs)
    return bool(set(cause[1].hosts) & set(effect[1].hosts)) and _same_processes(cause[1], effect[1])


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
