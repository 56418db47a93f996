"""Names, interfaces, routes, and the switch between the hosts."""

import ipaddress

from tests.lab.cluster import Lab
from tests.lab.faults.catalogue import MASTER_PORT, register
from tests.lab.host import NETWORK, LabHost, inside
from tests.lab.machine import FIRST_INDEX, ip_batch

NEXT_NETWORK = 1 << 16
"""From an address of the lab to the one beside it in the next /16."""

LAST_INDEX = 2 * FIRST_INDEX
"""An interface index behind those of the host's own interfaces."""


def map_name(host: LabHost, name: str, address: str | None) -> None:
    """Have a host's /etc/hosts give another address for a name, or none."""
    kept = [line for line in host.read("/etc/hosts").splitlines() if line.split()[1:] != [name]]
    new = [f"{address} {name}"] if address else []
    host.write("/etc/hosts", "\n".join([*kept, *new]) + "\n")


def switch_rule(lab: Lab, rule: str) -> None:
    lab.switch(["nft", "add", "table", "bridge", "lab"])
    lab.switch(["nft", "add", "chain", "bridge", "lab", "forward", "{ type filter hook forward priority 0; }"])
    lab.switch(["nft", "add", "rule", "bridge", "lab", "forward", *rule.split()])


def _add_bridge(host: LabHost, name: str, address: str, index: int) -> None:
    """A bridge as Docker makes it, with a container's link on it so that it runs."""
    port = f"veth{name[-7:]}"
    script = f"""\
link add name {name} index {index} type bridge
link add name {port} index {LAST_INDEX + index} type veth peer name c{port}
link set {port} master {name} addrgenmode none up
link set c{port} addrgenmode none up
address add {address} brd + dev {name}
link set {name} up
"""
    host.run(["ip", "-batch", "-"], input=script)
    host.wait_until(lambda: host.runs(name), f"a running {name}")


@register("hostname-loopback")
def loop_hostname(lab: Lab, host: LabHost) -> None:
    """The host's own name gives 127.0.1.1, as Debian's installer writes it."""
    map_name(host, host.name, "127.0.1.1")


@register("hostname-unresolvable")
def lose_hostname(lab: Lab, host: LabHost) -> None:
    """The host cannot resolve its own name."""
    map_name(host, host.name, None)


@register("hostname-mismatch")
def mistake_hostname(lab: Lab, host: LabHost) -> None:
    """The host sees another address for the first of its peers than all others do."""
    peer = lab.others(host)[0]
    map_name(host, peer.name, str(ipaddress.ip_address(lab.controller.address) - 2))


@register("mtu-small")
def shrink_mtu(lab: Lab, host: LabHost) -> None:
    """The host's eth0 has an MTU of 1400, all others 1500."""
    host.run(["ip", "link", "set", "eth0", "mtu", "1400"])


@register("mtu-blackhole")
def swallow_large_packets(lab: Lab, host: LabHost) -> None:
    """All hosts have an MTU of 9000, but the switch silently drops what is above 1500 between this one and them.

    The controller keeps 1500, so that SSH works. It is left out of the rules because they see what TCP hands down for
    the card to cut (GSO), which is larger than the packets of a real wire.
    """
    for one in lab.hosts:
        lab.switch(["ip", "link", "set", one.name, "mtu", "9000"])
        one.run(["ip", "link", "set", "eth0", "mtu", "9000"])
    switch_rule(lab, f"iifname {host.name} oifname != {lab.controller.name} meta length > 1500 drop")
    switch_rule(lab, f"oifname {host.name} iifname != {lab.controller.name} meta length > 1500 drop")


@register("jumbo-frames-end")
def let_jumbo_frames_end(lab: Lab, host: LabHost) -> None:
    """All hosts have an MTU of 9000 and the switch has 1500, as where jumbo frames were turned on at the hosts alone."""
    for one in lab.hosts:
        one.run(["ip", "link", "set", "eth0", "mtu", "9000"])


@register("cut-off")
def cut_off(lab: Lab, host: LabHost) -> None:
    """The switch drops all IP between this host and its first peer, both ways; nothing on the hosts explains it."""
    peer = lab.others(host)[0]
    switch_rule(lab, f"ip saddr {host.address} ip daddr {peer.address} drop")
    switch_rule(lab, f"ip saddr {peer.address} ip daddr {host.address} drop")


@register("switch-drops-port")
def drop_port_between(lab: Lab, host: LabHost) -> None:
    """The switch drops what goes to this host's master port, as a cloud's security group does."""
    switch_rule(lab, f"ip daddr {host.address} tcp dport {MASTER_PORT} drop")


@register("docker-bridge")
def add_docker_bridges(lab: Lab, host: LabHost) -> None:
    """Docker runs on every host: docker0 has the same address 172.17.0.1 on all."""
    for one in lab.hosts:
        _add_bridge(one, "docker0", "172.17.0.1/16", index=LAST_INDEX)


@register("compose-bridge")
def add_compose_bridge(lab: Lab, host: LabHost) -> None:
    """A Docker Compose network's bridge comes before eth0 in the kernel's order, and NCCL does not know its name."""
    _add_bridge(host, "br-5f2c8a6e9d01", "172.18.0.1/16", index=5)


@register("duplicate-address")
def duplicate_address(lab: Lab, host: LabHost) -> None:
    """The host also has the address of its first peer."""
    host.run(["ip", "address", "add", f"{lab.others(host)[0].address}/32", "dev", "eth0"])


@register("route-missing")
def lose_route(lab: Lab, host: LabHost) -> None:
    """The host has no route to its first peer."""
    host.run(["ip", "route", "add", "unreachable", f"{lab.others(host)[0].address}/32"])


@register("shared-subnet")
def add_second_interface(lab: Lab, host: LabHost) -> None:
    """The host has a second interface, eth1, in the subnet of eth0."""
    _add_interface(lab, host, "br0", ipaddress.IPv4Address(lab.controller.address) - 2)


@register("second-network")
def add_second_network(lab: Lab, host: LabHost) -> None:
    """Every host has a second interface, eth1, on a switch and a subnet of its own; all reach each other there too."""
    lab.switch(["ip", "link", "add", "br1", "type", "bridge"])
    lab.switch(["ip", "link", "set", "br1", "up"])
    for one in lab.hosts:
        _add_interface(lab, one, "br1", ipaddress.IPv4Address(one.address) + NEXT_NETWORK)


@register("interface-down")
def lose_carrier(lab: Lab, host: LabHost) -> None:
    """Every host has a second network; this host's eth1 is up and keeps its address, but its cable is out."""
    add_second_network(lab, host)
    lab.switch(["ip", "link", "set", _second_port(host), "down"])
    host.wait_until(lambda: not host.runs("eth1"), "eth1 without a carrier")


def _add_interface(lab: Lab, host: LabHost, bridge: str, address: ipaddress.IPv4Address) -> None:
    """A running eth1 with this address, in a subnet as large as that of eth0, on a bridge of the switch."""
    port = _second_port(host)
    link = f"link add name eth1 index {FIRST_INDEX + 1} type veth peer name {port} netns {lab.supervisor}\n"
    inside(host.pid, NETWORK, lambda: ip_batch(link))  # the supervisor's PID means nothing in the host's PID namespace
    lab.switch(["ip", "link", "set", port, "master", bridge, "up"])
    prefix = host.run("ip -o -4 address show dev eth0").stdout.split()[3].partition("/")[2]
    host.run(["ip", "address", "add", f"{address}/{prefix}", "brd", "+", "dev", "eth1"])
    host.run(["ip", "link", "set", "eth1", "up"])
    host.wait_until(lambda: host.runs("eth1"), "a running eth1")


def _second_port(host: LabHost) -> str:
    """The switch's end of a host's eth1."""
    return f"{host.name}b"
