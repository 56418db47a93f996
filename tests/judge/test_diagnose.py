from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.checks.view import View
from nccl_doctor.judge import diagnose
from nccl_doctor.judge.attribution import attach_consequences
from nccl_doctor.model.base import Unknown, unknown
from nccl_doctor.model.cluster import access
from nccl_doctor.model.effect import Symptom
from nccl_doctor.model.engines.containers import InsideOptions
from nccl_doctor.model.finding import Details, Finding, Fix, Outcome, Severity
from nccl_doctor.model.register import Check, Unjudged, all_checks, find
from tests.checks.snapshots import UNREACHABLE, load, patched


def entry(name: str, **change: Any) -> Check:
    return replace(find(name)[0], **change)


def waiting(*hosts: str, kind: str = "no-store") -> Finding:
    return finding(*hosts, symptoms=(Symptom(kind, frozenset(hosts), frozenset({"node1"}), "gloo"),))


def finding(*hosts: str, **change: Any) -> Finding:
    return Finding(hosts=hosts, message=f"on {' '.join(hosts)}", fix=Fix(summary="mend it"), **change)


def test_what_follows_stands_under_its_cause() -> None:
    cause, effect = finding("node1"), waiting("node3")
    (only,) = attach_consequences([(entry("allreduce-timeout"), effect), (entry("port-in-use"), cause)])
    assert only.name == "port-in-use"
    assert [(row.name, row.hosts) for row in only.explains] == [("allreduce-timeout", ("node3",))]


def test_a_chain_hangs_under_its_first_cause() -> None:
    first, second, third = finding("node1"), finding("node1"), waiting("node2")
    rows = [
        (entry("allreduce-timeout"), third),
        (entry("port-in-use"), second),
        (entry("master-addr-not-local"), first),
    ]
    (only,) = attach_consequences(rows)
    assert only.name == "master-addr-not-local"
    assert {row.name for row in only.explains} == {"port-in-use", "allreduce-timeout"}


def test_a_fault_of_another_host_does_not_swallow_one_that_is_no_all_reduce() -> None:
    rows = [(entry("port-in-use"), finding("node2")), (entry("master-addr-not-local"), finding("node1"))]
    assert len(attach_consequences(rows)) == 2


@pytest.mark.parametrize(
    ("named", "standing"),
    [
        ((("node2", "node1"),), ["hostname-mismatch"]),
        ((("node2", "node3"),), ["hostname-mismatch", "port-unreachable"]),
        ((), ["hostname-mismatch", "port-unreachable"]),
    ],
)
def test_a_cause_that_names_dials_explains_those_alone(named: tuple[tuple[str, str], ...], standing: list[str]) -> None:
    cause = finding("node2", details=Details(failed=named), severity=Severity.ERROR)
    effect = finding("node1", "node2", details=Details(failed=(("node2", "node1"),)))
    elsewhere = finding("node1", details=Details(failed=(("node2", "node1"),)))
    for one in (effect, elsewhere):
        rows = [(entry("port-unreachable"), one), (entry("hostname-mismatch"), cause)]
        assert [row.name for row in attach_consequences(rows)] == standing


def test_a_cause_is_as_grave_as_what_it_causes() -> None:
    rows = [
        (entry("version-mismatch"), finding("node2", severity=Severity.WARNING)),
        (entry("allreduce-failed"), waiting("node2", kind="hang")),
    ]
    (only,) = attach_consequences(rows)
    assert only.severity is Severity.ERROR


@pytest.mark.parametrize("kind", ["SIGKILL", "SIGBUS"])
def test_what_can_t_have_done_it_stands_beside_it_as_grave_as_before(kind: str) -> None:
    killed = Symptom(kind, frozenset({"node2"}), frozenset({"node1", "node2", "node3"}), "gloo")
    small = entry("shm-small"), finding("node1", "node2", "node3", severity=Severity.WARNING)
    found = attach_consequences([small, (entry("allreduce-failed"), finding("node2", symptoms=(killed,)))])
    assert [(one.name, one.severity) for one in found] == [
        ("allreduce-failed", Severity.ERROR),
        ("shm-small", Severity.WARNING),
    ]
    over_nccl = replace(killed, backend="nccl")
    found = attach_consequences([small, (entry("allreduce-failed"), finding("node2", symptoms=(over_nccl,)))])
    assert len(found) == (1 if kind == "SIGBUS" else 2)


def test_others_that_fit_are_named_with_the_cause() -> None:
    rows = [
        (entry("mtu-blackhole"), finding("node2")),
        (entry("version-mismatch"), finding("node2", severity=Severity.WARNING)),
        (entry("clock-skew"), finding("node2")),
        (entry("allreduce-timeout"), waiting("node2", kind="hang")),
    ]
    cause, beside, skew = attach_consequences(rows)
    assert (cause.name, [one.name for one in cause.explains]) == ("mtu-blackhole", ["allreduce-timeout"])
    assert cause.evidence == ("also possible: version-mismatch on node2",)
    assert (beside.severity, skew.explains) == (Severity.WARNING, ())


def test_what_others_show_of_a_dead_rank_comes_along_with_its_end_and_not_alone() -> None:
    full = entry("gpu-in-use"), finding("node2")
    memory = Symptom("gpu-memory", frozenset({"node2"}), frozenset(), "nccl")
    refused = Symptom("connection-refused", frozenset({"node1"}), frozenset({"node2"}), "nccl")
    both = entry("allreduce-failed"), finding("node1", "node2", symptoms=(memory, refused))
    alone = entry("allreduce-failed"), finding("node1", symptoms=(refused,))
    assert [len(attach_consequences([full, row])) for row in (both, alone)] == [1, 2]


def test_unlike_faults_stand_apart_gravest_first() -> None:
    rows = [
        (entry("port-privileged"), finding("node1", severity=Severity.WARNING)),
        (entry("torch-missing"), finding("node2")),
    ]
    assert [row.name for row in attach_consequences(rows)] == ["torch-missing", "port-privileged"]


def test_a_crash_of_one_check_is_its_outcome_and_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    def crashes(_view: View) -> Iterator[Finding | Unjudged]:
        nothing: dict[str, Finding] = {}
        yield nothing["eno1"]

    checks = tuple(replace(c, function=crashes) if c.name == "torch-missing" else c for c in all_checks())
    monkeypatch.setattr(diagnose, "all_checks", lambda: checks)
    report = diagnose.judge(patched({}), "check")
    outcomes = {result.name: result for result in report.checks}
    assert outcomes["torch-missing"].outcome is Outcome.CRASH
    assert outcomes["torch-missing"].reason == "KeyError: 'eno1'"
    assert outcomes["version-mismatch"].outcome is Outcome.PASS
    assert not report.complete


def test_an_unreached_host_is_a_diagnosis_and_no_gap_of_the_others() -> None:
    away = {"facts": None, "failure": {"kind": "ssh-unreachable", "detail": "no answer in 10 s", "facts": UNREACHABLE}}
    report = diagnose.judge(patched({"hosts": {"node2": away}}), "check")
    assert [row.name for row in report.diagnoses] == ["ssh-unreachable"]
    assert not [row.name for row in report.checks if row.outcome is Outcome.UNKNOWN]
    assert not report.complete


def test_an_unreached_master_leaves_what_only_it_can_tell_unknown() -> None:
    away = {"facts": None, "failure": {"kind": "ssh-unreachable", "detail": "no answer in 10 s", "facts": UNREACHABLE}}
    report = diagnose.judge(patched({"hosts": {"node1": away}}), "check")
    unjudged = {row.name for row in report.checks if row.outcome is Outcome.UNKNOWN}
    assert {"port-in-use", "port-privileged", "master-addr-not-local"} <= unjudged


AWAY = {"facts": None, "failure": {"kind": "ssh-unreachable", "detail": "no answer in 10 s", "facts": UNREACHABLE}}


def test_where_no_host_was_reached_nothing_passed() -> None:
    patch = {"hosts": dict.fromkeys(("node1", "node2", "node3"), AWAY), "mesh": {"$unknown": "few"}}
    report = diagnose.judge(patched({**patch, "smoke": {"$skipped": "needs every host"}}), "check")
    passed = {row.category for row in report.checks if row.outcome is Outcome.PASS}
    assert passed <= {"access"}
    assert {row.outcome for row in report.phases} <= {"error", "unknown", "skip"}
    assert not report.complete


@pytest.mark.parametrize(
    ("category", "reason", "outcome"),
    [
        ("allreduce", "not run: port 29500 is busy", Outcome.UNKNOWN),
        ("allreduce", "not requested (--no-smoke)", Outcome.SKIP),
        (None, "not run: port 29500 is busy", Outcome.SKIP),
    ],
)
def test_an_all_reduce_that_was_spared_is_no_clean_bill_unless_the_fault_is_told(
    category: str | None, reason: str, outcome: Outcome
) -> None:
    taken = {"port": 29500, "free": False, "error": "EADDRINUSE", "cause": "listener"}
    patch = {"hosts": {"node1": {"facts": {"master_port": taken}}}, "smoke": {"$skipped": reason}}
    report = diagnose.judge(patched(patch), "check", lambda check: category in (None, check.category))
    failed = next(row for row in report.checks if row.name == "allreduce-failed")
    assert (failed.outcome, failed.reason) == (outcome, reason)
    assert report.complete is (outcome is Outcome.SKIP)


def test_what_is_not_there_is_not_judged() -> None:
    outcomes = {row.name: (row.outcome, row.reason) for row in diagnose.judge(patched({}), "check").checks}
    assert outcomes["gpu-count-low"] == (Outcome.NOT_APPLICABLE, "no GPU on any host")


def test_checks_of_nvidia_gpus_do_not_say_that_hosts_with_amd_gpus_have_none() -> None:
    fixture = Path(__file__).parent.parent / "checks/software/gpu_count_low/unknown-amd.json"
    outcomes = {row.name: (row.outcome, row.reason) for row in diagnose.judge(load(fixture), "check").checks}
    assert outcomes["gpu-in-use"] == (Outcome.NOT_APPLICABLE, "no NVIDIA GPU on any host")


def test_models_of_amd_gpus_are_compared_too() -> None:
    fixture = Path(__file__).parent.parent / "checks/software/gpu_model_mismatch/quiet-amd-chosen-among-equals.json"
    outcomes = {row.name: row.outcome for row in diagnose.judge(load(fixture), "check").checks}
    assert outcomes["gpu-model-mismatch"] is Outcome.PASS


def test_gaps_with_one_reason_are_folded_over_hosts() -> None:
    missing = {"facts": {"torch": {"$unknown": "no answer in 5 s"}}}
    report = diagnose.judge(patched({"hosts": {"node1": missing, "node2": missing}}), "check")
    reason = next(row.reason for row in report.checks if row.name == "torch-missing")
    assert reason == "node[1-2]: no answer in 5 s"


def test_unknown_is_neither_true_nor_false() -> None:
    with pytest.raises(TypeError, match="no root"):
        bool(unknown("no root"))
    assert isinstance(unknown("x"), Unknown)


def test_checks_left_out_are_skipped_and_no_gap() -> None:
    report = diagnose.judge(patched({}), "check", lambda check: check.name == "torch-missing")
    assert {row.outcome for row in report.checks if row.name != "torch-missing"} == {Outcome.SKIP}
    assert report.complete


@pytest.mark.parametrize(
    ("category", "name", "fixture", "side"),
    [
        ("interfaces", "ifname_needed", "fires", "in"),
        ("ports", "firewall_blocks_port", "fires", "outside"),
        ("processes", "container_differs", "fires-shm-podman", "outside"),
    ],
)
def test_commands_say_on_which_side_of_a_containers_wall_they_are_run(
    category: str, name: str, fixture: str, side: str
) -> None:
    """What the job sets is set inside; what needs root, or acts on the container, is done outside."""
    seen = load(Path(__file__).parents[1] / "checks" / category / name / f"{fixture}.json")
    train = access(InsideOptions(runtime="docker", name="train"))
    nodes = tuple(node.model_copy(update={"access": train}) for node in seen.cluster.nodes)
    seen = seen.model_copy(update={"cluster": seen.cluster.model_copy(update={"nodes": nodes})})
    (code,) = (check.code for check in find(name.replace("_", "-")))
    report = diagnose.judge(seen, "check", lambda check: check.code == code)
    places = {command.place for found in report.diagnoses for command in found.fix.commands}
    assert places == {f'{side} the Docker container "train"'}


@pytest.mark.parametrize(
    ("fixture", "severity"),
    [
        ("rdma_hca_no_match/fires", "warning"),
        ("rdma_hca_no_match/fires-on-one", "warning"),
        ("rdma_hca_no_match/fires-on-one-with-gpus", "error"),
        ("rdma_hca_no_match/fires-where-nccl-must-have-it", "error"),
        ("rdma_device_inaccessible/fires-with-gpus", "error"),
        ("rdma_mismatch/fires-none-up-on-one", "error"),
        ("rdma_mismatch/fires-fewer-devices", "warning"),
    ],
)
def test_sockets_beside_rdma_are_an_error_where_a_job_uses_nccl(fixture: str, severity: str) -> None:
    report = diagnose.judge(load(Path(__file__).parent.parent / f"checks/rdma/{fixture}.json"), "check")
    assert [one.severity for one in report.diagnoses if one.name.startswith("rdma")] == [Severity(severity)]
