"""``nccl-doctor ifname`` on real hosts with a real libnccl."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.cli.program import run_in
from tests.lab.cluster import Lab, MakeLab
from tests.lab.faults import fault

pytestmark = pytest.mark.lab


def ifname(
    lab: Lab, *arguments: str, python: str = sys.executable, env: dict[str, str] | None = None
) -> tuple[int, dict[str, dict[str, Any]]]:
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(python=python, env=env))
    done = run_in(lab.controller, "ifname", "hosts.yaml", "-q", "-o", "json", *arguments)
    return done.returncode, {host["name"]: host for host in json.loads(done.stdout)["hosts"]}


def test_healthy_hosts_need_nothing_and_libnccl_says_so(lab: Lab) -> None:
    code, hosts = ifname(lab)
    assert code == 0
    for host in lab.hosts:
        chosen = hosts[host.name]["nccl_interface"]
        assert (chosen["name"], chosen["address"], chosen["source"]) == ("eth0", host.address, "libnccl")
        assert hosts[host.name]["set"] == {}


def test_a_bridge_that_comes_first_is_named_and_the_setting_mends_it(fresh_lab: Lab) -> None:
    fault("compose-bridge")(fresh_lab, fresh_lab.host("node2"))
    code, hosts = ifname(fresh_lab)
    assert code == 1
    assert hosts["node2"]["nccl_interface"]["name"].startswith("br-")
    assert "no other host can reach it" in hosts["node2"]["reason"]
    setting = hosts["node2"]["set"]
    assert setting == {"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    assert all(host["set"] == setting for host in hosts.values())
    code, hosts = ifname(fresh_lab, env=setting)
    assert code == 0
    assert hosts["node2"]["nccl_interface"]["name"] == "eth0"


def test_excluding_docker_alone_leads_to_lo(lab: Lab) -> None:
    code, hosts = ifname(lab, env={"NCCL_SOCKET_IFNAME": "^docker"})
    assert code == 1
    assert {host["nccl_interface"]["name"] for host in hosts.values()} == {"lo"}


def test_another_version_answers_by_the_model(lab: Lab) -> None:
    code, hosts = ifname(lab, "--nccl-version", "2.18.3")
    assert code == 0
    assert {(h["nccl_interface"]["source"], h["nccl_interface"]["nccl_version"]) for h in hosts.values()} == {
        ("model", "2.18.3")
    }


def test_a_host_without_libnccl_gets_the_models_answer_and_says_so(lab: Lab, bare_python: str) -> None:
    code, hosts = ifname(lab, python=bare_python)
    assert code == 0
    assert {host["nccl_interface"]["source"] for host in hosts.values()} == {"model"}


def test_where_names_differ_each_host_gets_its_own_setting(fresh_lab: Lab) -> None:
    fresh_lab.host("node3").run("ip link set eth0 down; ip link set eth0 name ens5; ip link set ens5 up")
    assert ifname(fresh_lab)[0] == 0
    code, hosts = ifname(fresh_lab, env={"NCCL_SOCKET_IFNAME": "=eth0"})
    assert code == 1
    assert hosts["node3"]["nccl_interface"] is None
    assert "Bootstrap : no socket interface found" in hosts["node3"]["reason"]
    right = {"node1": "eth0", "node2": "eth0", "node3": "ens5"}
    assert {name: host["set"]["NCCL_SOCKET_IFNAME"] for name, host in hosts.items()} == {
        name: f"={interface}" for name, interface in right.items()
    }
    screen = run_in(fresh_lab.controller, "ifname", "hosts.yaml", "-q").stdout
    blocks = [line for line in screen.splitlines() if line.startswith(("Set on", "export NCCL"))]
    assert [line.partition(",")[0] if line.startswith("Set") else line for line in blocks] == [
        *("Set on node[1-2]", "export NCCL_SOCKET_IFNAME='=eth0'"),
        *("Set on node3", "export NCCL_SOCKET_IFNAME='=ens5'"),
    ]
    settings = [{"name": name, "env": host["set"]} for name, host in hosts.items()]
    fresh_lab.controller.write("/root/hosts.yaml", fresh_lab.hosts_file(hosts=settings))
    done = run_in(fresh_lab.controller, "ifname", "hosts.yaml", "-q", "-o", "json")
    assert done.returncode == 0
    chosen = {host["name"]: host["nccl_interface"]["name"] for host in json.loads(done.stdout)["hosts"]}
    assert chosen == right


def test_an_unknown_version_is_a_gap_only_where_versions_differ(make_lab: MakeLab, bare_python: str) -> None:
    lab = make_lab(2)
    fault("interface-down")(lab, lab.host("node2"))
    code, hosts = ifname(lab, python=bare_python, env={"NCCL_SOCKET_IFNAME": "=eth1"})
    assert code == 3
    assert hosts["node1"]["nccl_interface"]["source"] == "model"
    assert hosts["node2"]["nccl_interface"] is None
    assert "before 2.28.3" in hosts["node2"]["reason"]
    old = ifname(lab, "--nccl-version", "2.27.7", python=bare_python, env={"NCCL_SOCKET_IFNAME": "=eth1"})
    new = ifname(lab, "--nccl-version", "2.28.9", python=bare_python, env={"NCCL_SOCKET_IFNAME": "=eth1"})
    assert (old[0], old[1]["node2"]["nccl_interface"]["name"]) == (1, "eth1")
    assert (new[0], new[1]["node2"]["nccl_interface"]) == (1, None)


def test_a_snapshot_is_answered_again_for_another_version(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    fault("interface-down")(lab, lab.host("node2"))
    ctl = lab.controller
    ctl.write("/root/hosts.yaml", lab.hosts_file(env={"NCCL_SOCKET_IFNAME": "=eth1"}))
    run_in(ctl, "check", "hosts.yaml", "--no-smoke", "-q", "--save", "seen.json")
    again = ["ifname", "--from", "seen.json", "-o", "json", "--output-file", "answer.json"]
    for version, chosen in (("2.27.7", "eth1"), ("2.28.9", None)):
        done = run_in(ctl, *again, "--nccl-version", version)
        assert (done.returncode, done.stdout) == (1, "")
        answer = json.loads(ctl.read("/root/answer.json"))["hosts"][1]["nccl_interface"]
        assert (answer and answer["name"]) == chosen


def test_without_hosts_this_process_is_looked_at(lab: Lab) -> None:
    def alone(*arguments: str) -> tuple[int, dict[str, Any]]:
        wrong = {"NCCL_SOCKET_IFNAME": "^docker"}
        done = lab.controller.run(["nccl-doctor", "ifname", "-q", "-o", "json", *arguments], env=wrong, check=False)
        [host] = json.loads(done.stdout)["hosts"]
        return done.returncode, host

    code, host = alone("--python", sys.executable)
    assert (code, host["name"], host["nccl_interface"]["name"]) == (1, "ctl", "lo")
    assert host["set"] == {"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    code, host = alone("-w", "node1", "--python", sys.executable)  # the job there has an environment of its own
    assert (code, host["name"], host["nccl_interface"]["name"]) == (0, "node1", "eth0")


@pytest.mark.parametrize("version", ["two", "2", "1.0.0", ""])
def test_a_version_that_is_none_gets_one_sentence(lab: Lab, version: str) -> None:
    done = run_in(lab.controller, "ifname", "--nccl-version", version)
    assert done.returncode == 2
    assert "--nccl-version" in done.stderr
    assert "Traceback" not in done.stderr


def test_asked_by_address_each_host_names_its_own_interface(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    for number, host in enumerate(lab.hosts, 1):
        name = f"eno{number}"
        host.run(
            f"ip link add {name} type bridge; ip address add 192.168.7.{number}/24 dev {name}; ip link set {name} up"
        )
    code, hosts = ifname(lab, "--address", "192.168.7.2")
    assert code == 0
    assert {name: (host["has"], host["set"]["NCCL_SOCKET_IFNAME"]) for name, host in hosts.items()} == {
        "node1": (["eno1", "192.168.7.1"], "=eno1"),
        "node2": (["eno2", "192.168.7.2"], "=eno2"),
    }
    screen = run_in(lab.controller, "ifname", "hosts.yaml", "-q", "--address", "192.168.7.2").stdout
    assert "has 192.168.7.2" in screen
    assert ifname(lab, "--address", "192.168.9.9")[0] == 1
    for wrong in ("eno1", "127.0.0.1"):
        done = run_in(lab.controller, "ifname", "hosts.yaml", "-q", "--address", wrong)
        assert (done.returncode, "--address" in done.stderr) == (2, True)
