"""What engines would tell their peers on real hosts: real UDP connects and Ray itself agree, and what is printed mends."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.checks.in_the_lab import ALL, check, everywhere, is_healthy, only, printed
from tests.cli.doctor import doctor
from tests.lab.cluster import Lab
from tests.lab.faults import fault
from tests.lab.host import LabHost
from tests.servers import witness

pytestmark = pytest.mark.lab

CONNECT = """
import socket, sys
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.connect((sys.argv[1], 80))
print(asking.getsockname()[0])
"""
RAY = """
import sys
from ray._private.services import get_node_ip_address
print(get_node_ip_address(*sys.argv[1:]))
"""


def python(host: LabHost, program: str, *words: str) -> str:
    """The last word that a program in Python prints on a host, with Ray within its reach."""
    command = ["env", f"PYTHONPATH={witness.ray()}", sys.executable, "-c", program, *words]
    return host.run(command).stdout.split()[-1]


def second(host: LabHost) -> str:
    """Its address in the second network."""
    return host.address.replace("10.77.", "10.78.")


@pytest.fixture(scope="module")
def two_nets() -> Iterator[Lab]:
    """Hosts that are listed by eth0, and whose default route leaves by eth1; each test mends what it broke."""
    with Lab.up(3) as lab:
        fault("second-network")(lab, lab.hosts[0])
        for host in lab.hosts:
            host.run("ip route replace default via 10.78.0.253 dev eth1")
        yield lab


def test_ifname_says_what_a_real_connect_and_ray_itself_give(two_nets: Lab) -> None:
    told = {one["name"]: one["advertises"] for one in doctor(two_nets, "ifname").report["hosts"]}
    head = two_nets.hosts[0]
    for host in two_nets.hosts:
        mine = told[host.name]
        assert mine["vllm"]["address"] == python(host, CONNECT, "8.8.8.8") == second(host)
        assert mine["sglang"]["address"] == second(host)
        said = () if host is head else (f"{head.address}:6379",)
        assert mine["ray"]["address"] == python(host, RAY, *said) == (second(host) if host is head else host.address)
        assert (mine["gloo"]["address"], mine["torchrun"]["address"]) == (host.address, host.name)
        assert "eth1" in mine["vllm"]["why"]
    screen = two_nets.controller.run("nccl-doctor ifname hosts.yaml -q --engine vllm").stdout
    assert "10.78.0.x" in screen
    assert "sglang" not in screen


@pytest.mark.parametrize(("engine", "variable"), [("vllm", "VLLM_HOST_IP"), ("sglang", "SGLANG_HOST_IP")])
def test_another_nets_address_is_an_error_until_what_is_printed_is_set(
    two_nets: Lab, engine: str, variable: str
) -> None:
    found = only(check(two_nets, engine=engine), "advertised-address-wrong", ALL)
    assert (found["severity"], found["facts"]["engines"]) == ("error", [engine])
    assert "an address of eth1" in found["message"]
    env = printed(found, everywhere())
    assert env == {host.name: {variable: host.address} for host in two_nets.hosts}
    is_healthy(check(two_nets, env, engine=engine))
    is_healthy(check(two_nets))


def test_rays_head_is_told_to_use_the_clusters_net_and_a_node_that_runs_is_believed(two_nets: Lab) -> None:
    with_ray = everywhere(PYTHONPATH=str(witness.ray()))
    installed = only(check(two_nets, with_ray), "advertised-address-wrong", ["node1"])
    assert installed["severity"] == "info"
    found = only(check(two_nets, with_ray, engine="ray"), "advertised-address-wrong", ["node1"])
    assert (found["severity"], installed["facts"]) == ("error", found["facts"])
    (command,) = found["fix"]["commands"]
    head = two_nets.hosts[0]
    assert command["command"] == f"ray start --head --node-ip-address={head.address} --port=6379"
    # as a Ray node's process is called, and told: the start itself takes a minute and a gigabyte
    head.write("/root/raylet", "#!/bin/sh\nsleep 1000\n", 0o755)
    with head.popen(["/root/raylet", "--raylet_socket_name=x", f"--node_ip_address={head.address}"]) as node:
        is_healthy(check(two_nets, with_ray, engine="ray"))
        node.kill()


def test_one_address_for_all_is_named_on_the_hosts_it_is_wrong_for(two_nets: Lab) -> None:
    shared = everywhere(VLLM_HOST_IP=two_nets.hosts[0].address)
    found = only(check(two_nets, shared, engine="vllm"), "advertised-address-wrong", ["node2", "node3"])
    assert "does not belong to the host" in found["message"]
    is_healthy(check(two_nets, printed(found, shared), engine="vllm"))
    run = check(two_nets, shared)
    assert only(run, "advertised-address-wrong", ["node2", "node3"])["severity"] == "info"
    assert run.code == 0


def test_an_address_that_is_set_is_dialled(two_nets: Lab) -> None:
    chosen = {host.name: {"VLLM_HOST_IP": second(host), "NCCL_SOCKET_IFNAME": "=eth0"} for host in two_nets.hosts}
    is_healthy(check(two_nets, chosen, engine="vllm"))
    two_nets.switch(["ip", "link", "set", "node2b", "nomaster"])
    try:
        found = only(check(two_nets, chosen, engine="vllm"), "advertised-address-wrong", ["node2"])
        assert "which the other hosts can't reach" in found["message"]
        is_healthy(check(two_nets, printed(found, chosen), engine="vllm"))
    finally:
        two_nets.switch(["ip", "link", "set", "node2b", "master", "br1"])


def test_without_a_way_out_vllm_tells_the_wildcard_and_sglang_a_loopback_name(fresh_lab: Lab) -> None:
    for host in fresh_lab.hosts:
        host.run("ip route del default")
    found = only(check(fresh_lab, engine="vllm"), "advertised-address-wrong", ALL)
    assert "0.0.0.0" in found["message"]
    fault("hostname-loopback")(fresh_lab, fresh_lab.host("node2"))
    told = {one["name"]: one["advertises"] for one in doctor(fresh_lab, "ifname").report["hosts"]}
    for host in fresh_lab.hosts:
        assert told[host.name]["ray"]["address"] == python(
            host, RAY, *(() if host.name == "node1" else ("10.77.0.1:6379",))
        )
    run = check(fresh_lab, engine="sglang")
    found = next(one for one in run.report["diagnoses"] if one["name"] == "advertised-address-wrong")
    assert found["hosts"] == ["node2"]
    assert "loopback" in found["message"]
    mended = printed(found, everywhere())
    assert "advertised-address-wrong" not in check(fresh_lab, mended, engine="sglang").names


def test_a_port_that_was_drawn_and_lost_is_kept_by_what_fix_port_prints(fresh_lab: Lab) -> None:
    host = fresh_lab.hosts[0]
    fresh_lab.controller.write("/root/hosts.yaml", fresh_lab.hosts_file())
    call = "nccl-doctor fix-port 40123 --hosts hosts.yaml --host node1"
    shown = fresh_lab.controller.run(call).stdout
    assert "binds it later" in " ".join(shown.split())
    (command,) = (line for line in shown.splitlines() if line.startswith("sysctl"))
    host.run(command)
    assert "sysctl" not in fresh_lab.controller.run(call).stdout
    assert "sysctl" not in fresh_lab.controller.run(call.replace("40123", "29500")).stdout
