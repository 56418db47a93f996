"""Faults of interfaces and the network: each is one diagnosis of the right host, and what is printed ends it.

Beside each fault stands its nearest healthy neighbour, which nobody is told of.
"""

from __future__ import annotations

import pytest

from tests.checks.in_the_lab import ALL, check, everywhere, fires_and_what_is_printed_ends_it, is_healthy, only, paste
from tests.lab.cluster import Lab
from tests.lab.faults import fault

pytestmark = pytest.mark.lab


def test_settings_that_serve(lab: Lab) -> None:
    settings = ("=eth0", "^docker,lo", "eth")
    is_healthy(
        check(
            lab,
            {
                name: {"NCCL_SOCKET_IFNAME": setting, "GLOO_SOCKET_IFNAME": "eth0"}
                for name, setting in zip(ALL, settings, strict=True)
            },
        )
    )


def test_no_match(lab: Lab) -> None:
    env = {"node2": {"NCCL_SOCKET_IFNAME": "eno"}}
    found = fires_and_what_is_printed_ends_it(lab, "ifname-no-match", ["node2"], env)
    assert "Bootstrap : no socket interface found" in found["message"]


def test_no_match_in_a_config_file(fresh_lab: Lab) -> None:
    wrong = "# of the old machines\nNCCL_SOCKET_IFNAME=eno\n"
    for host, path in zip(fresh_lab.hosts, ("/etc/nccl.conf", "/root/.nccl.conf", "/opt/team.conf"), strict=True):
        host.write(path, wrong)
    env = {"node3": {"NCCL_CONF_FILE": "/opt/team.conf"}}
    found = fires_and_what_is_printed_ends_it(fresh_lab, "ifname-no-match", ALL, env)
    for place in ("/etc/nccl.conf:2 on node1", "/root/.nccl.conf:2 on node2", "/opt/team.conf:2 on node3"):
        assert place in found["message"]


def test_a_list_with_a_caret_leads_to_lo(lab: Lab) -> None:
    env = everywhere(NCCL_SOCKET_IFNAME="^docker")
    found = fires_and_what_is_printed_ends_it(lab, "ifname-wrong-interface", ALL, env)
    assert "will use lo (127.0.0.1), the loopback interface, which no other host can reach" in found["message"]


def test_gloo_knows_whole_names_only(lab: Lab) -> None:
    env = everywhere(GLOO_SOCKET_IFNAME="=eth0")
    fires_and_what_is_printed_ends_it(lab, "gloo-ifname-invalid", ALL, env)


def test_bridges_of_containers(fresh_lab: Lab) -> None:
    fault("docker-bridge")(fresh_lab, fresh_lab.host("node2"))
    is_healthy(check(fresh_lab))  # there, and not chosen
    wrong = everywhere(NCCL_SOCKET_IFNAME="docker0")
    found = fires_and_what_is_printed_ends_it(fresh_lab, "ifname-wrong-interface", ALL, wrong)
    assert "whose address other hosts also have" in found["message"]
    several = everywhere(NCCL_SOCKET_IFNAME="eth,docker")
    fires_and_what_is_printed_ends_it(fresh_lab, "ifname-ambiguous", ALL, several)
    fault("compose-bridge")(fresh_lab, fresh_lab.host("node2"))
    fires_and_what_is_printed_ends_it(fresh_lab, "ifname-needed", ["node2"])


def test_a_second_network(fresh_lab: Lab) -> None:
    fault("second-network")(fresh_lab, fresh_lab.host("node2"))
    is_healthy(check(fresh_lab))  # NCCL uses both, and all hosts reach each other on both
    is_healthy(check(fresh_lab, everywhere(NCCL_SOCKET_IFNAME="=eth1")))


def test_an_interface_without_carrier(fresh_lab: Lab) -> None:
    fault("interface-down")(fresh_lab, fresh_lab.host("node2"))
    # NCCL 2.28.9 passes over it on node2 alone: the others listen on it, and node2 can't reach them there
    for hosts in (everywhere(), everywhere(NCCL_SOCKET_IFNAME="^docker,lo,virbr")):
        found = only(check(fresh_lab, hosts), "interface-down", ["node2"])
        assert "or have NCCL use eth0" in found["fix"]["summary"]
    is_healthy(check(fresh_lab, everywhere(NCCL_SOCKET_IFNAME="=eth0")))
    env = {"node2": {"NCCL_SOCKET_IFNAME": "=eth1"}}
    fires_and_what_is_printed_ends_it(fresh_lab, "interface-down", ["node2"], env)


def test_two_interfaces_on_one_subnet(fresh_lab: Lab) -> None:
    host = fresh_lab.host("node2")
    fault("shared-subnet")(fresh_lab, host)
    fires_and_what_is_printed_ends_it(fresh_lab, "shared-subnet-nics", ["node2"])
    host.run(["sysctl", "-w", "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2"])
    is_healthy(check(fresh_lab))  # somebody set it up so on purpose


def test_mtus_that_differ(fresh_lab: Lab) -> None:
    fault("mtu-small")(fresh_lab, fresh_lab.host("node2"))
    found = only(check(fresh_lab), "mtu-mismatch", ["node2"])
    assert found["severity"] == "warning"
    paste(fresh_lab, found)
    is_healthy(check(fresh_lab))


def test_large_packets_vanish(fresh_lab: Lab) -> None:
    fault("mtu-blackhole")(fresh_lab, fresh_lab.host("node2"))
    found = only(check(fresh_lab), "mtu-blackhole", ["node2"])
    assert found["severity"] == "error"
    fresh_lab.switch(["nft", "flush", "chain", "bridge", "lab", "forward"])
    is_healthy(check(fresh_lab))  # jumbo frames end to end
    rule = "iifname node* oifname node* meta length > 1500 drop"
    fresh_lab.switch(["nft", "add", "rule", "bridge", "lab", "forward", *rule.split()])
    only(check(fresh_lab), "mtu-blackhole", ALL)  # the switch passes no jumbo frame at all


def test_jumbo_frames_end_at_the_switch(fresh_lab: Lab) -> None:
    """What is lost again and again, and only above a size, is no loss at random."""
    fault("jumbo-frames-end")(fresh_lab, fresh_lab.host("node2"))
    found = only(check(fresh_lab), "mtu-blackhole", ALL)
    assert "of 32768 bytes never arrived, in segments of 8948" in " ".join(found["evidence"])
    assert "`ip link set dev eth0 mtu 1500`" in found["fix"]["summary"]


def test_a_route_is_missing(fresh_lab: Lab) -> None:
    host = fresh_lab.host("node2")
    host.run(["ip", "route", "delete", "default"])
    is_healthy(check(fresh_lab))  # all hosts are on one subnet
    fault("route-missing")(fresh_lab, host)
    found = only(check(fresh_lab), "route-missing", ["node2"])
    assert found["facts"]["to"] == {"node1": fresh_lab.host("node1").address}


def test_a_netmask_that_is_too_narrow(fresh_lab: Lab) -> None:
    host = fresh_lab.host("node3")
    host.run(
        "ip address del 10.77.0.3/24 dev eth0; ip address add 10.77.0.3/31 dev eth0; ip route add 10.77.0.254 dev eth0"
    )
    host.run("ip route add default via 10.77.0.253 dev eth0 onlink")  # nobody has that address
    found = only(check(fresh_lab), "route-diverted", ["node3"])
    assert found["message"].startswith("node3 sends packets for node1 to the gateway 10.77.0.253 through eth0")
    assert "Give eth0 there the prefix length of the others, 10.77.0.0/24" in found["fix"]["summary"]
    host.run("ip address add 10.77.0.3/24 dev eth0; ip address del 10.77.0.3/31 dev eth0")
    is_healthy(check(fresh_lab))


def test_nets_without_a_way_to_each_other(fresh_lab: Lab) -> None:
    """A prefix lets the interface of a dead net through, too: that no host has a route into it follows."""
    for number, host in enumerate(fresh_lab.hosts):
        host.run("ip link add eth00 index 3 type bridge; ip link add dv0 type veth peer name dv1; ip route del default")
        host.run("ip link set dv0 master eth00; ip link set dv0 up; ip link set dv1 up; ip link set eth00 up")
        host.run(f"ip address add 10.99.{number}.1/24 dev eth00")
    env = everywhere(NCCL_SOCKET_IFNAME="eth0")
    found = fires_and_what_is_printed_ends_it(fresh_lab, "ifname-ambiguous", ALL, env)
    (effect,) = found["explains"]
    assert (effect["name"], effect["hosts"]) == ("route-missing", ALL)
    assert effect["message"] == "None of node[1-3] has a route to the others (10.99.0.1, 10.99.1.1 and 10.99.2.1)."


def test_a_tunnel_to_which_nobody_has_a_route(fresh_lab: Lab) -> None:
    for host in fresh_lab.hosts:
        host.run("ip route del default")
    tunnel = "ip link add wg0 index 3 type bridge; ip link set wg0 up; ip address add 10.8.0.3/24 dev wg0"
    fresh_lab.host("node3").run(tunnel)
    found = fires_and_what_is_printed_ends_it(fresh_lab, "ifname-needed", ["node3"])
    assert [(effect["name"], effect["hosts"]) for effect in found["explains"]] == [
        ("route-missing", ["node1", "node2"])
    ]


def test_an_address_twice(fresh_lab: Lab) -> None:
    fault("duplicate-address")(fresh_lab, fresh_lab.host("node2"))
    only(check(fresh_lab), "duplicate-address", ["node1", "node2"])
