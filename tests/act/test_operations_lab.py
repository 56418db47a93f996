"""Every operation with the real program: run, undo, and what was there before is there again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nccl_doctor.model.operation import Operation, StateLines, same
from nccl_doctor.model.operations.firewall import FirewalldAllow, IptablesAllow, NftAllow, UfwAllow
from nccl_doctor.model.operations.system import (
    FileMode,
    HostsEntry,
    IpRouteDelete,
    IpRule,
    LinkUp,
    Remount,
    ShmFolder,
    ShmMount,
    SysctlSet,
)
from nccl_doctor.text.shell import Line
from tests.lab.cluster import Lab
from tests.lab.faults import fault
from tests.lab.host import LabHost

pytestmark = pytest.mark.lab

PEERS = ("10.77.0.2", "10.77.0.3")
MULTI = ("-p", "tcp", "-m", "multiport", "--dports", "29500,32768:60999", "-j", "ACCEPT")
NFT = NftAllow(PEERS, "inet", "f", "input", ("ip", "saddr", "{ 10.77.0.2, 10.77.0.3 }", "tcp", "dport", "{ 29500 }", "accept"), "nccl-doctor 0123abcd")  # fmt: skip
CHAIN = "nft 'add table inet f; add chain inet f input { type filter hook input priority 0; }'"
RICH = 'rule family="ipv4" source address="10.77.0.2" port port="29500" protocol="tcp" accept'
DIRECT = FirewalldAllow(PEERS[:1], permanent=True, direct=("ipv4", "filter", "INPUT", "-1", "-s", PEERS[0], *MULTI))

CASES: dict[str, tuple[str, Operation, str]] = {
    "sysctl": ("sysctl -w net.ipv4.ip_local_port_range='32768 60999'", SysctlSet((("net.ipv4.ip_local_port_range", "15000 65000"),)), "sysctl -n net.ipv4.ip_local_port_range"),
    "an empty sysctl": ("true", SysctlSet((("net.ipv4.ip_local_reserved_ports", "29500"), ("net.ipv4.ip_local_port_range", "20000 60000"))), "sysctl -n net.ipv4.ip_local_reserved_ports net.ipv4.ip_local_port_range"),
    "hosts": ("true", HostsEntry((("10.77.0.9", "node9"),)), "cat /etc/hosts"),
    "hosts behind a link": ("mkdir -p /etc/kept; mv /etc/hosts /etc/kept/hosts; ln -s kept/hosts /etc/hosts", HostsEntry((("10.77.0.9", "node9"),)), "cat /etc/kept/hosts; readlink /etc/hosts"),
    "hosts of a container": ("cp /etc/hosts /root/hosts; mount --bind /root/hosts /etc/hosts", HostsEntry((("10.77.0.9", "node9"),)), "cat /etc/hosts /root/hosts; ls /etc"),
    "hosts without a last newline": ("printf %s \"$(cat /etc/hosts)\" > /etc/hosts", HostsEntry((("10.77.0.9", "node9"), ("10.77.0.8", "node8"))), "cat /etc/hosts; stat -c '%a %U' /etc/hosts"),
    "rule": ("true", IpRule("10.77.0.0/24"), "ip rule show"),
    "rule for one address": ("true", IpRule("10.77.0.3/32"), "ip rule show"),
    "rule for IPv6": ("true", IpRule("fd00:7::/64"), "ip -6 rule show"),
    "route": ("ip route add blackhole 10.99.0.0/24 metric 7", IpRouteDelete("blackhole", "10.99.0.0/24"), "ip route show"),
    "route of a table": ("ip route add prohibit 10.99.0.7 table 70; ip rule add to 10.99.0.7 lookup 70", IpRouteDelete("prohibit", "10.99.0.7", "70"), "ip route show table 70"),
    "default route of a table": ("ip route add blackhole default table 71; ip rule add to 10.99.0.7 lookup 71", IpRouteDelete("blackhole", "0.0.0.0/0", "71"), "ip route show table 71"),
    "route for IPv6": ("ip -6 route add unreachable fd00:9::/64 metric 7", IpRouteDelete("unreachable", "fd00:9::/64"), "ip -6 route show | sed 's/ error.*//'"),
    "mode": ("touch /root/k; chmod 644 /root/k", FileMode("600", ("/root/k",)), "stat -c %a /root/k"),
    "shm": ("umount /dev/shm; true", ShmMount(), "grep -c ' /dev/shm ' /proc/mounts; true"),
    "shm size": ("mount -o remount,size=64m /dev/shm", Remount(1), "df -k --output=size /dev/shm"),
    "nft": (CHAIN, NFT, "nft list ruleset"),
    "iptables": ("true", IptablesAllow(PEERS[:1], "iptables-nft", "filter", "INPUT", ("-s", PEERS[0], *MULTI)), "iptables-nft -S"),
    "iptables of another table": ("true", IptablesAllow(PEERS[:1], "iptables-legacy", "raw", "PREROUTING", ("-s", PEERS[0], *MULTI)), "iptables-legacy -t raw -S"),
    "ufw": ("ufw --force enable", UfwAllow(PEERS[:1], "29500,32768:60999", outgoing=False, first=True), "ufw show added"),
    "ufw outward": ("ufw --force enable", UfwAllow(PEERS[:1], "29500", outgoing=True, first=False), "ufw show added"),
}  # fmt: skip
FIREWALLD: dict[str, tuple[str, Operation, str]] = {
    "sources for good": ("true", FirewalldAllow(PEERS, permanent=True, zone="trusted", entries=tuple(("source", one) for one in PEERS)), "firewall-cmd --permanent --list-all --zone=trusted; ls /etc/firewalld/zones/*.xml"),
    "sources at run time": ("true", FirewalldAllow(PEERS, permanent=False, zone="trusted", entries=tuple(("source", one) for one in PEERS)), "firewall-cmd --list-all --zone=trusted"),
    "one of two was there": (f"firewall-cmd -q --zone=trusted --add-source={PEERS[1]}", FirewalldAllow(PEERS, permanent=False, zone="trusted", entries=tuple(("source", one) for one in PEERS)), "firewall-cmd --list-all --zone=trusted"),
    "a zone with a file of its own": ("firewall-cmd -q --permanent --zone=trusted --add-port=80/tcp", FirewalldAllow(PEERS, permanent=True, zone="trusted", entries=(("source", PEERS[0]),)), "firewall-cmd --permanent --list-all --zone=trusted; ls /etc/firewalld/zones/*.xml"),
    "rich rule": ("true", FirewalldAllow(PEERS[:1], permanent=True, zone="public", entries=(("rich-rule", RICH),)), "firewall-cmd --permanent --list-all --zone=public"),
    "direct rule": ("true", DIRECT, "firewall-cmd --permanent --direct --get-all-rules"),
}  # fmt: skip


@pytest.fixture(scope="module")
def firewalld() -> Iterator[LabHost]:
    with Lab.up(1) as lab:
        fault("firewalld-public")(lab, lab.hosts[0])
        yield lab.hosts[0]


def sh(host: LabHost, text: str | Line | None) -> str:
    assert text is not None
    return host.run(["sh", "-c", str(text)]).stdout


def goes_and_comes(host: LabHost, prepare: str, operation: Operation, shown: str) -> None:
    """Run and undo it, twice; the second time it finds what the first one found."""
    sh(host, prepare)
    for _ in range(2):
        whole, before = sh(host, shown), state(host, operation)
        assert not operation.holds(before), before
        sh(host, operation.line)
        assert operation.holds(state(host, operation)), state(host, operation)
        assert operation.expected in (None, state(host, operation))
        if operation.line is not None and "||" in str(operation.line):
            sh(host, operation.line)  # pasted twice
        sh(host, operation.undo(before))
        assert same(state(host, operation), before)
        assert sh(host, shown) == whole


def state(host: LabHost, operation: Operation) -> StateLines:
    return tuple(line.strip() for line in sh(host, operation.look).splitlines() if line.strip())


@pytest.mark.parametrize("name", CASES)
def test_it_goes_and_comes(fresh_lab: Lab, name: str) -> None:
    goes_and_comes(fresh_lab.host("node1"), *CASES[name])


@pytest.mark.parametrize("name", FIREWALLD)
def test_it_goes_and_comes_with_firewalld(firewalld: LabHost, name: str) -> None:
    goes_and_comes(firewalld, *FIREWALLD[name])


def test_what_somebody_wrote_into_the_zone_since_stays(firewalld: LabHost) -> None:
    """Only the entries go; a file that says something else than the zone as installed is somebody's."""
    ours = FIREWALLD["sources for good"][1]
    before = state(firewalld, ours)
    sh(firewalld, ours.line)
    sh(firewalld, "firewall-cmd -q --permanent --zone=trusted --add-masquerade")
    sh(firewalld, ours.undo(before))
    try:
        assert same(state(firewalld, ours), before)
        assert sh(firewalld, "firewall-cmd --permanent --zone=trusted --query-masquerade").strip() == "yes"
    finally:
        sh(firewalld, "rm -f /etc/firewalld/zones/trusted.xml*")


def test_a_larger_shm_is_undone_whatever_lies_in_it(fresh_lab: Lab) -> None:
    host, larger = fresh_lab.host("node1"), Remount(1)
    sh(host, "mount -o remount,size=4096k /dev/shm")
    before = state(host, larger)
    sh(host, larger.line)
    sh(host, "echo 1 > /dev/shm/torch_1")
    sh(host, larger.undo(before))
    assert state(host, larger) == before == ("4096",)


def test_an_interface_comes_up_and_goes_down(fresh_lab: Lab) -> None:
    host = fresh_lab.host("node1")
    sh(host, "ip link add v1 type veth peer name v2")
    up = LinkUp("v1")
    before = state(host, up)
    assert not up.holds(before)
    sh(host, up.line)
    assert up.holds(state(host, up))
    sh(host, up.undo(before))
    assert state(host, up) == before


@pytest.mark.parametrize(
    ("operation", "hidden"), [(NFT, "nft"), (DIRECT, "firewall-cmd"), (IpRule("10.0.0.0/8"), "ip"), (ShmFolder(), "")]
)
def test_a_missing_program_is_no_word_that_nothing_is_there(fresh_lab: Lab, operation: Operation, hidden: str) -> None:
    host = fresh_lab.host("node1")
    done = host.run(["sh", "-c", f"PATH=/nowhere; {operation.look}"], check=False)
    assert done.returncode == (3 if hidden else 0), done.stdout
