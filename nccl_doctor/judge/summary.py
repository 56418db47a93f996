"""Creates the report on a snapshot from its diagnoses, with status, summary rows, measurements, and next step.

This module belongs to ``judge`` because the ``report`` package may access the model but not the facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Literal

from nccl_doctor import __version__
from nccl_doctor.checks.allreduce.link import best, link, way
from nccl_doctor.checks.allreduce.own_diagnostics import diagnostics_words
from nccl_doctor.checks.rates import link_gbps
from nccl_doctor.firewall.manager import managed_by
from nccl_doctor.firewall.route_lookup import interface_of
from nccl_doctor.judge.remedies import can_be_run
from nccl_doctor.launch.line import LaunchLine, line_to_judge, own_lines, pasteable
from nccl_doctor.model.base import NOT_SELECTED, PENDING, Skipped, Unknown
from nccl_doctor.model.engine import ClusterSource, reaching
from nccl_doctor.model.finding import CheckResult, Consequence, Diagnosis, Outcome, Severity
from nccl_doctor.model.register import Check, entry
from nccl_doctor.model.report import (
    AllReduceReport,
    HostSummary,
    IsolationReport,
    LinkShare,
    MeshReport,
    RateReport,
    Report,
    SampleReport,
    gbps_span,
)
from nccl_doctor.model.report import Phase as Row
from nccl_doctor.model.report import PhaseOutcome as RowOutcome
from nccl_doctor.nccl.host_nccl import socket_interfaces
from nccl_doctor.servers.advertise import PROGRAMS
from nccl_doctor.snapshot.hosts import Host, Snapshot, gpu_counts, rank_counts, running_jobs
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.network import FirewallFacts, PortTrial
from nccl_doctor.snapshot.rate import NO_RATES, Rates
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.snapshot.system import PythonInfo, TorchInfo
from nccl_doctor.text import shell
from nccl_doctor.text.hostlist import figure, fold, grouped, plural
from nccl_doctor.text.inet import numeric


def report(
    snapshot: Snapshot,
    command: str,
    diagnoses: tuple[Diagnosis, ...],
    checks: tuple[CheckResult, ...],
    hosts: Sequence[HostSummary],
) -> Report:
    gaps = any(check.outcome in (Outcome.UNKNOWN, Outcome.CRASH) for check in checks)
    complete = not gaps and all(host.reached for host in hosts)
    made = Report(
        version=__version__,
        command=command,
        status=status(diagnoses),
        complete=complete,
        title=_title(snapshot),
        hosts=tuple(hosts),
        diagnoses=diagnoses,
        checks=checks,
        phases=tuple(rows(snapshot, diagnoses, checks, hosts)),
        mesh=_mesh(snapshot),
        rates=_rates(snapshot),
        smoke=_smoke(snapshot),
        load=snapshot.load,
        timings=snapshot.timings,
    )
    if command != "check":
        return made
    next_step = None if complete else _without(snapshot)
    if next_step is None:
        next_step = (
            _mending(snapshot, made) if made.status == "error" else _next_step(snapshot, made) if complete else None
        )
    return made.model_copy(update={"next_step": next_step})


def status(diagnoses: Iterable[Diagnosis]) -> Literal["ok", "warning", "error"]:
    """Return the worst severity among the diagnoses as a status; diagnoses of severity INFO count as ok."""
    words: tuple[Literal["ok", "warning", "error"], ...] = ("ok", "warning", "error")
    return words[max((diagnosis.severity.rank for diagnosis in diagnoses), default=0)]


def _listed_by(host: Host) -> str | None:
    """Return the interface that has a host's listed address.

    The result is None for a host that is listed by name, and for this machine.
    """
    address = numeric(host.node.address)
    if host.facts is None or host.node.local or address is None:
        return None
    return interface_of(host.facts, str(address))


def _title(snapshot: Snapshot) -> str:
    cluster = snapshot.cluster
    count = len(cluster.nodes)
    ranks = f", {plural(snapshot.smoke.world_size, 'rank')}" if isinstance(snapshot.smoke, Smoke) else ""
    sources = sorted(
        {text if text == "the line" else f"{text} in the environment" for text in cluster.variables.values()}
    )
    by = f", from {' and '.join(sources)}" if sources else ""
    if count == 1 and cluster.nodes[0].local:
        return f"this machine ({cluster.nodes[0].name}){ranks}, master port {cluster.master_port}{by}"
    first = cluster.nodes[0].name
    place = f"{cluster.master_addr}:{cluster.master_port}"
    master = place if first == cluster.master_addr else f"{first} ({place})"
    return f"{plural(count, 'host')}{ranks}, master {master}{by}"


def _next_step(snapshot: Snapshot, report: Report) -> str | None:
    """Return a suggestion for the next command after a check without errors."""
    if not reaching(snapshot.cluster.nodes).launches:
        return None
    if len(snapshot.cluster.nodes) == 1 and snapshot.cluster.nodes[0].local:
        return "For several machines:  nccl-doctor check hosts.yaml"
    words = " ".join(map(shell.word, ClusterSource(snapshot.cluster).check_words))
    if any("--no-smoke" not in what for what in report.left_out):
        return f"Full check:  nccl-doctor check {words}"
    line = line_to_judge(snapshot)
    if line is not None:
        return _start_with(snapshot, line)
    started = PROGRAMS[snapshot.cluster.engine].starts if snapshot.cluster.engine else "train.py"
    return f"To get the launch commands:  nccl-doctor launch {words}{started and f' -- {started}'}"


def _start_with(snapshot: Snapshot, line: LaunchLine) -> str:
    """Return the user's launch command, completed with the settings of each host."""
    if line.nested:
        return f"Start the job with:  {snapshot.cluster.line}"
    lines = pasteable(own_lines(line, snapshot.cluster, rank_counts(snapshot), gpu_counts(snapshot)))
    if lines[0].host is None:
        return f"Start the job with:  {lines[0].command}"
    return "\n".join(("Start the job with:", *(f"  {command.host}:  {command.command}" for command in lines)))


def _mending(snapshot: Snapshot, report: Report) -> str | None:
    """Return a line that suggests ``nccl-doctor fix`` if the command can fix at least one error, or else None."""
    errors = (error for error in report.diagnoses if error.severity is Severity.ERROR)
    if not reaching(snapshot.cluster.nodes).lasts or not any(can_be_run(error, snapshot) for error in errors):
        return None
    alone = len(snapshot.cluster.nodes) == 1 and snapshot.cluster.nodes[0].local
    words = () if alone else ClusterSource(snapshot.cluster).check_words
    return f"To fix it:  nccl-doctor fix {' '.join(map(shell.word, words))}".rstrip()


def _without(snapshot: Snapshot) -> str | None:
    """Return a line that suggests another check without the hosts that could not be reached."""
    cluster = snapshot.cluster
    away = [host.name for host in snapshot.hosts if host.facts is None]
    first = cluster.nodes[0]
    if not away or len(snapshot.reached) < 2 or (first.name in away and cluster.master_addr != first.address):
        return None
    if not reaching(cluster.nodes).lasts:
        return None
    left_out = cluster.origins.get("-x")
    words = list(ClusterSource(cluster).check_words)
    if left_out is not None and "-x" in words:
        del words[words.index("-x") : words.index("-x") + 2]
    names = ",".join(filter(None, (left_out, fold(away))))
    return f"Without {fold(away)}:  nccl-doctor check {' '.join(map(shell.word, (*words, '-x', names)))}"


def _mesh(snapshot: Snapshot) -> MeshReport | None:
    if not isinstance(snapshot.mesh, Mesh):
        return None
    mesh = snapshot.mesh
    choice = mesh.sample
    peers = len(choice.distances) - 2 if choice else 0
    sample = choice and SampleReport(random_peers=peers, distances=choice.distances, dialled_by_all=choice.by_all)
    same = {name: getattr(mesh, name) for name in ("hosts", "pairs", "tested", "ports", "failed")}
    return MeshReport(**same, sample=sample)


def _rates(snapshot: Snapshot) -> tuple[RateReport, ...] | None:
    """Return the final measurement of each pair of hosts, sorted by rail, sender, and receiver."""
    rates = snapshot.rates
    if not isinstance(rates, Rates):
        return None
    place = {name: rank for rank, name in enumerate(rates.hosts)}
    measurements = sorted(rates.final.values(), key=lambda rate: (rate.rail, place[rate.src], place[rate.dst]))
    same = ("src", "dst", "interface", "rtt_us", "retransmits", "streams", "limited", "alone")
    return tuple(
        RateReport(
            **{name: getattr(rate, name) for name in same},
            gbps=round(rate.gbps, 6),
            of_link=None if (speed := link_gbps(rates, rate)) is None else round(rate.gbps / speed, 3),
        )
        for rate in measurements
    )


def _smoke(snapshot: Snapshot) -> AllReduceReport | None:
    if not isinstance(snapshot.smoke, Smoke):
        return None
    smoke = snapshot.smoke
    speed = link(snapshot)
    same = ("backend", "reason", "world_size", "outcome", "ranks", "rings", "trees", "rdma_grown")
    return AllReduceReport(
        **{name: getattr(smoke, name) for name in same},
        ok=smoke.outcome == "ok",
        diagnostics=diagnostics_words(smoke),
        # a single rank sends nothing, and would measure only its own call
        sizes=smoke.sizes if smoke.world_size > 1 else (),
        link=speed and LinkShare(**asdict(speed), share=best(smoke) / speed.gb_per_s),
        isolation=smoke.isolation if isinstance(smoke.isolation, IsolationReport) else None,
    )


ROWS: dict[str, tuple[str, ...]] = {
    "access": ("access",),
    "software": ("software", "rdma"),
    "GPUs": (),
    "interfaces": ("interfaces", "environment"),
    "ports": ("ports",),
    "firewall": (),
    "rate": (),
    "processes": ("processes",),
    "limits": (),
    "all-reduce": ("allreduce",),
}
"""Rows of the summary, each with categories of checks; a check can select another row (``Check.row``)."""

NAMED_BY_TEXT = ("access", "firewall", "all-reduce")
"""Rows whose text names the faults."""
OUTCOMES: dict[Severity, RowOutcome] = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "ok"}


def decided(report: Report) -> tuple[Row, ...]:
    """Return the rows in which no check is pending, for display while a run is in progress."""
    waiting = {row_of(entry(check.name)) for check in report.checks if check.reason == PENDING}
    return tuple(row for row in report.phases if row.name not in waiting)


def row_of(check: Check) -> str:
    """Return the name of a check's row, which is set by the check itself or else by the check's category."""
    return check.row or next((row for row, categories in ROWS.items() if check.category in categories), check.category)


def rows(
    snapshot: Snapshot, diagnoses: Sequence[Diagnosis], checks: Sequence[CheckResult], hosts: Sequence[HostSummary]
) -> Iterator[Row]:
    """Yield the rows that contain selected checks, in display order."""
    texts = _Texts(snapshot, hosts)
    by_code = grouped((diagnosis.code, diagnosis) for diagnosis in diagnoses)
    consequences = {effect.code for diagnosis in diagnoses for effect in diagnosis.explains}
    by_row = grouped((row_of(entry(check.name)), check) for check in checks)
    for row in ROWS:
        of_it = by_row.get(row, ())
        mine = [check for check in of_it if check.reason != NOT_SELECTED]
        hits = [check for check in mine if check.outcome is Outcome.FOUND]
        if not mine or (row == "rate" and snapshot.rates == NO_RATES and not hits):
            continue
        gaps = [check for check in mine if check.outcome in (Outcome.UNKNOWN, Outcome.CRASH)]
        text = texts.of(row)
        if row == "ports" and isinstance(snapshot.mesh, Mesh) and snapshot.mesh.failed:
            # Also if a firewall's rule explains it, which the row below says.
            yield Row(name=row, outcome="error", text=text)
        elif hits:
            data = [each for check in hits for each in by_code.get(check.code, ())]
            codes = {check.code for check in hits}  # consequences count with the severity of their cause
            causes = [each for each in diagnoses if codes & {effect.code for effect in each.explains}]
            gravest = max((each.severity for each in data or causes), key=lambda s: s.rank, default=Severity.ERROR)
            follows = all(check.code in consequences for check in hits)
            names = ", ".join(dict.fromkeys(each.name for each in causes))
            faults = [effect for each in causes for effect in each.explains if effect.code in codes]
            why = f"{_effects(row, faults) or text} (caused by {names})" if follows else _why(row, text, data, gravest)
            yield Row(name=row, outcome=OUTCOMES[gravest], text=why or text)
        elif gaps:
            yield Row(name=row, outcome="unknown", text=gaps[0].reason or "")
        elif row == "ports" and isinstance(snapshot.mesh, Skipped) and not snapshot.mesh.hindered and len(hosts) > 1:
            yield Row(name=row, outcome="skip", text=snapshot.mesh.reason)
        elif not any(check.outcome is Outcome.PASS for check in mine):
            skipped = [check for check in mine if check.outcome is Outcome.SKIP]
            reason = (skipped or mine)[0].reason or ""
            cpus = row == "GPUs" and all(facts.gpus == () for facts in texts.facts)
            text = f"{reason}: CPU only, over gloo" if cpus and not skipped else reason
            yield Row(name=row, outcome="skip" if skipped else "n/a", text=text)
        else:
            passed = (entry(check.name).row_words for check in mine if check.outcome is Outcome.PASS)
            parts = (text, *(passed if text else ()), texts.coverage)
            unread = row == "firewall" and not any(isinstance(data.firewall, FirewallFacts) for data in texts.facts)
            yield Row(name=row, outcome="skip" if unread else "ok", text="; ".join(filter(None, parts)))


def _why(row: str, text: str, diagnoses: Sequence[Diagnosis], gravest: Severity) -> str:
    """Return a phrase for a row's faults.

    The phrase is empty if the row's text already names the faults, or if all diagnoses have the severity INFO.
    """
    if row in NAMED_BY_TEXT or gravest is Severity.INFO:
        return ""
    grave = [fault for fault in diagnoses if fault.severity is not Severity.INFO and not entry(fault.name).row_suffices]
    phrases = [fault.details.phrase for fault in grave if fault.details.phrase]
    faults = _phrases([fault for fault in grave if not fault.details.phrase])
    stays = row == "processes" or (row == "rate" and not phrases)
    return "; ".join(filter(None, (text if stays else "", *phrases, *faults)))


def _effects(row: str, effects: Sequence[Consequence]) -> str:
    """Return a phrase for the consequences in a row, or an empty string if the row's text already names them."""
    return "" if row in NAMED_BY_TEXT else "; ".join(_phrases(effects))


def _phrases(faults: Sequence[Diagnosis | Consequence]) -> Iterator[str]:
    hosts = grouped((entry(fault.name).phrase, fault.hosts) for fault in faults)
    return (f"{name}{f' on {fold(chain(*names))}' if any(names) else ''}" for name, names in hosts.items())


class _Texts:
    """Composes the text of each row from the hosts' facts."""

    def __init__(self, snapshot: Snapshot, hosts: Sequence[HostSummary]) -> None:
        self._snapshot, self._hosts = snapshot, hosts
        self.facts = [host.facts for host in snapshot.hosts if host.facts is not None]

    @property
    def coverage(self) -> str:
        """Text that states how many hosts were checked; empty if all hosts were checked."""
        hosts = self._snapshot.hosts
        return "" if len(self.facts) == len(hosts) else f"{len(self.facts)} of {len(hosts)} hosts checked"

    def of(self, row: str) -> str:
        """Return the text for a row, or an empty string if the row has no text."""
        method = getattr(self, f"_{row.replace('-', '').lower()}", None)
        return method() if method else ""

    def _access(self) -> str:
        hosts = self._snapshot.hosts
        away = [host.name for host in hosts if host.facts is None]
        if away:
            return f"{len(hosts) - len(away)} of {len(hosts)} hosts answered; no answer from {fold(away)}"
        if len(hosts) == 1 and hosts[0].node.local:
            return "this machine, without SSH"
        return f"{plural(len(hosts), 'host')} answered in {self._snapshot.timings.get('connect', 0.0):.1f} s"

    def _software(self) -> str:
        torch = [facts.torch for facts in self.facts if isinstance(facts.torch, TorchInfo)]
        versions = {
            "python": {facts.python.version for facts in self.facts if isinstance(facts.python, PythonInfo)},
            "torch": {info.version for info in torch},
            "NCCL": {info.nccl for info in torch if info.nccl},
        }
        return ", ".join(f"{name} {' / '.join(sorted(values)[:3])}" for name, values in versions.items() if values)

    def _gpus(self) -> str:
        """Return the number and models of the GPUs, grouped by hosts that have the same GPUs."""
        counts = []
        for host in self._snapshot.hosts:
            gpus = host.facts.gpus if host.facts else ()
            if not isinstance(gpus, Unknown) and gpus:
                count = Counter(gpu.name.removeprefix("NVIDIA ") for gpu in gpus)
                counts.append((", ".join(f"{n} {name}" for name, n in count.items()), host.name))
        kinds = grouped(counts).items()
        return "; ".join(f"{what} on {'each of ' if len(on) > 1 else ''}{fold(on)}" for what, on in kinds)

    def _interfaces(self) -> str:
        listed = {host.name: _listed_by(host) for host in self._snapshot.reached}
        data = {host.name: tuple(nic.name for nic in socket_interfaces(host)) for host in self._snapshot.reached}
        chosen = grouped(
            ((used.name, listed.get(host.name), data.get(host.name, ())), host.name)
            for host in self._hosts
            if (used := host.nccl_interface)
        )
        return "; ".join(
            f"NCCL will use {fold(dict.fromkeys((name, *others)))} on {fold(hosts)}"
            + (f", listed by {by}" if by not in (None, name) else "")
            for (name, by, others), hosts in chosen.items()
        )

    def _ports(self) -> str:
        mesh = self._snapshot.mesh
        if not isinstance(mesh, Mesh):
            return ""
        if mesh.failed:
            # a host that can't dial itself is not a pair
            bad = [dst for src, dst in mesh.failures if src != dst]
            if not bad:
                hosts = sorted({dst for _, dst in mesh.failures})
                return f"{fold(hosts)} can't reach {'its own address' if len(hosts) == 1 else 'their own addresses'}"
            count = mesh.pairs if mesh.sample is None else mesh.tested
            return f"{len(bad)} of {count} pairs failed, all towards {fold(sorted(set(bad)))}"
        share = "" if mesh.tested == mesh.pairs else f" ({100 * mesh.tested / mesh.pairs:.2g}%)"
        if share and mesh.sample is not None:
            peers = f"{len(mesh.sample.distances) - 2} random peers per host"
            share = f"{share[:-1]}: the master and the ring both ways, {peers})"
        port = self._snapshot.cluster.master_port
        master = next((mesh.ports[host.name] for host in self._snapshot.hosts[:1] if host.name in mesh.ports), ())
        others = sorted({sum(number != port for number in ports) for ports in mesh.ports.values()})
        most = f"{others[0]} to {others[-1]}" if len(others) > 1 else f"{others[0] if others else 0}"
        what = f"{'master port and ' if port in master else ''}{most} ephemeral ports each"
        held = "" if port in master else f"; master port {port} was not tested"
        return f"{mesh.tested} of {mesh.pairs} pairs{share}, {what}{held}"

    def _rate(self) -> str:
        rates = self._snapshot.rates
        if not isinstance(rates, Rates):
            return ""
        figures = list(rates.final.values())
        share = "" if rates.whole else f" of {plural(len(rates.hosts), 'host')}, a sample,"
        held = sum(rate.limited is not None for rate in figures)
        limit = f"; {held} limited by the hosts' CPUs" if held else ""
        rails = len({rate.rail for rate in figures})
        by = f" by {plural(rails, 'rail')}" if rails > 1 else ""
        pairs = len({(rate.src, rate.dst) for rate in figures})
        return f"{plural(pairs, 'pair')}{share}{by} at {gbps_span(rate.gbps for rate in figures)}{limit}"

    def _firewall(self) -> str:
        firewalls = [(host.facts.firewall, host.name) for host in self._snapshot.hosts if host.facts]
        managed = grouped((managed_by(rules), name) for rules, name in firewalls if isinstance(rules, FirewallFacts))
        hidden = [name for rules, name in firewalls if not isinstance(rules, FirewallFacts)]
        free = managed.pop("", [])
        parts = [f"{name} on {fold(hosts)}" for name, hosts in managed.items()]
        if hidden:
            parts.append(f"rules not readable on {fold(hidden)}")
        if free:
            parts.append("none elsewhere" if parts else "no rules" if self.coverage else "no rules on any host")
        return "; ".join(parts)

    def _processes(self) -> str:
        master = self._snapshot.hosts[0].facts
        trial = master.master_port if master else None
        port = f"port {trial.port} is {'free' if trial.free else 'busy'}" if isinstance(trial, PortTrial) else ""
        return "; ".join(filter(None, (port, *self._running_jobs())))

    def _running_jobs(self) -> Iterator[str]:
        """Yield a phrase for each running job of any user; ranks with the same master port count as one job."""
        facts = {host.name: host.facts for host in self._snapshot.reached if host.facts is not None}
        for port, hosts in running_jobs(facts).items():
            yield f"a job is running on {fold(hosts)}{'' if port is None else f', port {port}'}"

    def _allreduce(self) -> str:
        smoke = self._snapshot.smoke
        if not isinstance(smoke, Smoke):
            return ""
        if smoke.outcome != "ok":
            ends = {"failed": "failed", "timeout": f"not finished within {smoke.deadline_s:.0f} s"}
            return ends.get(smoke.outcome, "wrong result")
        how = f"NCCL over {way(smoke)}" if smoke.backend == "nccl" and way(smoke) else smoke.backend
        ranks, rate, speed = plural(smoke.world_size, "rank"), best(smoke), link(self._snapshot)
        if smoke.world_size == 1:
            return f"{ranks} over {how}, sums correct"  # nothing was sent
        if speed is None:
            most = f"{figure(rate)} GB/s" if rate >= 0.1 else f"{figure(rate * 1e3)} MB/s"
            return f"{ranks} over {how}, sums correct, up to {most}"
        share = f"{100 * rate / speed.gb_per_s:.0f}% of {speed.name}"
        return f"{ranks} over {how}, {figure(rate)} of {figure(speed.gb_per_s, 3)} GB/s ({share})"
