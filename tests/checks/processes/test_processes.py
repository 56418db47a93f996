"""Leftovers, running jobs, and what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.finding import Diagnosis, Severity
from nccl_doctor.snapshot.redact import redact
from tests.checks.snapshots import load, patched

HERE = Path(__file__).parent


def only(path: str) -> Diagnosis:
    (found,) = judge(load(HERE / path), "check", lambda check: check.category == "processes").diagnoses
    return found


def leftover() -> dict[str, Any]:
    job: dict[str, Any] = json.loads((HERE / "stale_process/fires.json").read_text())["hosts"]["node2"]["facts"]
    return job


def test_a_leftover_of_ones_own_is_a_warning_with_the_command_that_ends_it() -> None:
    found = only("stale_process/fires.json")
    assert (found.name, found.severity) == ("stale-process", Severity.WARNING)
    assert found.message == "2 training processes were left behind on node2."
    (command,) = found.fix.commands
    assert command.host is None
    assert command.command == "nccl-doctor fix-port --hosts hosts.yaml --host node2 --pid 48112@5731034 --kill --yes"


def test_it_is_an_error_where_it_holds_a_gpu_that_the_job_needs() -> None:
    found = only("stale_process/fires-needed-gpu.json")
    assert (found.name, found.severity) == ("stale-process", Severity.ERROR)
    assert [effect.name for effect in found.explains] == ["gpu-in-use"]


@pytest.mark.parametrize("name", ["another-user", "zombie", "memory-of-nobody"])
def test_what_takes_judgement_has_no_command(name: str) -> None:
    found = only(f"stale_process/fires-{name}.json")
    assert found.fix.commands == ()
    assert found.fix.summary


def holder(pid: int) -> dict[str, Any]:
    process = {"pid": pid, "ppid": 1, "user": "ubuntu", "command": "python train.py", "started": 1.0, "age_s": 10800.0}
    trial = {"port": 29500, "free": False, "error": "EADDRINUSE", "cause": "listener"}
    return {
        "master_port": {**trial, "holders": [{**process, "orphan": True, "own": True, "ticks": 5731034}]},
        **leftover(),
    }


def test_a_leftover_that_holds_the_master_port_is_one_diagnosis() -> None:
    (found,) = judge(patched({"hosts": {"node1": {"facts": holder(48113)}}}), "check").diagnoses
    assert (found.name, found.severity) == ("port-in-use", Severity.ERROR)
    assert [effect.name for effect in found.explains] == ["stale-process"]
    assert [command.command for command in found.fix.commands] == [
        "nccl-doctor fix-port --hosts hosts.yaml --host node1 29500 --pid 48113@5731034 --kill --yes"
    ]


def test_a_leftover_beside_another_holder_is_a_diagnosis_of_its_own() -> None:
    found = judge(patched({"hosts": {"node1": {"facts": holder(7)}}}), "check").diagnoses
    assert [one.name for one in found] == ["port-in-use", "stale-process"]
    assert [one.explains for one in found] == [(), ()]


def test_arguments_of_a_leftover_and_of_its_parent_do_not_travel() -> None:
    facts = leftover()
    facts["processes"][0] |= {"command": "python train.py --key abc123", "parent": "bash -c abc123", "user": "alice"}
    kept, _ = redact(patched({"hosts": {"node2": {"facts": facts}}}))
    text = kept.model_dump_json()
    assert "train.py --key" in text
    assert "abc123" not in text
    assert "alice" not in text


REFUSALS = ["it makes progress: pid 48112 used 1.90 s of CPU time in 2.0 s", "a shell waits for it: bash, pid 7"]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_what_fix_port_would_not_end_has_no_line_that_ends_it_and_the_reason_is_said(refusal: str) -> None:
    facts = holder(48112)
    facts["processes"][0]["refusal"] = facts["master_port"]["holders"][0]["refusal"] = refusal
    stale = judge(patched({"hosts": {"node2": {"facts": {"processes": facts["processes"]}}}}), "check").diagnoses
    for one in (*judge(patched({"hosts": {"node1": {"facts": facts}}}), "check").diagnoses, *stale):
        assert refusal[1:] in one.fix.summary
        assert "--kill" not in one.fix.summary
        assert not any("--kill" in command.command for command in one.fix.commands)


def test_a_holder_whose_start_nobody_told_is_moved_away_from() -> None:
    facts = holder(48113)
    del facts["master_port"]["holders"][0]["ticks"]
    (found,) = judge(patched({"hosts": {"node1": {"facts": facts}}}), "check").diagnoses
    (moving,) = found.fix.commands
    assert moving.command.endswith("--next --write")


def test_moving_away_is_a_whole_line() -> None:
    (found,) = judge(patched({"hosts": {"node1": {"facts": holder(48113)}}}), "check").diagnoses
    assert "(fix-port --next finds one)" in found.fix.summary
    assert "hosts.yaml" not in found.fix.summary  # a snapshot's word for a path would be pasted


def test_an_outbound_holder_and_a_time_wait_have_their_lines() -> None:
    lines = []
    for name in ("outbound", "time-wait"):
        (found,) = judge(load(HERE.parent / f"ports/port_in_use/fires-{name}.json"), "check").diagnoses
        lines += [command.command for command in found.fix.commands]
    assert lines == [
        "sysctl -w net.ipv4.ip_local_reserved_ports=29500",
        "nccl-doctor fix-port --hosts hosts.yaml --host node1 29500 --wait",
    ]


def test_only_podman_lets_a_container_mount() -> None:
    """The default seccomp profile of the others forbids mount(2), for exec --privileged, too."""
    podman, docker = (only(f"container_differs/{name}.json").fix for name in ("fires-shm-podman", "fires-shm"))
    assert [command.host for command in podman.commands] == ["node1", "node2"]
    assert all(command.command.startswith("podman exec -u 0 --privileged") for command in podman.commands)
    assert docker.commands == ()
    assert "root on the host" in docker.summary
    assert "nsenter -t PID -m mount -o remount,size=1g /dev/shm" in docker.summary


@pytest.mark.parametrize(("runtime", "option"), [("podman", "--device=nvidia.com/gpu=all"), ("docker", "--gpus=all")])
def test_each_runtime_has_its_own_option_for_gpus(runtime: str, option: str) -> None:
    facts = json.loads((HERE / "container_differs/fires-devices.json").read_text())["hosts"]["node1"]["facts"]
    facts["outside"]["runtime"] = runtime
    seen = patched({"hosts": {"node1": {"facts": facts}}})
    (found,) = judge(seen, "check", lambda check: check.name == "container-differs").diagnoses
    assert f" add {option} to its {runtime} run options" in found.fix.summary


def test_tmpdir_is_no_remedy_for_a_full_home() -> None:
    assert "TMPDIR" in only("disk_full/fires.json").fix.summary
    home = only("disk_full/fires-home.json").fix.summary
    assert ("TMPDIR" in home, "XDG_CACHE_HOME" in home) == (False, True)
