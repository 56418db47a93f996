"""A snapshot and its diagnoses as a report: status, phases, measurements and what to do next.

Stands beside diagnose.py because the report layer knows the model alone and no facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Literal

from nccl_doctor import __version__
from nccl_doctor.checks.allreduce.link import best, link
from nccl_doctor.judge.rows import phases
from nccl_doctor.model.cluster import ENVIRONMENT, Cluster
from nccl_doctor.model.finding import Severity
from nccl_doctor.model.measured import (
    AllReduceReport,
    FailedDial,
    IsolationReport,
    LinkShare,
    MeshReport,
    RankReport,
    SampleReport,
    SizeReport,
)
from nccl_doctor.model.report import CheckResult, Diagnosis, HostSummary, Outcome, Report
from nccl_doctor.model.source import ClusterSource
from nccl_doctor.snapshot import (
    Isolation,
    Mesh,
    Smoke,
    Snapshot,
)
from nccl_doctor.text import shell
from nccl_doctor.text.hostlist import plural


def report(
    snapshot: Snapshot,
    command: str,
    diagnoses: tuple[Diagnosis, ...],
    checks: tuple[CheckResult, ...],
    hosts: Sequence[HostSummary],
) -> Report:
    """The whole report of one snapshot."""
    gaps = any(check.outcome in (Outcome.UNKNOWN, Outcome.CRASH) for check in checks)
    complete = not gaps and all(host.reached for host in hosts)
    return Report(
        version=__version__,
        command=command,
        status=status(diagnoses),
        complete=complete,
        title=_title(snapshot),
        hosts=tuple(hosts),
        diagnoses=diagnoses,
        checks=checks,
        phases=tuple(phases(snapshot, diagnoses, checks, hosts)),
        mesh=_mesh(snapshot),
        smoke=_smoke(snapshot),
        load=snapshot.load,
        timings=snapshot.timings,
        next_step=_next_step(snapshot, diagnoses) if complete and command == "check" else None,
    )


def status(diagnoses: Iterable[Diagnosis]) -> Literal["ok", "warning", "error"]:
    """The gravest diagnosis; what is merely worth knowing leaves it at ok."""
    gravest = max((diagnosis.severity.rank for diagnosis in diagnoses), default=0)
    words: tuple[Literal["ok", "warning", "error"], ...] = ("ok", "warning", "error")
    return words[gravest]


def _title(snapshot: Snapshot) -> str:
    cluster = snapshot.cluster
    count = len(cluster.nodes)
    ranks = f", {plural(snapshot.smoke.world_size, 'rank')}" if isinstance(snapshot.smoke, Smoke) else ""
    if count == 1 and cluster.nodes[0].local:
        return f"this machine ({cluster.nodes[0].name}){ranks}, master port {cluster.master_port}{_from(cluster)}"
    first = cluster.nodes[0].name
    place = f"{cluster.master_addr}:{cluster.master_port}"
    master = place if first == cluster.master_addr else f"{first} ({place})"
    return f"{plural(count, 'host')}{ranks}, master {master}{_from(cluster)}"


def _from(cluster: Cluster) -> str:
    """Which variables of the environment say where the master is."""
    origins = (cluster.origins.get(name, "") for name in ("master_addr", "master_port"))
    names = [origin.partition(" ")[0] for origin in origins if origin.endswith(f"({ENVIRONMENT})")]
    return f", by {' and '.join(names)} {ENVIRONMENT}" if names else ""


def _next_step(snapshot: Snapshot, diagnoses: Sequence[Diagnosis]) -> str | None:
    """What to run next when nothing stands in the way."""
    if any(diagnosis.severity is Severity.ERROR for diagnosis in diagnoses):
        return None
    if "kube" in snapshot.cluster.access:  # its pods have a command of their own
        return None
    if len(snapshot.cluster.nodes) == 1 and snapshot.cluster.nodes[0].local:
        return "Several machines:  nccl-doctor check hosts.yaml"
    words = " ".join(map(shell.word, ClusterSource(snapshot.cluster).arguments))
    return f"Start with:  nccl-doctor launch {words} -- train.py"


def _mesh(snapshot: Snapshot) -> MeshReport | None:
    if not isinstance(snapshot.mesh, Mesh):
        return None
    mesh = snapshot.mesh
    failed = tuple(FailedDial.model_validate(dial.model_dump(mode="json")) for dial in mesh.failed)
    found = mesh.sample
    sample = found and SampleReport(
        random_peers=len(found.distances) - 2, distances=found.distances, dialled_by_all=found.by_all
    )
    return MeshReport(
        hosts=mesh.hosts, pairs=mesh.pairs, tested=mesh.tested, ports=mesh.ports, failed=failed, sample=sample
    )


def _smoke(snapshot: Snapshot) -> AllReduceReport | None:
    if not isinstance(snapshot.smoke, Smoke):
        return None
    smoke = snapshot.smoke
    speed = link(snapshot)
    return AllReduceReport(
        backend=smoke.backend,
        reason=smoke.reason,
        world_size=smoke.world_size,
        ok=smoke.outcome == "ok",
        outcome=smoke.outcome,
        ranks=tuple(RankReport.model_validate(rank.model_dump(mode="json")) for rank in smoke.ranks),
        sizes=tuple(SizeReport.model_validate(size.model_dump(mode="json")) for size in smoke.sizes),
        link=speed and LinkShare(**asdict(speed), share=best(smoke) / speed.gb_per_s),
        rings=smoke.rings,
        trees=smoke.trees,
        isolation=IsolationReport.model_validate(smoke.isolation.model_dump(mode="json"))
        if isinstance(smoke.isolation, Isolation)
        else None,
    )
