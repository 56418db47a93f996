"""``nccl-doctor check`` on a real cluster: real sshd, real sockets, real torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema
import pytest

from tests.cli.doctor import doctor
from tests.cli.smoking import soon
from tests.lab.cluster import Lab, MakeLab
from tests.lab.faults import fault
from tests.lab.faults.network import map_name
from tests.lab.warm import interpreter
from tests.patience import LONG_S, crowd

pytestmark = pytest.mark.lab

SCHEMA = Path(__file__).parents[1] / "report" / "schema.json"
NO_SMOKE = ("check", "--no-smoke")


def test_three_healthy_hosts_are_ready(lab: Lab) -> None:
    plain = lab.hosts_file(python=sys.executable)  # as users have it, with a start and imports of its own
    run = doctor(lab, "check", "--timeout", str(LONG_S), hosts=plain)
    assert run.names == []
    assert run.code == 0
    assert run.report["complete"]
    assert run.report["smoke"]["ok"]
    assert run.report["smoke"]["world_size"] == 3
    assert {"hosts": 3, "pairs": 6, "tested": 6, "failed": []}.items() <= run.report["mesh"].items()
    assert 29500 in run.report["mesh"]["ports"]["node1"]
    jsonschema.validate(run.report, json.loads(SCHEMA.read_text()))


def test_a_snapshot_is_judged_again_without_a_network(lab: Lab) -> None:
    first = doctor(lab, *NO_SMOKE, "--save", "seen.json")
    again = lab.controller.run(["nccl-doctor", "check", "--from", "seen.json", "-o", "json"])
    assert json.loads(again.stdout)["checks"] == first.report["checks"]
    assert lab.controller.run("stat -c %a seen.json; rm seen.json").stdout.strip() == "600"


ACCESS = [
    ("sshd-dead", "ssh-unreachable"),
    ("sshd-silent", "ssh-unreachable"),
    ("ssh-key-refused", "ssh-auth-failed"),
    ("host-key-changed", "ssh-host-key-changed"),
    ("host-key-unknown", "ssh-host-key-unknown"),
    ("python-missing", "python-missing"),
    ("python-hangs", "probe-failed"),
]


def test_each_host_that_cant_be_reached_is_named_for_its_own_reason_and_the_others_are_judged(
    make_lab: MakeLab,
) -> None:
    lab = make_lab(len(ACCESS) + 2)
    broken = lab.hosts[1:-1]
    for host, (name, _) in zip(broken, ACCESS, strict=True):
        fault(name)(lab, host)
    run = doctor(lab, *NO_SMOKE)
    named = [
        (name, host)
        for name, hosts in zip(run.names, (one["hosts"] for one in run.report["diagnoses"]), strict=True)
        for host in hosts
    ]
    assert sorted(named) == sorted((name, host.name) for host, (_, name) in zip(broken, ACCESS, strict=True))
    assert run.code == 1
    assert [host["reached"] for host in run.report["hosts"]] == [True, *(False for _ in broken), True]
    assert run.report["mesh"]["tested"] == 2
    # what is dead costs 15 s at most, however much of it; what is healthy takes its own time
    assert run.report["timings"]["total"] < (15 + 5) * crowd(), run.report["timings"]


def test_an_unknown_host_key_is_mended_by_the_line_that_is_printed(fresh_lab: Lab) -> None:
    fault("host-key-unknown")(fresh_lab, fresh_lab.host("node3"))
    run = doctor(fresh_lab, *NO_SMOKE)
    (command,) = run.first["fix"]["commands"]
    assert command["host"] is None
    fresh_lab.controller.run(command["command"])
    assert doctor(fresh_lab, *NO_SMOKE).names == []


def test_a_changed_host_key_is_named_by_file_and_line(fresh_lab: Lab) -> None:
    fault("host-key-changed")(fresh_lab, fresh_lab.host("node1"))
    run = doctor(fresh_lab, *NO_SMOKE)
    text = json.dumps(run.first)
    assert "known_hosts" in text
    assert run.first["fix"]["commands"] == []


def test_what_does_no_harm_is_not_diagnosed(fresh_lab: Lab) -> None:
    fault("noisy-bashrc")(fresh_lab, fresh_lab.host("node2"))
    run = doctor(fresh_lab, *NO_SMOKE)
    assert run.names == []
    assert run.code == 0


def test_a_host_that_dies_in_the_middle_is_named_and_the_run_ends(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(python=interpreter()))
    process = lab.controller.popen(
        ["nccl-doctor", "check", "hosts.yaml", "-o", "json", "--output-file", "report.json", *soon()], stderr=-1
    )
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("all-reduce"):
                break
        lab.kill(lab.host("node2"))
        assert process.wait(LONG_S) == 1
    report = json.loads(lab.controller.read("/root/report.json"))
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["name"] in ("allreduce-failed", "allreduce-timeout")
    assert diagnosis["hosts"] == ["node2"]


def test_one_machine_as_two_nodes_does_not_take_its_own_probes_for_leftovers(lab: Lab) -> None:
    """By one name and by another; each probe starts an interpreter of the training's, which the other one sees."""
    hosts = [
        {"name": "node1", "cuda_visible_devices": "0,1"},
        {"name": "big-b", "address": lab.hosts[0].address, "cuda_visible_devices": "2,3"},
    ]
    for _ in range(5):
        run = doctor(lab, *NO_SMOKE, hosts=lab.hosts_file(hosts=hosts, nproc_per_node=1))
        assert (run.names, run.code) == (["gpu-count-low"], 1), run.report["diagnoses"]  # which no host here has
        assert run.check("stale-process")["outcome"] == "pass"


def test_a_timeout_says_what_it_leaves_out(lab: Lab) -> None:
    run = doctor(lab, "check", "--timeout", "30")
    rows = {row["name"]: row for row in run.report["phases"]}
    said = "--timeout 30 leaves no time for the all-reduce, which may take 60 s"
    assert (rows["all-reduce"]["outcome"], rows["all-reduce"]["text"]) == ("unknown", said)
    assert (run.names, run.code) == ([], 3)


def test_a_loopback_master_address(lab: Lab) -> None:
    run = doctor(lab, "check", hosts=lab.hosts_file(master_addr="127.0.0.1"))
    assert run.names == ["master-addr-loopback"]
    assert run.code == 1


def test_a_loopback_master_name(fresh_lab: Lab) -> None:
    map_name(fresh_lab.host("node2"), "node1", "127.0.1.1")
    run = doctor(fresh_lab, *NO_SMOKE, "--only", "master-addr-loopback")
    assert run.names == ["master-addr-loopback"]
    assert run.first["hosts"] == ["node2"]


def test_a_master_address_of_another_host(lab: Lab) -> None:
    run = doctor(lab, "check", hosts=lab.hosts_file(master_addr="node2"))
    assert run.names == ["master-addr-not-local"]
    assert run.first["hosts"] == ["node1"]
    assert run.code == 1


HELD = [
    ("stale-listener", "listener"),
    ("bound-not-listening", "bound"),
    ("outbound-owner", "outbound"),
    ("time-wait", "time-wait"),
]


@pytest.mark.parametrize(("broken", "cause"), HELD)
def test_a_held_master_port(fresh_lab: Lab, broken: str, cause: str) -> None:
    fault(broken)(fresh_lab, fresh_lab.host("node1"))
    run = doctor(fresh_lab, "check")
    assert run.names == ["port-in-use"]
    assert run.first["hosts"] == ["node1"]
    assert run.first["facts"]["cause"] == cause
    assert run.code == 1
    assert run.check("allreduce-failed")["outcome"] == "skip"


# The client is idle when the store closes: a request unread in the store's socket would make the kernel answer with a
# reset, which leaves no TIME_WAIT (tcp(7); tcp_close in net/ipv4/tcp.c).
STORE_CLOSES_FIRST = """
import subprocess, sys, torch.distributed as dist
client = "import torch.distributed as d; s = d.TCPStore('127.0.0.1', 29500); s.set('k', 'v'); s.get('k'); print('in', flush=True); input()"
store = dist.TCPStore("0.0.0.0", 29500, is_master=True, wait_for_workers=False)
other = subprocess.Popen([sys.executable, "-c", client], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert other.stdout.readline() == "in\\n"
del store
other.communicate("the store is gone\\n")
"""


def test_a_time_wait_of_torchs_own_keeps_nobody_from_the_port(fresh_lab: Lab) -> None:
    node = fresh_lab.host("node1")
    node.run([interpreter(), "-c", STORE_CLOSES_FIRST])
    waiting = node.run(["ss", "-Htan", "state", "time-wait", "sport", "=", ":29500"]).stdout
    assert waiting, "torch's store left no TIME_WAIT, so this test shows nothing"
    run = doctor(fresh_lab, "check", hosts=fresh_lab.hosts_file(hosts=["node1", "node2"], python=interpreter()))
    assert (run.names, run.code, run.report["smoke"]["ok"]) == ([], 0, True)


def test_a_host_cut_off_from_another(fresh_lab: Lab) -> None:
    fault("cut-off")(fresh_lab, fresh_lab.host("node3"))
    run = doctor(fresh_lab, "check")
    assert run.names == ["port-unreachable"]
    assert set(run.first["hosts"]) == {"node1", "node3"}
    assert run.code == 1
    assert {(dial["src"], dial["dst"]) for dial in run.report["mesh"]["failed"]} == {
        ("node1", "node3"),
        ("node3", "node1"),
    }
    assert {dial["outcome"] for dial in run.report["mesh"]["failed"]} == {"timed-out"}


def test_a_switch_that_drops_the_master_port(fresh_lab: Lab) -> None:
    fault("switch-drops-port")(fresh_lab, fresh_lab.host("node1"))
    run = doctor(fresh_lab, *NO_SMOKE)
    assert run.names == ["port-unreachable"]
    assert run.first["hosts"] == ["node1"]


def test_a_host_without_any_package_is_judged_for_the_rest(fresh_lab: Lab, bare_python: str) -> None:
    run = doctor(fresh_lab, "check", hosts=fresh_lab.hosts_file(python=bare_python))
    assert run.names == ["torch-missing"]
    assert run.first["hosts"] == ["node1", "node2", "node3"]
    unjudged = [check["name"] for check in run.report["checks"] if check["outcome"] == "unknown"]
    assert unjudged == []
    # Needs the interfaces.
    assert run.check("master-addr-not-local")["outcome"] == "pass"


def test_torch_on_one_host_alone_missing(lab: Lab, bare_python: str) -> None:
    hosts = ["node1", {"name": "node2", "python": bare_python}, "node3"]
    run = doctor(lab, "check", hosts=lab.hosts_file(hosts=hosts))
    assert run.names == ["torch-missing"]
    assert run.first["hosts"] == ["node2"]


def test_a_full_folder_for_temporary_files_is_named(fresh_lab: Lab) -> None:
    fault("disk-full")(fresh_lab, fresh_lab.host("node2"))
    run = doctor(fresh_lab, "check", "--no-smoke")
    assert run.names == ["disk-full"]
    assert run.report["diagnoses"][0]["hosts"] == ["node2"]
