"""Judges a snapshot by all checks, and makes the report; describes each host in phrases, as ``-v`` shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from nccl_doctor.checks.allreduce.culprits import causes_from_output
from nccl_doctor.checks.view import Derived, FailedDials, UnnamedDials
from nccl_doctor.firewall.manager import managed_by
from nccl_doctor.judge import summary
from nccl_doctor.judge.run_check import CheckRun, attach_consequences, run_check
from nccl_doctor.judge.summary import NOT_SELECTED
from nccl_doctor.model.base import Skipped, Unknown
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.engine import placed
from nccl_doctor.model.finding import Severity
from nccl_doctor.model.register import Check, all_checks, entry
from nccl_doctor.model.report import CheckResult, Diagnosis, HostSummary, Outcome, Report
from nccl_doctor.snapshot.hosts import Host, HostFacts, Shown, Snapshot
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.network import Interfaces
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.snapshot.surroundings import PodFacts
from nccl_doctor.text.inet import network_of, prefix_length

Selection = Callable[[Check], bool]

SETTLED = ("interfaces", "environment", "software")
"""Categories of what does not change between the look at a host and the all-reduce: their checks know better than a
log, which guesses. A port may be taken in between."""


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
        run_check(check, derived) if selected(check) else CheckRun(check, Outcome.SKIP, NOT_SELECTED)
        for check in all_checks()
        if check.function is not None
    ]
    judged = _with_failed_dials_named(judged, snapshot)
    judged = _with_causes_from_output(judged, derived)
    diagnoses = attach_consequences((j.check, finding) for j in judged for finding in j.findings)
    diagnoses = tuple(_placed(diagnosis, snapshot.cluster) for diagnosis in diagnoses)
    judged = _with_spared_allreduce(judged, snapshot, diagnoses)
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


def _with_failed_dials_named(judged: list[CheckRun], snapshot: Snapshot) -> list[CheckRun]:
    """The same, where dials failed and what explains them could not be judged, with a finding about these."""
    mesh = snapshot.mesh
    grave = any((one.severity or j.check.severity) is Severity.ERROR for j in judged for one in j.findings)
    if grave or not (isinstance(mesh, Mesh) and mesh.failed):
        return judged
    derived = Derived(snapshot, UnnamedDials(snapshot))
    return [
        run_check(j.check, derived) if j.check.name == "port-unreachable" and j.reason != NOT_SELECTED else j
        for j in judged
    ]


def _with_spared_allreduce(
    judged: list[CheckRun], snapshot: Snapshot, diagnoses: Iterable[Diagnosis]
) -> list[CheckRun]:
    """An all-reduce that a fault spared is unknown where no diagnosis tells the fault: its check was left out."""
    smoke = snapshot.smoke
    explained = any(diagnosis.severity is Severity.ERROR for diagnosis in diagnoses)
    if explained or not (isinstance(smoke, Skipped) and smoke.hindered):
        return judged
    spared = Outcome.SKIP, smoke.reason
    return [replace(j, outcome=Outcome.UNKNOWN) if (j.outcome, j.reason) == spared else j for j in judged]


def _placed(diagnosis: Diagnosis, cluster: Cluster) -> Diagnosis:
    """Says for each command whether it is for a host's container; what needs root changes the machine around it."""
    fix = diagnosis.fix
    commands = placed(fix.commands, cluster, inside=not (fix.needs_root or entry(diagnosis.name).outside))
    return diagnosis.model_copy(update={"fix": fix.model_copy(update={"commands": commands})})


def _with_causes_from_output(judged: list[CheckRun], derived: Derived) -> list[CheckRun]:
    """The same with what the output of a failed all-reduce shows as its cause.

    A cause that a live check has found takes that as its consequence, as it takes the all-reduce's failure.
    """
    failed = {j.check.name for j in judged if j.check.in_output and j.findings}
    smoke = derived.snapshot.smoke
    if not failed or not isinstance(smoke, Smoke):
        return judged
    by_name = {j.check.name: replace(j) for j in judged}
    for name, finding in causes_from_output(smoke):
        check, live = entry(name), by_name.get(name)
        settled = check.category in SETTLED and check.function is not None
        if live is not None and (live.findings or (settled and run_check(check, derived).outcome is Outcome.PASS)):
            continue
        cause = replace(check, explains=(*check.explains, *failed))
        for run in by_name.values():
            if failed & set(run.check.explains):
                run.check = replace(run.check, explains=(*run.check.explains, name))
        by_name[name] = CheckRun(cause, Outcome.FOUND, None, [finding])
    return sorted(by_name.values(), key=lambda j: j.check.code)


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
        seen={} if host.facts is None else describe_host(host.facts, derived.kube.pods.get(host.name)),
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


_WORDS: dict[str, Callable[[Any], str | None]] = {"firewall": lambda it: managed_by(it) or "none"}
"""Of facts whose words need a room above the snapshot; the others' stand on their fields."""


def describe_host(facts: HostFacts, pod: PodFacts | None = None) -> dict[str, str]:
    """The words of each fact that is shown, by its label; what is not known says why; first what a pod is."""
    found = {} if pod is None else {"pod": _pod(pod)}
    for name, field in HostFacts.model_fields.items():
        for shown in (part for part in field.metadata if isinstance(part, Shown)):
            fact, words = getattr(facts, name), shown.words or _WORDS[name]
            text = f"unknown: {fact.reason}" if isinstance(fact, Unknown) else words(fact)
            found |= {} if text is None else {shown.label: text}
    return found


def _pod(pod: PodFacts) -> str:
    """Where it runs, and what it was given of the node."""
    shm = "" if pod.shm_bytes is None else f" of {pod.shm_bytes / 1e9:.3g} GB at most"
    added = "all" if pod.privileged else ", ".join(pod.capabilities)
    parts = (
        f"{pod.owner} on {pod.machine}" if pod.owner else f"on {pod.machine}",
        f"container {pod.container}",
        "the node's network" if pod.host_network else "",
        f"networks {', '.join(pod.networks)}" if pod.networks else "",
        ", ".join(f"{count} {name}" for name, count in pod.devices.items()),
        f"volume {pod.shm_volume} at /dev/shm{shm}" if pod.shm_volume else "",
        f"capabilities {added}" if added else "",
    )
    return "; ".join(part for part in parts if part)
