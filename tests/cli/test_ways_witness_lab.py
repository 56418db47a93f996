"""Routes and filters of a host's own, with torch's own verdict; what is printed is pasted, and torch works again."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.checks.in_the_lab import ALL, check, everywhere, is_healthy, only, paste, printed
from tests.cli import gloo_job
from tests.lab.cluster import Lab
from tests.lab.faults import fault
from tests.lab.faults.network import switch_rule

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def two_nets() -> Iterator[Lab]:
    """Three hosts with a second network that the tests of this module share; each mends what it broke."""
    with Lab.up(3) as lab:
        fault("second-network")(lab, lab.host("node1"))
        yield lab


def ends_with_what_is_printed(lab: Lab, name: str, host: str) -> str:
    """torch fails, one diagnosis names the host, and its lines end both; the message."""
    assert gloo_job.fails(lab)
    found = only(check(lab, by_address=True), name, [host])
    assert found["fix"]["commands"]
    for command in found["fix"]["commands"]:
        lab.host(command["host"]).run(command["command"])
    assert gloo_job.works(lab)
    return str(found["message"])


@pytest.mark.parametrize(
    ("tunnel", "own", "table", "rule"),
    [
        ("tun0", "", 100, "from 10.77.0.3"),
        # as wg-quick sets it up: the peers answer to the tunnel's own address, and have no route there
        ("wg0", "&& ip address add 10.200.0.3/32 dev wg0", 51820, "to 10.77.0.0/30"),
    ],
)
def test_a_policy_route_into_a_vpn(two_nets: Lab, tunnel: str, own: str, table: int, rule: str) -> None:
    node = two_nets.host("node3")
    node.run(f"ip link add {tunnel} index 99 type bridge && ip link set {tunnel} up {own}")
    node.run(f"ip route add default dev {tunnel} table {table} && ip rule add {rule} table {table} priority 50")
    node.run(f"ip rule add to {two_nets.controller.address} lookup main priority 40")  # SSH works
    try:
        message = ends_with_what_is_printed(two_nets, "route-diverted", "node3")
        assert f"node3 sends packets for node[1-2] through {tunnel} (routing table {table})" in message
    finally:
        node.run(
            f"ip rule del priority 50; ip rule del priority 40; ip rule del priority 1; ip link del {tunnel}; true"
        )


def test_a_strict_filter_and_a_route_by_the_other_network(two_nets: Lab) -> None:
    node, master = two_nets.host("node2"), two_nets.host("node1")
    node.run(f"ip route add {master.address}/32 dev eth1 src {node.address}")
    is_healthy(check(two_nets, by_address=True))
    master.run("sysctl -w net.ipv4.conf.all.rp_filter=1")
    try:
        message = ends_with_what_is_printed(two_nets, "reverse-path-filtered", "node1")
        assert "node1 drops packets from node2: they arrive on eth1" in message
    finally:
        node.run(f"ip route del {master.address}/32; true")
        master.run("sysctl -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth1.rp_filter=0")


def test_a_second_rail_that_is_dead(two_nets: Lab) -> None:
    """gloo moves data over every interface that GLOO_SOCKET_IFNAME names, NCCL over all that its own lets through.

    Without its variable NCCL takes all of them, so its verdict is the same.
    """
    one = {"NCCL_SOCKET_IFNAME": "=eth0"}
    gloo, nccl = {"GLOO_SOCKET_IFNAME": "eth0,eth1"}, {"NCCL_SOCKET_IFNAME": "eth0,eth1"}
    is_healthy(check(two_nets, everywhere(**gloo, **nccl), by_address=True))
    assert gloo_job.works(two_nets, env=gloo)
    two_nets.switch(["ip", "link", "set", "node3b", "nomaster"])
    try:
        is_healthy(check(two_nets, everywhere(**one), by_address=True))
        assert gloo_job.works(two_nets)
        for env, user in (({**gloo, **one}, "gloo"), (nccl, "NCCL"), ({}, "NCCL")):
            found = only(check(two_nets, everywhere(**env), by_address=True), "port-unreachable", ["node3"])
            assert f"over eth1, which {user} will also use for data" in found["message"]
            mended = printed(found, everywhere(**env))
            is_healthy(check(two_nets, mended, by_address=True))
        assert gloo_job.fails(two_nets, env=gloo)
        assert gloo_job.works(two_nets, env={"GLOO_SOCKET_IFNAME": "eth0"})
    finally:
        two_nets.switch(["ip", "link", "set", "node3b", "master", "br1"])


def test_the_interface_that_would_have_worked(two_nets: Lab) -> None:
    """The first net isolates hosts from each other, as a management net may; SSH and the second one work."""
    nodes = ", ".join(host.address for host in two_nets.hosts)
    switch_rule(two_nets, f"ip saddr {{ {nodes} }} ip daddr {{ {nodes} }} drop")
    try:
        assert gloo_job.fails(two_nets)
        found = only(check(two_nets, by_address=True), "ifname-needed", ALL)
        assert "master_addr: 10.78.0.1" in found["fix"]["summary"]
        assert [effect["name"] for effect in found["explains"]] == ["port-unreachable"]
        env = printed(found, {})
        assert env["node2"] == {"NCCL_SOCKET_IFNAME": "=eth1", "GLOO_SOCKET_IFNAME": "eth1"}
        assert gloo_job.works(two_nets, own=env, master="10.78.0.1")
        is_healthy(check(two_nets, env, by_address=True, master_addr="10.78.0.1"))
    finally:
        two_nets.switch(["nft", "flush", "ruleset"])


def test_all_ports_taken(two_nets: Lab) -> None:
    node = two_nets.host("node2")
    before = node.read("/proc/sys/net/ipv4/ip_local_port_range")
    node.run("sysctl -w net.ipv4.ip_local_port_range='40000 40031'")
    hold = "import socket, time; held = [socket.create_server(('', p)) for p in range(40000, 40032)]; time.sleep(999)"
    pid = node.background([sys.executable, "-c", hold])
    try:
        node.wait_until(lambda: sum(port // 32 == 1250 for _, port in node.listeners()) == 32, "its listeners")
        assert gloo_job.fails(two_nets)
        found = only(check(two_nets, by_address=True), "ephemeral-ports-few", ["node2"])
        assert (found["severity"], "no free ephemeral port" in found["message"]) == ("error", True)
        for command in found["fix"]["commands"]:
            node.run(command["command"])
        assert gloo_job.works(two_nets)
        is_healthy(check(two_nets, by_address=True))
    finally:
        node.run(f"kill {pid}; sysctl -w net.ipv4.ip_local_port_range='{before.strip()}'")


def test_the_way_to_oneself(two_nets: Lab) -> None:
    """A firewall that lets in the peers but not the master's own address: rank 0 can't reach its own store."""
    master = two_nets.host("node1")
    rule = f"ip saddr {master.address} tcp dport != 22 drop"
    text = f"table ip f {{ chain in {{ type filter hook input priority 0; policy accept; {rule}\n}}\n}}"
    master.run(["nft", "-f", "-"], input=f"{text}\n")
    try:
        message = ends_with_what_is_printed(two_nets, "firewall-blocks-port", "node1")
        assert "drops the host's own outgoing connections to port 29500" in message
    finally:
        master.run("nft flush ruleset")


def test_a_redirect_of_a_proxy(two_nets: Lab) -> None:
    """What comes in for the master port is handed to another port, as containers and proxies do."""
    rule = "tcp dport 29500 redirect to :8080"
    text = f"table ip f {{ chain pre {{ type nat hook prerouting priority -100; {rule}\n}}\n}}"
    two_nets.host("node1").run(["nft", "-f", "-"], input=f"{text}\n")
    try:
        message = ends_with_what_is_printed(two_nets, "firewall-blocks-port", "node1")
        assert "nftables on node1 redirects the other hosts' connections to port 29500" in message
    finally:
        two_nets.host("node1").run("nft flush ruleset")


def test_a_hosts_own_redirect_to_its_proxy(two_nets: Lab) -> None:
    """All that the host dials is handed to a program that takes it and is silent: the rule is the fault, and alone."""
    node = two_nets.host("node3")
    wait = "import socket, time; s = socket.create_server(('', 15001)); held = [s.accept() for _ in iter(int, 1)]"
    pid = node.background([sys.executable, "-c", wait])
    text = "table ip f { chain out { type nat hook output priority -100; tcp dport != 22 redirect to :15001\n}\n}\n"
    try:
        node.wait_until(lambda: any(port == 15001 for _, port in node.listeners()), "the proxy")
        node.run(["nft", "-f", "-"], input=text)
        message = ends_with_what_is_printed(two_nets, "firewall-blocks-port", "node3")
        assert "nftables on node3 redirects the host's own outgoing connections to port 29500 of the master" in message
    finally:
        node.run(f"nft flush ruleset; kill {pid}")


def test_a_port_that_a_container_publishes(two_nets: Lab) -> None:
    """Docker's one rule meets the others' connections and the master's own."""
    master = two_nets.host("node1")
    local = "-m addrtype --dst-type LOCAL -j DOCKER"
    master.run(f"iptables -t nat -N DOCKER; iptables -t nat -A PREROUTING {local}")
    master.run(f"iptables -t nat -A OUTPUT ! -d 127.0.0.0/8 {local}")
    master.run("iptables -t nat -A DOCKER -p tcp --dport 29500 -j DNAT --to-destination 172.17.0.2:29500")
    try:
        message = ends_with_what_is_printed(two_nets, "firewall-blocks-port", "node1")
        assert "docker on node1 redirects the other hosts' connections to port 29500" in message
    finally:
        master.run("iptables -t nat -F; iptables -t nat -X")


def test_an_interface_that_has_lost_its_address(two_nets: Lab) -> None:
    node, master = two_nets.host("node3"), "10.78.0.1"
    is_healthy(check(two_nets, by_address=True, master_addr=master))
    node.run("ip address del 10.78.0.3/24 dev eth1")
    try:
        assert gloo_job.fails(two_nets, master=master)
        found = only(check(two_nets, by_address=True, master_addr=master), "route-missing", ["node3"])
        assert found["message"].endswith("eth1 on node3 has no address in 10.78.0.0/24.")
        assert "Add the route" not in found["fix"]["summary"]
    finally:
        node.run("ip address add 10.78.0.3/24 dev eth1")
    assert gloo_job.works(two_nets, master=master)


def test_a_route_that_refuses_the_answers(two_nets: Lab) -> None:
    master, node = two_nets.host("node1"), two_nets.host("node3")
    master.run(f"ip route add unreachable {node.address}/32")
    try:
        assert gloo_job.fails(two_nets)
        found = only(check(two_nets, by_address=True), "route-missing", ["node1"])
        assert "an `unreachable` route stands there" in found["fix"]["summary"]
        assert [one["command"] for one in found["fix"]["commands"]] == [f"ip route del unreachable {node.address}"]
        paste(two_nets, found)
    finally:
        master.run(f"ip route del unreachable {node.address}/32; true")
    assert gloo_job.works(two_nets)
    is_healthy(check(two_nets, by_address=True))


def test_a_table_of_a_rule_that_prohibits(two_nets: Lab) -> None:
    node, peers = two_nets.host("node3"), "10.77.0.0/30"
    node.run(f"ip route add prohibit {peers} table 77; ip rule add to {peers} table 77 priority 60")
    try:
        found = only(check(two_nets, by_address=True), "route-missing", ["node3"])
        assert [one["command"] for one in found["fix"]["commands"]] == [f"ip route del prohibit {peers} table 77"]
        paste(two_nets, found)
        is_healthy(check(two_nets, by_address=True))
    finally:
        node.run(f"ip rule del priority 60; ip route del prohibit {peers} table 77; true")
