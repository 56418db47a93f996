"""RDMA devices of two hosts, read by the real probe: what is said of healthy pairs, and of each fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.program import run_in
from tests.lab.cluster import Lab, MakeLab
from tests.lab.rdma import Device, give_rdma

pytestmark = pytest.mark.lab

Layout = list[Device]
DOWN: dict[str, Any] = {"state": "1: DOWN", "address": None}


def two(host: int, **second: Any) -> Layout:
    """Two rails; ``second`` changes the second host's first device."""
    devices = [Device(f"mlx5_{n}", net=n, address=f"10.{n}.0.{host}") for n in (1, 2)]
    if host == 2:
        for name, value in second.items():
            setattr(devices[0], name, value)
    return devices


def crossed(host: int) -> Layout:
    devices = two(host)
    return (
        devices
        if host == 1
        else [Device(a.name, b.net, b.address) for a, b in zip(devices, devices[::-1], strict=True)]
    )


def nothing_up(_host: int) -> Layout:
    return [Device(f"mlx5_{n}", net=n, address=None, state="1: DOWN") for n in (1, 2)]


def pinned(index: str) -> dict[str, str]:
    return {"NCCL_IB_GID_INDEX": index}


HEALTHY: dict[str, tuple[Callable[[int], Layout], dict[str, str]]] = {
    "two rails": (two, {}),
    "exact": (two, {"NCCL_IB_HCA": "=mlx5_1,mlx5_2"}),
    "excluded, and of another network": (
        lambda host: two(host, net=9, address="10.9.0.2"),
        {"NCCL_IB_HCA": "^=mlx5_1"},
    ),
    "excluded, and down": (lambda host: two(host, **DOWN), {"NCCL_IB_HCA": "=mlx5_2"}),
    "a pinned index that fits": (two, pinned("3")),
    "an empty index, and tables that differ": (lambda host: two(host, at=4), pinned("")),
    "down everywhere": (nothing_up, {}),
}

NODE2, BOTH = ["node2"], ["node1", "node2"]
Fault = tuple[Callable[[int], Layout], dict[str, str], str, str, list[str]]
FAULTS: dict[str, Fault] = {
    "crossed": (crossed, {}, "rdma-pair-unreachable", "error", BOTH),
    "another subnet": (
        lambda host: two(host, net=9, address="10.9.0.2"), {}, "rdma-pair-unreachable", "error", BOTH,
    ),
    "one down, the others move up": (lambda host: two(host, **DOWN), {}, "rdma-pair-unreachable", "error", BOTH),
    "no GID": (lambda host: two(host, address=None), {}, "rdma-gid-missing", "error", NODE2),
    "a hole": (lambda host: two(host, at=5), pinned("3"), "rdma-gid-missing", "error", NODE2),
    "version 1 alone": (
        lambda host: two(host, kinds=("IB/RoCE v1",)), {}, "rdma-gid-missing", "error", NODE2,
    ),
    "no match on all": (two, {"NCCL_IB_HCA": "=mlx5_8"}, "rdma-hca-no-match", "warning", BOTH),
    "no match where NCCL must have it": (
        two, {"NCCL_IB_HCA": "=mlx5_8", "NCCL_NET": "IB"}, "rdma-hca-no-match", "error", BOTH,
    ),
    "no match on one": (
        lambda host: [Device(f"rocep{n}" if host == 2 else f"mlx5_{n}", n, f"10.{n}.0.{host}") for n in (1, 2)],
        {"NCCL_IB_HCA": "mlx5"}, "rdma-hca-no-match", "warning", NODE2,
    ),
    "a slower port": (
        lambda host: two(host, rate="100 Gb/sec (4X EDR)"), {}, "rdma-link-slow", "warning", NODE2,
    ),
    "lost lanes": (lambda host: two(host, width=2), {}, "rdma-link-slow", "warning", NODE2),
    "no node in /dev": (
        lambda host: [Device(d.name, d.net, d.address, node="" if host == 2 else "666") for d in two(host)],
        {}, "rdma-device-inaccessible", "warning", NODE2,
    ),
}  # fmt: skip


def check(lab: Lab, **hosts_file: Any) -> tuple[int, list[dict[str, Any]]]:
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(**hosts_file))
    done = run_in(lab.controller, "check", "hosts.yaml", "-q", "--no-smoke", "-o", "json")
    return done.returncode, json.loads(done.stdout)["diagnoses"]


def laid(make_lab: MakeLab, layout: Callable[[int], Layout]) -> Lab:
    lab = make_lab(2)
    for number, host in enumerate(lab.hosts, 1):
        give_rdma(lab, host, layout(number))
    return lab


@pytest.mark.parametrize("case", HEALTHY)
def test_nothing_is_said_of_what_works(case: str, make_lab: MakeLab) -> None:
    layout, env = HEALTHY[case]
    assert check(laid(make_lab, layout), env=env) == (0, [])


@pytest.mark.parametrize("case", FAULTS)
def test_each_fault_is_one_diagnosis_and_its_lines_mend_it(case: str, make_lab: MakeLab) -> None:
    layout, env, name, severity, hosts = FAULTS[case]
    lab = laid(make_lab, layout)
    code, found = check(lab, env=env)
    assert [(one["name"], one["severity"], one["hosts"]) for one in found] == [(name, severity, hosts)]
    assert code == (1 if severity == "error" else 0)
    variables = found[0]["fix"]["variables"]
    if variables:
        nodes = [{"name": host.name, "env": {**env, **variables.get(host.name, {})}} for host in lab.hosts]
        assert check(lab, hosts=nodes) == (0, [])


def test_rules_that_lead_to_the_other_network_are_a_way(make_lab: MakeLab) -> None:
    lab = laid(make_lab, crossed)
    for number, host in enumerate(lab.hosts, 1):
        for place, net in enumerate((1, 2) if number == 1 else (2, 1)):
            host.run(f"ip rule add from 10.{net}.0.{number} lookup {100 + place}")
            host.run(f"ip route add 10.0.0.0/8 via 10.{net}.0.254 dev p{place} table {100 + place}")
    assert check(lab) == (0, [])


def test_a_switch_that_drops_is_seen_though_both_are_in_one_network(make_lab: MakeLab) -> None:
    """The cable of node2's first port is in another rail's switch."""
    lab = laid(make_lab, two)
    lab.switch(["ip", "link", "add", "rail7", "type", "bridge"])
    lab.switch(["ip", "link", "set", "node2p0", "master", "rail7"])
    code, found = check(lab)
    assert (code, [(one["name"], one["hosts"]) for one in found]) == (1, [("rdma-pair-unreachable", BOTH)])
    assert "10.1.0.2 did not answer node1 on p0" in found[0]["message"]


def test_a_filter_of_tcp_on_an_rdma_interface_is_nobodys_fault(make_lab: MakeLab) -> None:
    lab = laid(make_lab, two)
    lab.host("node2").run("iptables -A INPUT -i p0 -p tcp -j REJECT --reject-with icmp-host-prohibited")
    lab.host("node2").run("iptables -A INPUT -i p1 -p tcp -j DROP")
    assert check(lab) == (0, [])


TORCH = {
    "__init__.py": """
__version__ = "2.9.1+cu128"
class cuda:
    class nccl:
        version = staticmethod(lambda: (2, 27, 7))
    set_device = staticmethod(lambda _number: None)
""",
    "distributed/__init__.py": """
import os, socket, time
def is_nccl_available():
    return True
class PrefixStore:
    def __init__(self, prefix, store):
        pass
def init_process_group(*_given, **_named):
    print(f"{socket.gethostname()}:{os.getpid()}:{os.getpid()} [0] NCCL INFO Using network {os.environ['USES']}",
          flush=True)
    with open("/sys/class/infiniband/mlx5_2/ports/1/hw_counters/local_ack_timeout_err", "w") as file:
        file.write("21")
    time.sleep(600)
""",
    "distributed/run.py": "",
    "distributed/rendezvous.py": """
class Store(dict):
    def set(self, key, value):
        self[key] = value.encode()
    def check(self, keys):
        return False
def rendezvous(*_given, **_named):
    yield Store(), 0, 2
""",
}
"""Ranks that come as far as NCCL's first connection, and whose packets nobody acknowledges."""


@pytest.mark.parametrize(("uses", "grew"), [("IB", {"mlx5_1:1": {}, "mlx5_2:1": {"local_ack_timeout_err": 14}}),
                                            ("Socket", None)])  # fmt: skip
def test_counters_are_read_around_the_all_reduce(
    uses: str, grew: dict[str, dict[str, int]] | None, make_lab: MakeLab
) -> None:
    lab = laid(make_lab, two)
    for host in lab.hosts:
        host.write("/run/sys/class/infiniband/mlx5_2/ports/1/hw_counters/local_ack_timeout_err", "7\n")
        for name, text in TORCH.items():
            host.write(f"/opt/made/torch/{name}", text)
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(env={"PYTHONPATH": "/opt/made", "USES": uses}))
    words = ("--backend", "nccl", "--smoke-timeout", "3", "-o", "json")
    done = run_in(lab.controller, "smoke", "hosts.yaml", "-q", *words)
    document = json.loads(done.stdout)
    (found,) = document["diagnoses"]
    assert (done.returncode, found["name"]) == (1, "allreduce-timeout")
    assert document["smoke"]["rdma_grown"] == ({} if grew is None else {"node1": grew, "node2": grew})
    told = "node2: mlx5_2:1: 14 packets that nobody acknowledged in time"
    assert (told in found["evidence"], "PFC or ECN" in found["fix"]["summary"]) == (uses == "IB", uses == "IB")


def test_ifname_shows_whom_each_device_meets(make_lab: MakeLab) -> None:
    lab = laid(make_lab, crossed)
    lab.controller.write("/root/hosts.yaml", lab.hosts_file())
    done = run_in(lab.controller, "ifname", "hosts.yaml", "-q", "-o", "json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    rows = {
        host["name"]: [(row["device"], row["netdev"], row["gid"], row["network"]) for row in host["rdma"]]
        for host in document["hosts"]
    }
    assert rows == {
        "node1": [("mlx5_1", "p0", "10.1.0.1", "10.1.0.0/24"), ("mlx5_2", "p1", "10.2.0.1", "10.2.0.0/24")],
        "node2": [("mlx5_1", "p0", "10.2.0.2", "10.2.0.0/24"), ("mlx5_2", "p1", "10.1.0.2", "10.1.0.0/24")],
    }
    assert {row["trouble"] for row in document["hosts"][0]["rdma"]} == {"no way to node2's"}
    screen = run_in(lab.controller, "ifname", "hosts.yaml", "-q").stdout
    assert "node2 [0]       mlx5_1 on p0  3  10.2.0.2  10.2.0.0/24  no way to node1's" in screen
    assert "NCD403 rdma-pair-unreachable" in screen
    old = run_in(lab.controller, "ifname", "hosts.yaml", "-q", "-o", "json", "--nccl-version", "2.19.3")
    assert {row["gid_index"] for row in json.loads(old.stdout)["hosts"][0]["rdma"]} == {0}
