from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.inventory.last_check import OLD_S, Hosts, LastCheck, doubts, recall, recommended, remember
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.finding import Command, Diagnosis, Fix, Severity
from nccl_doctor.nccl.suggest import setting
from tests.checks.snapshots import patched


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    (tmp_path / "hosts.yaml").write_text("hosts: [node1, node2, node3]\n")
    return Hosts(str(tmp_path / "hosts.yaml"), patched({}).cluster)


def checked(hosts: Hosts, environ: dict[str, str], patch: dict[str, Any], checked_at: float | None = None) -> LastCheck:
    snapshot = patched(patch)
    remember(hosts, snapshot, judge(snapshot, "check"), checked_at or time.time(), environ)
    last = recall(hosts, environ)
    assert last is not None
    return last


def test_a_check_that_went_well_leaves_no_doubt(hosts: Hosts, environ: dict[str, str]) -> None:
    gpu = {
        "index": 0,
        "name": "NVIDIA H100",
        "uuid": "GPU-1",
        "memory_total_mib": 1,
        "memory_used_mib": 0,
        "driver": "570.1",
    }
    last = checked(hosts, environ, {"hosts": {"node1": {"facts": {"gpus": [gpu]}, "node": {"nproc_per_node": 1}}}})
    assert last.torch == "2.9.1+cu128"
    assert (last.hosts["node1"].nproc, last.hosts["node1"].gpus) == (1, 1)
    assert (last.hosts["node2"].nproc, last.hosts["node2"].gpus) == (1, 0)
    assert doubts(checked(hosts, environ, {}), hosts, time.time()) == ()


def test_what_is_kept_is_the_owners_alone(hosts: Hosts, environ: dict[str, str], tmp_path: Path) -> None:
    checked(hosts, environ, {})
    (kept,) = (tmp_path / "state" / "nccl-doctor").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_no_check_a_failed_an_incomplete_an_old_one_and_another_file_are_told(
    hosts: Hosts, environ: dict[str, str]
) -> None:
    def told(last: LastCheck | None, now: float | None = None) -> str:
        (one,) = doubts(last, hosts, now or time.time())
        return one

    assert "has not been checked yet" in told(recall(hosts, environ))
    assert "failed: master-addr-loopback (node1)" in told(
        checked(hosts, environ, {"cluster": {"master_addr": "127.0.0.1"}, "smoke": {"$skipped": "x"}})
    )
    gap = {"hosts": {"node2": {"facts": {"limits": {"$unknown": "no answer"}}}}}
    assert "could not judge everything" in told(checked(hosts, environ, gap))
    assert "is 25 h old" in told(checked(hosts, environ, {}), time.time() + OLD_S + 3600)
    last = checked(hosts, environ, {})
    assert hosts.file is not None
    Path(hosts.file).write_text("hosts: [node1]\n")
    assert "was changed since" in told(last)


def test_names_without_a_file_are_remembered_too(environ: dict[str, str]) -> None:
    hosts = Hosts(None, patched({}).cluster)
    assert str(hosts) == "-w 'node[1-3]'"
    assert doubts(checked(hosts, environ, {}), hosts, time.time()) == ()


def test_what_an_engine_lists_is_told_with_the_options_that_list_it(environ: dict[str, str]) -> None:
    asked = ["--kube", "job/train", "-n", "ml"]
    pods = Hosts(
        None, patched({"cluster": {"source": "--kube job/train", "access": {"kube": {"asked": asked}}}}).cluster
    )
    words = "--kube job/train -n ml"
    assert doubts(None, pods, 0.0) == (f"{words} has not been checked yet; run: nccl-doctor check {words}",)
    named = patched({}).cluster
    nodes = tuple(node.model_copy(update={"access": {"slurm": {"job": "7"}}}) for node in named.nodes)
    origins = {"-x": "node4", "node1.env.TOKEN": "--env"}
    env = tuple(node.model_copy(update={"env": {"TOKEN": "t"}}) for node in nodes)
    steps = Hosts(None, named.model_copy(update={"source": "Slurm job 7", "nodes": env, "origins": origins}))
    failed = checked(steps, environ, {"cluster": {"master_addr": "127.0.0.1"}, "smoke": {"$skipped": "x"}})
    (one,) = doubts(failed, steps, time.time())
    assert one.startswith("the last check of --slurm-job 7 -x node4 failed: master-addr-loopback (node1); ")
    assert one.endswith("; nccl-doctor check --slurm-job 7 -x node4 says what to do")
    assert steps.key == "-w 'node[1-3]'"


def test_a_state_that_can_not_be_kept_or_read_is_no_failure(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {"XDG_STATE_HOME": str(tmp_path / "file")}
    snapshot = patched({})
    remember(hosts, snapshot, judge(snapshot, "check"), 0.0, environ)
    assert recall(hosts, environ) is None


def test_a_kept_check_of_another_form_counts_for_none(hosts: Hosts, environ: dict[str, str], tmp_path: Path) -> None:
    checked(hosts, environ, {})
    (kept,) = (tmp_path / "state" / "nccl-doctor").iterdir()
    kept.write_text('{"digest": 1}')
    assert recall(hosts, environ) is None


def test_recommended_variables_are_those_that_the_fixes_set() -> None:
    def found(fix: Fix) -> Diagnosis:
        return Diagnosis(code="NCD208", name="x", severity=Severity.WARNING, hosts=("node1",), message="m", fix=fix)

    settings = setting("s", "NCCL_SOCKET_IFNAME", {"node1": "=eno1", "node2": "=eno2"})
    assert [one.command for one in settings.commands] == [
        "export NCCL_SOCKET_IFNAME='=eno1'",
        "export NCCL_SOCKET_IFNAME='=eno2'",
    ]
    others = Fix(summary="s", commands=(Command(host="node1", command="export A=b"),))
    gloo = setting("s", "GLOO_SOCKET_IFNAME", {"node1": "eno1"})
    assert recommended(tuple(map(found, (settings, others, gloo)))) == {
        "node1": {"NCCL_SOCKET_IFNAME": "=eno1", "GLOO_SOCKET_IFNAME": "eno1"},
        "node2": {"NCCL_SOCKET_IFNAME": "=eno2"},
    }


def test_without_a_home_nothing_is_kept_and_nothing_fails(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    snapshot = patched({})
    remember(hosts, snapshot, judge(snapshot, "check"), 0.0, {})
    assert recall(hosts, {}) is None
