"""One of three hosts says what is too long, or trips us up: it is that host's failure, and the others are judged."""

from __future__ import annotations

import socket
import sys
from functools import partial
from typing import Any

import pytest

from nccl_doctor.cli.output import exit_code
from nccl_doctor.cli.progress import Silent
from nccl_doctor.collect.facts import host_facts
from nccl_doctor.collect.hang.hang import HangOptions, take
from nccl_doctor.collect.mesh import dials
from nccl_doctor.collect.options import RunOptions
from nccl_doctor.collect.run import open_run
from nccl_doctor.collect.smoke import allreduce
from nccl_doctor.collect.smoke.allreduce import AllReduceRun
from nccl_doctor.collect.smoke.plan import SmokeLimits, SmokePlan
from nccl_doctor.crew.answers import MalformedError, ProbeError, SmokeEnd
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.judge.diagnose import Judge, judge
from nccl_doctor.judge.hang_report import report as hang_report
from nccl_doctor.logs import facts
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.report import Report
from nccl_doctor.report.render import render
from nccl_doctor.snapshot.access import ProbeFailed
from nccl_doctor.snapshot.hang import HangSnapshot
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.snapshot.mesh import Mesh
from tests.checks.snapshots import patched
from tests.crew.liars import Bend, Bending
from tests.lab.liar import made_up_job

pytestmark = pytest.mark.slow

LIAR, HONEST = "node2", ("node1", "node3")
LONG = "x" * 5000
FAULTS = [
    KeyError("x"),
    RecursionError(LONG),
    MemoryError(),
    OverflowError("x"),
    UnicodeDecodeError("utf-8", b"", 0, 1, LONG),
]


def local_cluster() -> Cluster:
    """Three hosts that are this machine, and a port for their master."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nodes = tuple(
        Node(name=name, address="127.0.0.1", node_rank=rank, python=sys.executable, nproc_per_node=1, local=True)
        for rank, name in enumerate(sorted((LIAR, *HONEST)))
    )
    return Cluster(nodes=nodes, master_addr="127.0.0.1", master_port=port)


def seen(bend: Bend) -> Snapshot:
    """What a run over three local probes makes of it."""
    with open_run(
        local_cluster(),
        lambda: Bending({LIAR: bend}),
        RunOptions(smoke=False, questions=Judge("check").questions),
        Silent(),
    ) as run:
        snapshot = run.snapshot()
    return Snapshot.model_validate_json(snapshot.model_dump_json(by_alias=True))


def reported(snapshot: Snapshot) -> Report:
    report = judge(snapshot, "check")
    assert exit_code(report, "error") in (0, 1, 3)
    assert not [check for check in report.checks if check.outcome == "crash"]
    assert {host.name for host in report.hosts if host.reached} >= {*HONEST}
    for form in ("human", "json"):
        assert render("check", form, report)
    return report


def bending(request: str, **said: Any) -> Bend:
    def bend(do: str, message: dict[str, Any]) -> dict[str, Any]:
        return {"id": message["id"], **said} if do == request else message

    return bend


def failure(snapshot: Snapshot) -> ProbeFailed:
    by_name = {host.name: host for host in snapshot.hosts}
    assert all(by_name[name].facts for name in HONEST)
    found = by_name[LIAR].failure
    assert isinstance(found, ProbeFailed)
    assert max(map(len, (found.detail, *found.evidence))) <= 4096
    return found


@pytest.mark.parametrize(
    "said",
    [
        {"error": LONG},
        {"error": LONG * 100},
        {"error": "KeyError", "traceback": LONG},
        {"error": "KeyError", "traceback": f"{LONG}\n" * 40},
        {"error": "\n" * 5000},
    ],
    ids=["an error", "a longer one", "a line of a traceback", "many such lines", "nothing but lines"],
)  # fmt: skip
def test_a_long_answer_to_facts(said: dict[str, str]) -> None:
    snapshot = seen(bending("facts", **said))
    assert failure(snapshot).facts.stage == "facts"
    named = [one for one in reported(snapshot).diagnoses if one.hosts == (LIAR,)]
    assert [one.name for one in named] == ["probe-failed"]


@pytest.mark.parametrize("request_", ["listen", "dial", "unlisten"])
def test_a_long_error_to_the_port_test(request_: str) -> None:
    snapshot = seen(bending(request_, error=LONG, traceback=LONG))
    reported(snapshot)
    assert isinstance(snapshot.mesh, Mesh)
    assert {host.name for host in snapshot.hosts if host.facts} == {LIAR, *HONEST}, "an error is no end"


def test_errors_of_listeners_without_end() -> None:
    def bend(do: str, message: dict[str, Any]) -> dict[str, Any]:
        if do != "listen":
            return message
        ports = [None for _ in message["ok"]["ports"]]
        return {**message, "ok": {"ports": ports, "errors": {str(one): f"{one} {LONG}" for one in range(2000)}}}

    snapshot = seen(bend)
    reported(snapshot)
    assert isinstance(snapshot.mesh, Mesh)
    assert len(snapshot.mesh.not_listening[LIAR]) <= 4096


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_our_own_fault_over_its_facts(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = host_facts.typed

    def tripped(answer: dict[str, Any]) -> Any:
        if answer["env"] == {"trips": "us"}:
            raise fault
        return typed(answer)

    monkeypatch.setattr(host_facts, "typed", tripped)

    def bend(do: str, message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "ok": {**message["ok"], "env": {"trips": "us"}}} if do == "facts" else message

    snapshot = seen(bend)
    reported(snapshot)
    found = failure(snapshot)
    assert found.facts.stage == "facts"
    assert "nccl-doctor itself failed over what it answered, please report this" in found.detail
    assert type(fault).__name__ in found.detail
    assert "(collect/facts/host_facts.py:" in found.detail, "and where"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_our_own_fault_over_its_listeners(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    listen = dials.open_listeners

    def tripped(session: ProbeSession, *arguments: Any) -> Any:
        if session.node.name == LIAR:
            raise fault
        return listen(session, *arguments)

    monkeypatch.setattr(dials, "open_listeners", tripped)
    snapshot = seen(lambda _do, message: message)
    reported(snapshot)
    found = failure(snapshot)
    assert (found.facts.stage, type(fault).__name__ in found.detail) == ("mesh", True)
    assert isinstance(snapshot.mesh, Mesh)
    assert snapshot.mesh.names == {*HONEST}, "nothing of it is judged, and the others' ports are"


def test_a_host_that_is_lost_in_the_last_look_at_the_ports_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(sessions: list[ProbeSession], *_others: Any) -> dict[str, Any]:
        (session,) = (one for one in sessions if one.node.name == LIAR)
        session.gone(MalformedError("nothing that was asked"))
        return {}

    monkeypatch.setattr("nccl_doctor.collect.mesh.failed_dials.find_other_nets", lost)
    snapshot = seen(lambda _do, message: message)
    assert "it answered what the probe never says" in failure(snapshot).detail
    assert isinstance(snapshot.mesh, Mesh)
    assert snapshot.mesh.names == {*HONEST}
    assert [one.name for one in reported(snapshot).diagnoses if one.hosts == (LIAR,)] == ["probe-failed"]


@pytest.mark.parametrize("words", ["", "\n", LONG], ids=["none", "a line break", "long"])
@pytest.mark.parametrize("request_", ["ranks", "look", "ras"])
def test_an_error_over_a_running_job(request_: str, words: str) -> None:
    liar = "node1"  # whose RAS is asked first
    made_up = dict(zip(sorted((LIAR, *HONEST)), made_up_job(), strict=True))

    def bend(name: str, do: str, message: dict[str, Any]) -> dict[str, Any]:
        fails = name == liar and do == request_
        said = {"error": words, "traceback": words} if fails else {"ok": made_up[name].get(do)}
        return {"id": message["id"], **said}

    transport = Bending({name: partial(bend, name) for name in made_up})
    seen = take(local_cluster(), transport, HangOptions(interval_s=0.0), Silent())
    by_name = {host.name: host for host in HangSnapshot.model_validate_json(seen.model_dump_json(by_alias=True)).hosts}
    assert all(host.failure is None for name, host in by_name.items() if name != liar)
    assert isinstance(by_name[liar].failure, ProbeFailed) == (request_ != "ras")
    assert render("hang", "human", hang_report(seen))


def test_our_own_fault_over_the_output_of_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    understand = facts.facts_of

    def tripped(lines: tuple[str, ...]) -> Any:
        if "trips us" in lines:
            raise RecursionError(LONG)
        return understand(lines)

    monkeypatch.setattr(facts, "facts_of", tripped)
    plan = SmokePlan(patched({}).cluster, SmokeLimits(), {LIAR: 2, "node1": 2}, "nccl", "of the test")
    run = AllReduceRun(plan, 1e12)
    run.end(LIAR, SmokeEnd(exit=0, output=("trips us",)))
    run.end("node1", SmokeEnd(exit=0))
    told = allreduce.result(plan, run)
    assert "nccl-doctor itself failed" in told.launchers[LIAR]
    assert "node1" not in told.launchers
    assert [rank.host for rank in told.ranks] == [LIAR, LIAR, "node1", "node1"]


def test_an_error_of_any_length_is_one() -> None:
    assert len(str(ProbeError("x" * 1_000_000))) <= 4096
