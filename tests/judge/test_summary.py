from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.judge.diagnose import Selection, judge
from nccl_doctor.model.base import unknown as unknown_fact
from nccl_doctor.model.report import MachineLoad
from nccl_doctor.snapshot.mesh import Mesh
from tests.checks.snapshots import UNREACHABLE, healthy, load, patched

CHECKS = Path(__file__).parents[1] / "checks"


def rows(patch: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {phase.name: (phase.outcome, phase.text) for phase in judge(patched(patch), "check").phases}


def test_a_healthy_cluster_says_what_was_seen() -> None:
    seen = rows({})
    assert seen["access"] == ("ok", "3 hosts answered in 0.4 s")
    assert seen["software"] == ("ok", "python 3.11.7, torch 2.9.1+cu128, NCCL 2.27.7")
    assert seen["ports"] == ("ok", "6 of 6 pairs, master port and 3 ephemeral ports each")
    assert seen["processes"] == ("ok", "port 29500 is free; nothing left behind")
    assert seen["all-reduce"] == ("ok", "3 ranks over gloo, 0.67 of 1.25 GB/s (54% of eno1)")
    assert seen["GPUs"] == ("n/a", "no GPU on any host: CPU only, over gloo")
    assert {outcome for outcome, _ in seen.values()} == {"ok", "n/a", "skip"}  # rules that were not read are not "ok"


def test_a_machine_with_one_gpu() -> None:
    """An H200 with torch 2.11 for CUDA 13, alone: a rank alone sends nothing, so no rate is given."""
    report = judge(load(Path(__file__).parent / "one-h200.json"), "check")
    shown = {phase.name: (phase.outcome, phase.text) for phase in report.phases}
    assert report.diagnoses == ()
    assert shown["software"] == ("ok", "python 3.12.3, torch 2.11.0+cu130, NCCL 2.28.9")
    assert shown["GPUs"] == ("ok", "1 H200 on vm")
    assert shown["all-reduce"] == ("ok", "1 rank over nccl, sums correct")
    assert report.smoke is not None
    assert report.smoke.sizes == ()


def test_an_address_is_not_said_to_be_itself() -> None:
    (found,) = judge(load(CHECKS / "interfaces/master_addr_loopback/fires.json"), "check").diagnoses
    assert found.name == "master-addr-loopback"
    assert not found.evidence


@pytest.mark.parametrize(("lag_s", "late"), [(None, ""), (0.04, ""), (0.6, ", threads up to 0.6 s late")])
def test_a_busy_machine_says_how_late_its_threads_were_where_they_were(lag_s: float | None, late: str) -> None:
    words = MachineLoad(queue=9.0, cpus=2, lag_s=lag_s).words
    assert words == f"this machine was busy meanwhile: load 9.0 on 2 CPUs{late}"


def test_a_failed_dial_shows_where_it_was_going() -> None:
    dial = {"src": "node2", "dst": "node1", "address": "10.0.0.1", "port": 29500, "outcome": "timed-out"}
    seen = rows({"mesh": {"failed": [dial]}, "smoke": {"$skipped": "could not succeed"}})
    assert seen["ports"] == ("error", "1 of 6 pairs failed, all towards node1")
    assert seen["all-reduce"] == ("skip", "could not succeed")


def test_a_host_that_fails_to_dial_itself_is_no_pair() -> None:
    lost = {"dst": "node1", "address": "10.0.0.1", "port": 29500, "outcome": "timed-out"}
    own, other = {"src": "node1", **lost}, {"src": "node2", **lost}
    skipped = {"smoke": {"$skipped": "could not succeed"}}
    assert rows({"mesh": {"failed": [own, other]}, **skipped})["ports"] == (
        "error",
        "1 of 6 pairs failed, all towards node1",
    )
    assert rows({"mesh": {"failed": [own]}, **skipped})["ports"] == ("error", "node1 can't reach its own address")


def test_a_row_says_on_how_many_hosts_was_looked() -> None:
    away = {"facts": None, "failure": {"kind": "ssh-unreachable", "detail": "no answer in 10 s", "facts": UNREACHABLE}}
    patch = {"hosts": {"node2": away, "node3": away}, "mesh": {"$unknown": "fewer than two hosts were reached"}}
    seen = rows({**patch, "smoke": {"$skipped": "needs every host"}})
    assert seen["limits"] == ("ok", "1 of 3 hosts checked")
    assert seen["ports"] == ("unknown", "fewer than two hosts were reached")


@pytest.mark.parametrize(
    ("away", "cluster", "line"),
    [
        (["node3"], {"source": "hosts.yaml"}, "Without node3:  nccl-doctor check hosts.yaml -x node3"),
        (
            ["node3"],
            {"source": "hosts.yaml", "origins": {"-x": "node[4-5]"}},
            "Without node3:  nccl-doctor check hosts.yaml -x 'node[4-5],node3'",
        ),
        (["node1"], {"source": "-w"}, "Without node1:  nccl-doctor check -w 'node[1-3]' -x node1"),
        (["node1"], {"source": "hosts.yaml", "master_addr": "10.9.9.9"}, None),
        (["node2", "node3"], {"source": "hosts.yaml"}, None),
    ],
)
def test_a_host_that_is_away_gets_the_line_that_goes_on_without_it(
    away: list[str], cluster: dict[str, Any], line: str | None
) -> None:
    lost = {"facts": None, "failure": {"kind": "ssh-unreachable", "detail": "no answer", "facts": UNREACHABLE}}
    patch = {"hosts": dict.fromkeys(away, lost), "mesh": {"$unknown": "x"}, "smoke": {"$skipped": "needs every host"}}
    snapshot = patched({**patch, "cluster": cluster})
    assert judge(snapshot, "check").next_step == line
    assert judge(snapshot, "smoke").next_step is None


def test_a_port_that_cannot_be_freed_gets_the_line_that_moves_away_from_it() -> None:
    snapshot = load(CHECKS / "ports/port_in_use/fires-unknown.json")
    cluster = snapshot.cluster.model_copy(update={"source": "hosts.yaml"})
    (found,) = judge(snapshot.model_copy(update={"cluster": cluster}), "check").diagnoses
    assert [one.command for one in found.fix.commands] == [
        "nccl-doctor fix-port --hosts hosts.yaml --host node1 --next --write"
    ]


@pytest.mark.parametrize("unknown", ["", "interfaces", "routes", "env", "firewall"])
def test_a_row_that_fails_has_a_diagnosis_that_says_why(unknown: str) -> None:
    """In every fixture, also where a fact is not known from which the cause would be seen."""
    for path in sorted(CHECKS.rglob("*.json")):
        snapshot = load(path)
        if unknown and not (isinstance(snapshot.mesh, Mesh) and snapshot.mesh.failed):
            continue
        lost = {} if not unknown else {unknown: unknown_fact("not looked at")}
        hosts = tuple(
            host.model_copy(update={"facts": host.facts and host.facts.model_copy(update=lost)})
            for host in snapshot.hosts
        )
        report = judge(snapshot.model_copy(update={"hosts": hosts}), "check")
        failing = [row.name for row in report.phases if row.outcome == "error"]
        assert not failing or report.status == "error", f"{path}: {failing}"


def test_no_row_is_ok_where_no_host_was_reached() -> None:
    away = {"facts": None, "failure": {"kind": "ssh-unreachable", "detail": "no answer in 10 s", "facts": UNREACHABLE}}
    patch = {"mesh": {"$unknown": "fewer than two hosts were reached"}, "smoke": {"$skipped": "needs every host"}}
    seen = rows({**patch, "hosts": dict.fromkeys(("node1", "node2", "node3"), away)})
    assert seen.pop("access")[0] == "error"
    assert {outcome for outcome, _ in seen.values()} <= {"unknown", "skip"}
    assert seen["limits"] == ("unknown", "no host was reached")


def test_a_gap_shows_its_reason() -> None:
    seen = rows({"hosts": {"node1": {"facts": {"master_port": {"$unknown": "no answer in 8 s"}}}}})
    assert seen["processes"] == ("unknown", "node1: no answer in 8 s")


def test_a_gap_is_kept_apart_from_the_sentence_that_tells_of_it() -> None:
    unread = {"facts": {"master_port": {"$unknown": "OSError: x[3-1]"}}}
    report = judge(patched({"hosts": dict.fromkeys(("node1", "node3"), unread)}), "check")
    (port,) = (check for check in report.checks if check.name == "port-in-use")
    assert (port.outcome, port.reason) == ("unknown", "node1: OSError: x[3-1]")
    assert [(gap.hosts, gap.reason) for gap in port.gaps] == [(("node1",), "OSError: x[3-1]")]
    assert "gaps" not in port.model_dump(mode="json")


def test_a_row_that_only_suffers_says_so() -> None:
    taken = {"facts": {"master_port": {"port": 29500, "free": False, "error": "EADDRINUSE", "cause": "listener"}}}
    smoke = {
        "outcome": "failed",
        "ranks": [{"rank": 0, "host": "node1", "local_rank": 0, "stage": "torch", "ok": False}],
    }
    assert rows({"hosts": {"node1": taken}, "smoke": smoke})["all-reduce"] == (
        "error",
        "failed (caused by port-in-use)",
    )


def test_gpus_have_a_row_of_their_own() -> None:
    hosts = ("node1", "node2", "node3")

    def two(host: str) -> dict[str, Any]:
        gpu = {"name": "NVIDIA H100 PCIe", "memory_total_mib": 81559, "memory_used_mib": 0, "driver": "550.54"}
        return {"facts": {"gpus": [{"index": index, "uuid": f"GPU-{host}-{index}", **gpu} for index in range(2)]}}

    none: dict[str, Any] = {"facts": {"gpus": []}}
    assert rows({"hosts": dict.fromkeys(hosts, none)})["GPUs"] == ("n/a", "no GPU on any host: CPU only, over gloo")
    some = {host: two(host) for host in hosts}
    assert "2 H100 PCIe on each of node[1-3]" in rows({"hosts": some})["GPUs"][1]
    few = rows({"hosts": {**some, "node3": {**some["node3"], "node": {"nproc_per_node": 4}}}})
    assert few["GPUs"][0] == "error"
    assert "too few GPUs on node3" in few["GPUs"][1]


def test_a_row_of_which_a_part_is_asked_for_tells_of_that_part() -> None:
    """``smoke`` asks for those checks of the GPUs that its backend depends on."""
    some = judge(patched({}), "smoke", lambda check: check.name in ("gpu-count-low", "torch-missing"))
    assert {row.name: row.outcome for row in some.phases} == {"software": "ok", "GPUs": "n/a"}
    assert "not selected" not in " ".join(row.text for row in some.phases)


def test_a_row_that_fails_says_why() -> None:
    small = {"facts": {"limits": {"nofile_soft": 256, "nofile_hard": 256}}}
    assert rows({"hosts": {"node2": small}})["limits"] == ("warning", "open files limit is low on node2")


@pytest.mark.parametrize(
    ("patch", "title"),
    [
        (
            {"cluster": {"variables": {"master_port": "MASTER_PORT"}}},
            "3 hosts, 3 ranks, master node1 (10.0.0.1:29500), from MASTER_PORT in the environment",
        ),
        ({}, "3 hosts, 3 ranks, master node1 (10.0.0.1:29500)"),
        ({"cluster": {"master_addr": "node1"}}, "3 hosts, 3 ranks, master node1:29500"),
        ({"smoke": {"$skipped": "--no-smoke"}}, "3 hosts, master node1 (10.0.0.1:29500)"),
    ],
)
def test_the_title_names_hosts_ranks_and_master(patch: dict[str, Any], title: str) -> None:
    assert judge(patched(patch), "check").title == title


def test_the_mesh_stands_in_the_report_as_promised() -> None:
    dial = {"src": "node2", "dst": "node1", "address": "10.0.0.1", "port": 29500, "outcome": "timed-out"}
    mesh = judge(patched({"mesh": {"failed": [dial]}}), "check").mesh
    assert mesh is not None
    assert mesh.pairs == 6
    assert mesh.ports["node1"] == (29500, 32768, 60999, 40001)
    assert mesh.failed[0].model_dump(exclude_none=True) == dial


def test_dials_that_a_rule_explains_are_failed_dials_all_the_same() -> None:
    dial = {"src": "node2", "dst": "node1", "address": "10.0.0.1", "port": 29500, "outcome": "timed-out"}
    report = judge(patched({"mesh": {"failed": [dial]}}), "check", lambda check: check.name != "port-unreachable")
    assert next(phase for phase in report.phases if phase.name == "ports").outcome == "error"


def test_a_master_port_that_nobody_dialled_is_not_said_to_have_been() -> None:
    snapshot = load(CHECKS / "ports/firewall_blocks_port/fires-master-port-held.json")
    told = judge(snapshot, "check")
    seen = {phase.name: (phase.outcome, phase.text) for phase in told.phases}
    assert seen["ports"] == ("ok", "6 of 6 pairs, 3 ephemeral ports each; master port 29500 was not tested")
    assert {one.name for one in told.diagnoses} == {"port-in-use", "firewall-blocks-port"}
    (rule,) = [one for one in told.diagnoses if one.name == "firewall-blocks-port"]
    assert "node[2-3] -> node1:29500: not tested because the port is busy; concluded from the rules" in rule.evidence[0]
    assert rule.fix.commands


@pytest.mark.parametrize(
    ("patch", "selected"),
    [
        ({"mesh": {"$skipped": "not requested (--mesh none)"}}, lambda _check: True),
        ({}, lambda check: check.category == "ports"),
        ({}, lambda check: check.name != "shm-small"),
    ],
)
def test_what_was_not_judged_is_the_next_step(patch: dict[str, Any], selected: Selection) -> None:
    report = judge(patched(patch), "check", selected)
    assert report.left_out
    assert report.next_step == "Full check:  nccl-doctor check hosts.yaml"


def test_who_wants_no_all_reduce_learns_how_to_start() -> None:
    report = judge(patched({"smoke": {"$skipped": "not requested (--no-smoke)"}}), "check")
    assert report.left_out == ("the all-reduce (--no-smoke)",)
    assert report.next_step == "To get the launch commands:  nccl-doctor launch hosts.yaml -- train.py"


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"source": "hosts.yaml"}, "hosts.yaml -- train.py"),
        ({"source": "hosts.yaml", "engine": "ray", "origins": {"engine": "hosts.yaml:3"}}, "hosts.yaml"),
        (
            {"source": "hosts.yaml", "engine": "vllm", "origins": {"engine": "--engine"}},
            "hosts.yaml --engine vllm -- MODEL",
        ),
        ({"source": "-w", "engine": "deepspeed"}, "-w 'node[1-3]' --engine deepspeed -- train.py"),
    ],
)
def test_the_next_step_starts_what_the_hosts_are_for(cluster: dict[str, Any], words: str) -> None:
    assert (
        judge(patched({"cluster": cluster}), "check").next_step
        == f"To get the launch commands:  nccl-doctor launch {words}"
    )


@pytest.mark.parametrize(
    ("fixture", "words"),
    [
        ("fires", "node3 sends at 1.2 Gb/s, the others at 9.4 Gb/s"),
        ("fires-pair", "node1 reaches node2 at 2.0 Gb/s, the others at 9.4 Gb/s"),
        ("fires-pair-both-ways", "node[1-2] reach each other at 2.0 Gb/s, the others at 9.4 Gb/s"),
        ("fires-rail", "all hosts reach 1.0 Gb/s of 9.4 Gb/s by eno2"),
        ("fires-gpu-lost-lanes", "PCIe link slow on node2"),
    ],
)
def test_the_row_of_rates_tells_who_and_which_way(fixture: str, words: str) -> None:
    report = judge(load(CHECKS / f"ports/link_slow/{fixture}.json"), "check")
    assert {row.name: row.text for row in report.phases}["rate"] == words


def test_rates_that_were_measured_stand_beside_lost_lanes() -> None:
    lost, measured = (load(CHECKS / f"ports/link_slow/{name}.json") for name in ("fires-gpu-lost-lanes", "quiet"))
    report = judge(lost.model_copy(update={"rates": measured.rates}), "check")
    text = {row.name: row.text for row in report.phases}["rate"]
    assert text.endswith("Gb/s; PCIe link slow on node2")
    assert text.startswith("6 pairs at")


def test_a_port_that_an_option_names_is_not_mended_in_the_hosts_file() -> None:
    folder = Path(__file__).parents[1] / "checks" / "ports" / "port_in_use"
    for name, words in (("fires-running", "hosts file"), ("fires-running-on-the-option-s-port", "--master-port")):
        report = judge(load(folder / f"{name}.json"), "check", lambda check: check.name == "port-in-use")
        (found,) = report.diagnoses
        assert words in found.fix.summary
        assert ("--write" in found.fix.commands[0].command) is (name == "fires-running")


def test_the_interface_by_which_a_host_is_listed_is_named_where_nccl_takes_another() -> None:
    facts = healthy()["hosts"][1]["facts"]["interfaces"]
    other = {
        "name": "eno2",
        "index": 9,
        "flags": ["up", "running"],
        "mtu": 1500,
        "speed_mbps": 1000,
        "kind": "physical",
    }
    listed = {"interface": "eno2", "family": "inet", "address": "10.1.0.2", "netmask": "255.255.255.0"}
    interfaces = {"links": [*facts["links"], other], "addresses": [*facts["addresses"], listed]}
    variables = {"env": {"NCCL_SOCKET_IFNAME": "=eno1"}}
    hosts = {"node2": {"node": {"address": "10.1.0.2", **variables}, "facts": {"interfaces": interfaces}}}
    text = rows({"hosts": hosts})["interfaces"][1]
    assert text == "NCCL will use eno1 on node[1,3]; NCCL will use eno1 on node2, listed by eno2"
