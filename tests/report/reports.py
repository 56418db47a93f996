"""Reports of the situations that the golden texts show."""

from __future__ import annotations

from typing import Any

from nccl_doctor.model.finding import CheckResult, Command, Consequence, Diagnosis, Fix, LogLine, Outcome, Severity
from nccl_doctor.model.report import (
    AllReduceReport,
    FailedDial,
    HostSummary,
    MeshReport,
    NcclInterface,
    Phase,
    RankReport,
    Report,
    SizeReport,
)
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.render import render as render_command


def render(report: Report, form: str, **options: Any) -> str:
    """A report as ``check`` prints it."""
    return render_command("check", form, report, RenderOptions(**options))


TITLE = "4 hosts, 8 ranks, master node1 (10.0.0.1:29500)"
PHASES = {
    "access": Phase(name="access", outcome="ok", text="4 hosts answered in 0.6 s"),
    "software": Phase(name="software", outcome="ok", text="python 3.11, torch 2.13.0, NCCL 2.27.7 on all"),
    "interfaces": Phase(name="interfaces", outcome="ok", text="NCCL will use eno1 on node[1-4], 10.0.0.0/24"),
    "ports": Phase(name="ports", outcome="ok", text="12 of 12 pairs, master port and 2 ephemeral ports each"),
    "firewall": Phase(name="firewall", outcome="ok", text="firewalld on node1 lets the others in; none elsewhere"),
    "limits": Phase(name="limits", outcome="ok", text=""),
    "smoke": Phase(name="smoke", outcome="ok", text="NCCL over NET/Socket, 4.6 of 5.0 GB/s (92% of eno1)"),
}


def passed(count: int) -> tuple[CheckResult, ...]:
    return tuple(
        CheckResult(code=f"NCD{200 + number}", name=f"fault-{number}", category="interfaces", outcome=Outcome.PASS)
        for number in range(count)
    )


def hosts(away: str = "") -> tuple[HostSummary, ...]:
    return tuple(
        HostSummary(
            name=f"node{number}",
            address=f"10.0.0.{number}",
            node_rank=number - 1,
            reached=f"node{number}" != away,
            nccl_interface=NcclInterface(
                name="eno1", address=f"10.0.0.{number}", nccl_version="2.27.7", source="libnccl"
            ),
        )
        for number in range(1, 5)
    )


def healthy() -> Report:
    return Report(
        version="0.1.0",
        command="check",
        status="ok",
        complete=True,
        title=TITLE,
        hosts=hosts(),
        checks=passed(57),
        phases=tuple(PHASES.values()),
        mesh=MeshReport(hosts=4, pairs=12, tested=12, ports={"node1": (29500, 40123)}),
        smoke=AllReduceReport(
            backend="nccl",
            world_size=8,
            ok=True,
            outcome="ok",
            ranks=(RankReport(rank=0, host="node1", local_rank=0, stage="done", ok=True),),
            sizes=(
                SizeReport(bytes=1024, seconds=0.000052, algbw=0.02, busbw=0.034),
                SizeReport(bytes=67108864, seconds=0.0255, algbw=2.63, busbw=4.6),
            ),
        ),
        timings={"connect": 0.4, "probe": 0.3, "mesh": 0.2, "smoke": 4.1, "total": 6.2},
        next_step="To get the launch commands:  nccl-doctor launch hosts.yaml -- train.py",
    )


FIREWALL = Diagnosis(
    code="NCD301",
    name="firewall-blocks-port",
    severity=Severity.ERROR,
    hosts=("node1",),
    message="firewalld on node1 rejects the other hosts' connections to port 29500, so they would wait for the master "
    "until they time out.",
    evidence=(
        "seen    node[2-4] -> node1:29500: no route to host (a REJECT looks so)",
        "rule    zone public, eno1: services ssh dhcpv6-client; all else rejected",
    ),
    facts={"port": 29500, "manager": "firewalld", "from": ["node2", "node3", "node4"]},
    fix=Fix(
        summary="Allow connections from the cluster's own addresses.",
        risk="safe",
        needs_root=True,
        commands=tuple(
            Command(host="node1", command=f"firewall-cmd {words}")
            for words in (
                *(f"--permanent --zone=trusted --add-source=10.0.0.{number}" for number in (2, 3, 4)),
                "--reload",
            )
        ),
    ),
    explains=tuple(
        Consequence(
            code="NCD701",
            name="allreduce-timeout",
            hosts=(host,),
            message="Ranks did not arrive at the all-reduce within 60 s.",
        )
        for host in ("node2", "node3", "node4")
    ),
)

UNREACHABLE = Diagnosis(
    code="NCD101",
    name="ssh-unreachable",
    severity=Severity.ERROR,
    hosts=("node3",),
    message="node3 (10.0.0.3:22) gave no answer to a TCP connection in 10 s.",
    evidence=("tried: 10.0.0.3 port 22, twice",),
    fix=Fix(summary="Look whether node3 is up and whether 10.0.0.3 is its address."),
)

STALE = Diagnosis(
    code="NCD601",
    name="stale-process",
    severity=Severity.WARNING,
    hosts=("node2", "node3"),
    message="A training process of an earlier run is left on node[2-3].",
    fix=Fix(
        summary="End what is left of it.",
        risk="disruptive",
        commands=(
            Command(host="node2", command="kill 48112"),
            Command(host="node3", command="kill 48112"),
            Command(host=None, command="rm -f /dev/shm/nccl-x"),
        ),
    ),
)


def one_fault() -> Report:
    firewall = CheckResult(code="NCD301", name=FIREWALL.name, category="ports", outcome=Outcome.FOUND)
    timeout = CheckResult(code="NCD701", name="allreduce-timeout", category="allreduce", outcome=Outcome.FOUND)
    slow = CheckResult(
        code="NCD704", name="allreduce-slow", category="allreduce", outcome=Outcome.SKIP, reason="no all-reduce ended"
    )
    ports = Phase(name="ports", outcome="error", text="3 of 12 pairs: nothing gets into node1")
    rules = Phase(name="firewall", outcome="error", text="see below")
    smoke = Phase(name="smoke", outcome="skip", text="not run: node1 drops its ports")
    failed = tuple(
        FailedDial(src=f"node{n}", dst="node1", address="10.0.0.1", port=29500, outcome="no-route") for n in (2, 3, 4)
    )
    return healthy().model_copy(
        update={
            "status": "error",
            "diagnoses": (FIREWALL,),
            "checks": (*passed(56), firewall, timeout, slow),
            "phases": tuple((PHASES | {"ports": ports, "firewall": rules, "smoke": smoke}).values()),
            "mesh": MeshReport(hosts=4, pairs=12, tested=12, ports={"node1": (29500,)}, failed=failed),
            "smoke": None,
            "timings": {"total": 2.3},
            "next_step": None,
        }
    )


def host_away() -> Report:
    unreadable = "node[2,4]: rules not readable (sudo needs a password)"
    unknown = tuple(
        CheckResult(code=code, name=name, category="ports", outcome=Outcome.UNKNOWN, reason=unreadable)
        for code, name in (("NCD301", "firewall-blocks-port"), ("NCD302", "firewall-blocks-ephemeral"))
    )
    access = Phase(name="access", outcome="error", text="3 of 4 hosts answered; node3 did not in 10 s")
    rules = Phase(name="firewall", outcome="unknown", text=unreadable)
    found = CheckResult(code="NCD101", name=UNREACHABLE.name, category="access", outcome=Outcome.FOUND)
    return healthy().model_copy(
        update={
            "status": "error",
            "complete": False,
            "hosts": hosts(away="node3"),
            "diagnoses": (UNREACHABLE, STALE),
            "checks": (*passed(55), *unknown, found),
            "phases": tuple((PHASES | {"access": access, "firewall": rules}).values()),
            "smoke": None,
            "timings": {"total": 12.4},
            "next_step": None,
        }
    )


def log() -> Report:
    refused = Diagnosis(
        code="NCD311",
        name="no-route-to-host",
        severity=Severity.ERROR,
        hosts=("gpu02",),
        message="gpu02 could not reach gpu01 (10.0.0.1:53211) while NCCL set up its ring.",
        evidence=(
            LogLine(
                file="run/gpu02.log", line=412, text="NCCL WARN Connect to 10.0.0.1<53211> failed : No route to host"
            ),
        ),
        fix=Fix(
            summary="Find the rule that does it:",
            risk="safe",
            commands=(Command(host=None, command="nccl-doctor check -w gpu01,gpu02"),),
        ),
        facts={"ranks": list(range(8, 16))},
        entities={"host": "gpu02", "rank": 8},
    )
    return Report(
        version="0.1.0",
        command="logs",
        status="error",
        complete=True,
        title="8 files, 61 MB, 16 ranks, NCCL 2.21.5, torch 2.4.1",
        diagnoses=(refused,),
    )


ALL = {"healthy": healthy, "one_fault": one_fault, "host_away": host_away, "log": log}
