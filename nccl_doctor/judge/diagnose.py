"""Runs all checks on a snapshot, creates the report, and describes each host for ``-v``.

A check returns findings or the reason why the check could not evaluate the facts. Consequences of a finding are listed
below the finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from nccl_doctor.checks.allreduce.own_diagnostics import findings_of_nccl
from nccl_doctor.checks.allreduce.symptoms import causes_from_output
from nccl_doctor.checks.allreduce.virtual_memory import with_limits
from nccl_doctor.checks.rates import suspects
from nccl_doctor.checks.view import PHASES, Derived, FailedDials, UnnamedDials, View
from nccl_doctor.firewall.manager import managed_by
from nccl_doctor.judge import summary
from nccl_doctor.judge.attribution import attach_consequences
from nccl_doctor.model.base import NOT_SELECTED, Skipped, Subjects, Unknown, marks, unknown
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.engine import engines, engines_of, placed
from nccl_doctor.model.finding import CheckResult, Diagnosis, Finding, Gap, Outcome, Severity
from nccl_doctor.model.questions import FaultyGroup, OtherNetworks, Question, SlowRails
from nccl_doctor.model.register import Absent, Check, Unjudged, all_checks, entry
from nccl_doctor.model.report import HostSummary, RdmaAnswer, Report
from nccl_doctor.nccl.cluster_nccl import rdma_answers
from nccl_doctor.snapshot.hosts import NO_GPU, Host, HostFacts, Shown, Snapshot, rocm_gpus
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.network import Interfaces
from nccl_doctor.snapshot.rate import Rates
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.snapshot.surroundings import PodFacts
from nccl_doctor.text.hostlist import fold, grouped
from nccl_doctor.text.inet import network_of, prefix_length

Selection = Callable[[Check], bool]

SETTLED = ("interfaces", "environment", "software")
"""Categories of checks whose facts do not change between data collection and the all-reduce.

A check in these categories that finds no fault takes precedence over messages in the output of the all-reduce. The
"ports" category is not included, because a port might become occupied before the all-reduce.
"""


class Judge:
    """Evaluates the snapshot of a run each time a phase has added data.

    The causes of failed connections are cached as long as the mesh does not change.

    Args:
        isolate: whether to repeat a failed all-reduce in groups of hosts if the cause of the failure is unknown.
    """

    def __init__(self, command: str, selected: Selection = lambda _check: True, *, isolate: bool = False) -> None:
        self._command, self._selected, self._isolate = command, selected, isolate
        self._mesh: object = None
        self._dials: FailedDials | None = None

    def report(self, snapshot: Snapshot) -> Report:
        return judge(snapshot, self._command, self._selected, self._known(snapshot))

    def questions(self, snapshot: Snapshot) -> tuple[Question, ...]:
        """Return questions for further tests, based on the results of connection tests, rate tests or all-reduce."""
        if isinstance(snapshot.smoke, Smoke):
            wanted = self._isolate and snapshot.smoke.outcome in ("failed", "timeout")
            unexplained = wanted and any(item.details.is_unexplained for item in self.report(snapshot).diagnoses)
            return (FaultyGroup(),) if unexplained else ()
        if isinstance(snapshot.rates, Rates):
            slow = tuple((item.src, item.dst, item.rail) for item in suspects(snapshot.rates))
            return (SlowRails(slow),) if slow else ()
        dials = self._known(snapshot)
        return (OtherNetworks(dials.unexplained),) if dials is not None and dials.unexplained else ()

    def _known(self, snapshot: Snapshot) -> FailedDials | None:
        if self._mesh is not snapshot.mesh:
            self._mesh = snapshot.mesh
            self._dials = FailedDials(snapshot) if isinstance(snapshot.mesh, Mesh) else None
        return self._dials


def judge(
    snapshot: Snapshot, command: str, selected: Selection = lambda _check: True, dials: FailedDials | None = None
) -> Report:
    """Return the report on a snapshot; ``dials`` are the failed connections with their causes, if already known."""
    derived = Derived(snapshot, dials)
    judged = [
        run_check(check, derived) if selected(check) else CheckRun(check, Outcome.SKIP, NOT_SELECTED)
        for check in all_checks()
        if check.function is not None
    ]
    for correct in BEFORE_CAUSES:
        judged = correct(judged, derived)
    diagnoses = attach_consequences((j.check, finding) for j in judged for finding in j.findings)
    diagnoses = tuple(_placed(diagnosis, snapshot.cluster) for diagnosis in diagnoses)
    for settle in AFTER_CAUSES:
        judged = settle(judged, snapshot, diagnoses)
    devices = rdma_answers(derived.nccl.rdma)
    hosts = [_host(host, derived, devices.get(host.name, ())) for host in snapshot.hosts]
    return summary.report(snapshot, command, diagnoses, tuple(j.result for j in judged), hosts)


def _with_failed_dials_named(judged: list[CheckRun], derived: Derived) -> list[CheckRun]:
    """Add a finding for failed connections that no check explains, unless another finding is an error."""
    snapshot, mesh = derived.snapshot, derived.snapshot.mesh
    grave = any((finding.severity or j.check.severity) is Severity.ERROR for j in judged for finding in j.findings)
    if grave or not (isinstance(mesh, Mesh) and mesh.failed):
        return judged
    unnamed = Derived(snapshot, UnnamedDials(snapshot))
    again = [j.check.name == "port-unreachable" and j.reason != NOT_SELECTED for j in judged]
    return [run_check(j.check, unnamed) if anew else j for j, anew in zip(judged, again, strict=True)]


def _with_spared_allreduce(
    judged: list[CheckRun], snapshot: Snapshot, diagnoses: Iterable[Diagnosis]
) -> list[CheckRun]:
    """Report a skipped all-reduce as unknown if no diagnosis explains why it was skipped."""
    smoke = snapshot.smoke
    explained = any(diagnosis.severity is Severity.ERROR for diagnosis in diagnoses)
    if explained or not (isinstance(smoke, Skipped) and smoke.hindered):
        return judged
    spared = Outcome.SKIP, smoke.reason
    return [replace(j, outcome=Outcome.UNKNOWN) if (j.outcome, j.reason) == spared else j for j in judged]


def _without_hidden_facts(
    judged: list[CheckRun], _snapshot: Snapshot, _diagnoses: Iterable[Diagnosis]
) -> list[CheckRun]:
    return [_without_hidden(run, judged) for run in judged]


def _without_hidden(run: CheckRun, judged: Iterable[CheckRun]) -> CheckRun:
    """Mark a check as skipped if other checks' findings explain the missing facts on every affected host."""
    hiding = [j for j in judged if j.findings and not set(j.check.hides).isdisjoint(run.check.needs)]
    hidden = {host for j in hiding for finding in j.findings for host in finding.hosts}
    covered = all(gap.hosts and hidden.issuperset(gap.hosts) for gap in run.gaps)
    if not (hiding and covered and run.gaps):
        return run
    reason = f"can't be judged because of {', '.join(j.check.name for j in hiding)}"
    return replace(run, outcome=Outcome.SKIP, reason=reason, gaps=())


def _placed(diagnosis: Diagnosis, cluster: Cluster) -> Diagnosis:
    """Mark each command for a container as running in the container, or on the host if the command needs root."""
    fix = diagnosis.fix
    commands = placed(fix.commands, cluster, inside=not (fix.needs_root or entry(diagnosis.name).outside))
    return diagnosis.model_copy(update={"fix": fix.model_copy(update={"commands": commands})})


def _with_causes_from_output(judged: list[CheckRun], derived: Derived) -> list[CheckRun]:
    smoke = derived.snapshot.smoke
    if not isinstance(smoke, Smoke):
        return judged
    if not any(j.check.in_output and j.findings for j in judged):
        return _with_findings_of_nccl(judged, smoke)
    by_name = {j.check.name: j for j in judged}
    passed = {name for name, j in by_name.items() if j.outcome is Outcome.PASS}
    for name, cause in causes_from_output(smoke, passed):
        finding = with_limits(cause, derived.snapshot) if name == "out-of-memory" else cause
        check, live = entry(name), by_name.get(name)
        settled = check.category in SETTLED and check.function is not None
        if live is not None and live.findings:
            live.findings = [_confirmed(live_finding, finding, check) for live_finding in live.findings]
        elif live is None or not (settled and run_check(check, derived).outcome is Outcome.PASS):
            by_name[name] = CheckRun(check, Outcome.FOUND, None, [finding])
    return sorted(by_name.values(), key=lambda j: j.check.code)


def _with_findings_of_nccl(judged: list[CheckRun], smoke: Smoke) -> list[CheckRun]:
    """Add the findings of NCCL's own diagnostics that no check reports."""
    by_name = {j.check.name: j for j in judged}
    for name, finding in findings_of_nccl(smoke):
        if not ((live := by_name.get(name)) and (live.findings or live.reason == NOT_SELECTED)):
            by_name[name] = CheckRun(entry(name), Outcome.FOUND, None, [finding])
    return sorted(by_name.values(), key=lambda j: j.check.code)


BEFORE_CAUSES = (_with_failed_dials_named, _with_causes_from_output)
"""Functions that correct the checks' findings, in this order, before consequences are attached to their causes."""

AFTER_CAUSES = (_with_spared_allreduce, _without_hidden_facts)
"""Functions that correct the checks' outcomes, in this order, once the causes are known."""


def _confirmed(finding: Finding, words: Finding, check: Check) -> Finding:
    """Return a finding, with additional effects if the ranks' output shows the same fault on a host of the finding."""
    if set(finding.hosts).isdisjoint(words.hosts):
        return finding
    effects = check.explains if finding.explains is None else finding.explains
    return finding.model_copy(update={"explains": (*effects, *(words.explains or ()))})


def _host(host: Host, derived: Derived, rdma: tuple[RdmaAnswer, ...]) -> HostSummary:
    node = host.node
    chosen = derived.nccl.interfaces.get(host.name)
    return HostSummary(
        name=node.name,
        address=node.address,
        node_rank=node.node_rank,
        reached=host.facts is not None,
        nccl_interface=chosen,
        network=chosen and _network(host, chosen.address),
        rdma=rdma,
        seen={} if host.facts is None else describe_host(host.facts, derived.kube.pods.get(host.name)),
        spent=derived.snapshot.spent.get(host.name, {}),
    )


def _network(host: Host, address: str) -> str | None:
    """Return the network of a host's address, or None if the netmask is unknown."""
    interfaces = host.facts.interfaces if host.facts else None
    addresses = interfaces.addresses if isinstance(interfaces, Interfaces) else ()
    mask = next((item.netmask for item in addresses if item.address == address and item.netmask), None)
    return mask and str(network_of(f"{address.partition('%')[0]}/{prefix_length(mask)}"))


_WORDS: dict[str, Callable[[Any], str | None]] = {"firewall": lambda it: managed_by(it) or "none"}
"""Functions that describe facts and need modules that the ``snapshot`` package can't import."""


def describe_host(facts: HostFacts, pod: PodFacts | None = None) -> dict[str, str]:
    """Return a phrase for each displayed fact, keyed by label; the description of the pod, if any, comes first."""
    phrases = {} if pod is None else {"pod": _pod(pod)}
    for name, declared in HostFacts.model_fields.items():
        for shown in (part for part in declared.metadata if isinstance(part, Shown)):
            fact, words = getattr(facts, name), shown.words or _WORDS[name]
            text = f"unknown: {fact.reason}" if isinstance(fact, Unknown) else words(fact)
            phrases |= {} if text is None else {shown.label: text}
    return phrases


def _pod(pod: PodFacts) -> str:
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


UNREACHED = "no host was reached"


@dataclass
class CheckRun:
    """The outcome of a check, the reason for the outcome, and the findings."""

    check: Check
    outcome: Outcome
    reason: str | None = None
    findings: list[Finding] = field(default_factory=list)
    looked_at: str | None = None
    gaps: tuple[Gap, ...] = ()

    @property
    def result(self) -> CheckResult:
        fields = {name: getattr(self, name) for name in ("outcome", "reason", "looked_at", "gaps")}
        return CheckResult(code=self.check.code, name=self.check.name, category=self.check.category, **fields)


def run_check(check: Check, derived: Derived) -> CheckRun:
    """Run a check on all hosts; if the check crashes, no other check is affected."""
    snapshot = derived.snapshot
    phases = [getattr(snapshot, need) for need in check.needs if need in PHASES]
    away = next((phase for phase in phases if isinstance(phase, (Skipped, Unknown))), None)
    if away is None and not snapshot.reached and check.category != "access":
        away = unknown(UNREACHED)
    if away is not None:
        return CheckRun(check, Outcome.SKIP if isinstance(away, Skipped) else Outcome.UNKNOWN, away.reason)
    hosts: list[Host] = []
    gaps: list[Unjudged] = []
    findings: list[Finding] = []
    absent: str | None = None
    lacking = Outcome.NOT_APPLICABLE
    try:
        hosts, gaps = _known(check, derived)
        assert check.function is not None
        for result in check.function(View(derived, tuple(hosts))):
            if isinstance(result, Unjudged):
                gaps.append(result)
            elif isinstance(result, Absent):
                absent = result.reason
                lacking = Outcome.SKIP if result.skipped else lacking
            else:
                findings.append(result)
    except Exception as error:  # noqa: BLE001 - a fault of one check must not silence the others
        return CheckRun(check, Outcome.CRASH, f"{type(error).__name__}: {error}", findings)
    if findings:
        return CheckRun(check, Outcome.FOUND, None, findings)
    absent = absent or _nothing_to_judge(check, snapshot, hosts)
    if gaps or (absent is None and not snapshot.reached):  # hosts that all share one access fault show no other
        by_reason = grouped((gap.reason, gap.hosts) for gap in gaps)
        merged = tuple(Gap(hosts=tuple(chain(*hosts)), reason=reason) for reason, hosts in by_reason.items())
        reasons = "; ".join(f"{fold(gap.hosts)}: {gap.reason}" if gap.hosts else gap.reason for gap in merged)
        return CheckRun(check, Outcome.UNKNOWN, reasons or UNREACHED, gaps=merged)
    if absent is not None:
        return CheckRun(check, lacking, absent)
    what = ", ".join(need.replace("_", " ") for need in check.needs) or "what was seen"
    return CheckRun(check, Outcome.PASS, looked_at=f"{what} of {fold(h.name for h in hosts)}" if hosts else what)


def _nothing_to_judge(check: Check, snapshot: Snapshot, hosts: list[Host]) -> str | None:
    """Return why a check without findings had nothing to examine, or None if the check examined something."""
    engine = next((engine for engine in engines() if engine.name == check.scope), None)
    if engine is not None and not _in_scope(check, snapshot):
        return engine.absent
    facts = [host.facts for host in hosts if host.facts is not None]
    subjects = marks(HostFacts, Subjects)
    lacking = (need for need in check.needs if need in subjects and facts)
    subject = next((subjects[need] for need in lacking if not any(getattr(item, need) for item in facts)), None)
    if subject is NO_GPU and any(map(rocm_gpus, facts)):
        return None if "gpu_driver" in check.also else "no NVIDIA GPU on any host"
    return subject and subject.absent


def _in_scope(check: Check, snapshot: Snapshot) -> tuple[Host, ...]:
    """Return the hosts that a check examines, including hosts that were not reached."""
    if check.scope in ("all", "master"):
        return snapshot.hosts[:1] if check.scope == "master" else snapshot.hosts
    return tuple(host for host in snapshot.hosts if check.scope in {engine.name for engine in engines_of(host.node)})


def _known(check: Check, derived: Derived) -> tuple[list[Host], list[Unjudged]]:
    """Return the hosts whose required facts are known, and the reasons why other hosts can't be examined."""
    snapshot = derived.snapshot
    untold = derived.nccl.unknown if check.needs_nccl else {}
    hosts: list[Host] = []
    gaps: list[Unjudged] = []
    for host in _in_scope(check, snapshot):
        if host.facts is None:
            # Its absence is already a diagnosis; it is a gap only if the check is about this host alone.
            if check.scope == "master" and check.needs:
                gaps.append(Unjudged((host.name,), "not reached"))
            continue
        missing = [getattr(host.facts, need) for need in check.needs if need not in PHASES]
        reasons = [value.reason for value in missing if isinstance(value, Unknown)]
        reasons += [untold[host.name]] if host.name in untold else []
        if reasons:
            gaps.append(Unjudged((host.name,), reasons[0]))
        else:
            hosts.append(host)
            misfits = (f"{need}, {host.facts.misfits[need]}" for need in check.needs if need in host.facts.misfits)
            gaps += (Unjudged((host.name,), words) for words in misfits)
    return hosts, gaps
