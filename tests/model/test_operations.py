"""Operations: their texts, what they make of a state, and what undoes them; a real /bin/sh where nothing is changed by it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.model.operation import Operation, StateLines
from nccl_doctor.model.operations.firewall import FirewalldAllow, IptablesAllow, NftAllow, UfwAllow
from nccl_doctor.model.operations.programs import ContainerStart, EndJob, KubeApply, ServicePatch, ServiceStart
from nccl_doctor.model.operations.system import (
    FileMode,
    HostsEntry,
    InContainer,
    IpRouteDelete,
    IpRule,
    LinkMtu,
    LinkUp,
    ModuleLoad,
    ModulesBuild,
    NvidiaDevices,
    NvidiaUnifiedMemory,
    Remount,
    ShmFolder,
    ShmMount,
    SysctlSet,
)
from nccl_doctor.text.shell import Line

SOURCES = FirewalldAllow(
    ("10.0.0.2", "10.0.0.3"), permanent=True, zone="trusted", entries=(("source", "10.0.0.2"), ("source", "10.0.0.3"))
)
RICH = FirewalldAllow(
    ("10.0.0.2",),
    permanent=False,
    zone="work",
    entries=(("rich-rule", 'rule family="ipv4" source address="10.0.0.2" accept'),),
)
DIRECT = FirewalldAllow(
    ("10.0.0.2",),
    permanent=False,
    direct=("ipv4", "filter", "INPUT", "-1", "-s", "10.0.0.2", "-p", "tcp", "-j", "ACCEPT"),
)
IPTABLES = IptablesAllow(("10.0.0.2",), "iptables-nft", "raw", "PREROUTING", ("-s", "10.0.0.2", "-j", "ACCEPT"))
NFT = NftAllow(
    ("10.0.0.2",), "inet", "filter", "input", ("ip", "saddr", "{ 10.0.0.2 }", "accept"), "nccl-doctor 0123abcd"
)
UFW = UfwAllow(("10.0.0.2",), "29500,32768:60999", outgoing=False, first=True)
ROUTE = IpRouteDelete("unreachable", "fd00::1", "7")

OWN_ZONE = "#/etc/firewalld/zones/trusted.xml"

UNDONE: list[tuple[Operation, StateLines, str | None]] = [
    (SysctlSet((("net.ipv4.ip_local_port_range", "15000 65000"),)), ("=32768 60999",), "sysctl -w net.ipv4.ip_local_port_range='32768 60999'"),
    (SysctlSet((("a.b", "1"), ("c.d", "2"))), ("=3", "=4"), "sysctl -w c.d=4 && sysctl -w a.b=3"),
    (SysctlSet((("a.b", "1"),)), ("=",), "echo | tee /proc/sys/a/b"),
    (SysctlSet((("net/ipv4/conf/eth0.7/rp_filter", "2"),)), ("=",), "echo | tee /proc/sys/net/ipv4/conf/eth0.7/rp_filter"),
    (SysctlSet((("a.b", "1"), ("c.d", "2"))), ("=3",), None),
    (RICH, ("no",), "firewall-cmd --zone=work --remove-rich-rule='rule family=\"ipv4\" source address=\"10.0.0.2\" accept'"),
    (SOURCES, ("yes", "no", OWN_ZONE), "firewall-cmd --permanent --zone=trusted --remove-source=10.0.0.3"),
    (SOURCES, ("yes", "no", f"{OWN_ZONE}.old"), "firewall-cmd --permanent --zone=trusted --remove-source=10.0.0.3 && { ! cmp -s /usr/lib/firewalld/zones/trusted.xml /etc/firewalld/zones/trusted.xml || rm -f /etc/firewalld/zones/trusted.xml; }"),
    (SOURCES, ("yes", "yes", OWN_ZONE), None),
    (DIRECT, ("no",), "firewall-cmd --direct --remove-rule ipv4 filter INPUT -1 -s 10.0.0.2 -p tcp -j ACCEPT"),
    (UFW, (), "ufw delete allow proto tcp from 10.0.0.2 to any port 29500,32768:60999"),
    (UFW, ("ufw allow from 10.0.0.2 to any port 29500,32768:60999 proto tcp",), None),
    (IPTABLES, ("absent",), "iptables-nft -w -t raw -D PREROUTING -s 10.0.0.2 -j ACCEPT"),
    (IPTABLES, ("present",), None),
    (NFT, (), "nft delete rule inet filter input handle \"$(nft -a list chain inet filter input | sed -n 's/.*nccl-doctor 0123abcd.* # handle \\([0-9]*\\)$/\\1/p')\""),
    (NFT, ("ip saddr 10.0.0.9 accept comment \"nccl-doctor 0123abcd\"",), None),
    (IpRule("10.0.0.0/24"), (), "ip rule del to 10.0.0.0/24 lookup main priority 1"),
    (IpRule("10.0.0.0/24"), ("1:\tfrom all to 10.0.0.0/24 lookup main",), None),
    (ROUTE, ("unreachable fd00::1 dev lo metric 1024 error -101",), "ip -6 route add unreachable fd00::1 table 7 metric 1024"),
    (ROUTE, ("unreachable fd00::1 dev lo proto static metric 50 pref medium",), "ip -6 route add unreachable fd00::1 table 7 proto static metric 50"),
    (ROUTE, ("unreachable fd00::1 dev lo metric 1024 pref high",), None),
    (IpRouteDelete("unreachable", "10.9.0.0/16"), ("unreachable 10.9.0.0/16 proto 196 ",), "ip route add unreachable 10.9.0.0/16 proto 196"),
    (ROUTE, (), None),
    (Remount(8), ("65536",), "mount -o 'remount,size=65536k' /dev/shm"),
    (InContainer(8, "docker", "train"), ("65536",), "docker exec -u 0 --privileged train mount -o 'remount,size=65536k' /dev/shm"),
    (ShmFolder(), ("missing",), "rmdir /dev/shm"),
    (ShmMount(), ("0",), "umount /dev/shm"),
    (ShmMount(), ("1",), None),
    (FileMode("600", ("/k", "/l")), ("644", "600"), "chmod 644 /k"),
    (ServiceStart("x"), ("disabled", "inactive"), "systemctl disable x && systemctl stop x"),
    (ServiceStart("x"), ("enabled", "inactive"), "systemctl stop x"),
    (LinkUp("eth1"), ("0x1002",), "ip link set eth1 down"),
    (LinkUp("eth1"), ("0x1003",), None),
    (LinkUp("eth1"), ("garbage",), None),
    (ModuleLoad("x"), (), None),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "before", "undo"), UNDONE)
def test_what_undoes_it(operation: Operation, before: StateLines, undo: str | None) -> None:
    found = operation.undo(before)
    assert (None if found is None else str(found)) == undo


OUTDATED: list[tuple[Operation, StateLines, bool]] = [
    (SysctlSet((("a.b", "1,2"),), ("1",)), ("=1",), False),
    (SysctlSet((("a.b", "1,2"),), ("1",)), ("=3",), True),
    (SysctlSet((("a.b", "9 9"), ("c.d", "2")), ("1\t2",)), ("=1 2", "=7"), False),
    (SysctlSet((("a.b", "1,2"),)), ("=3",), False),
    (LinkMtu("eth0", 9000, 1500), ("1500",), False),
    (LinkMtu("eth0", 9000, 1500), ("1400",), True),
    (LinkMtu("eth0", 9000), ("1400",), False),
]


@pytest.mark.parametrize(("operation", "state", "outdated"), OUTDATED)
def test_what_was_made_from_an_earlier_value_is_outdated_by_another(
    operation: Operation, state: StateLines, outdated: bool
) -> None:
    assert operation.is_outdated(state) is outdated


HELD: list[tuple[Operation, StateLines, bool]] = [
    (SysctlSet((("a.b", "1  2"),)), ("=1 2",), True),
    (SysctlSet((("a.b", "1"),)), ("=",), False),
    (SOURCES, ("yes", "yes"), True),
    (SOURCES, ("yes", "no", OWN_ZONE), False),
    (UFW, ("ufw prepend allow from 10.0.0.2 to any port 29500 proto tcp",), False),
    (IPTABLES, ("present",), True),
    (IpRule("10.0.0.7/32"), ("1:\tfrom all to 10.0.0.7 lookup main",), True),
    (ROUTE, (), True),
    (Remount(8), ("8388608",), True),
    (Remount(8), ("x",), False),
    (LinkUp("eth1"), ("0x1003",), True),
    (LinkUp("eth1"), ("garbage",), False),
    (ServiceStart("x"), ("enabled", "active"), True),
    (HostsEntry((("10.0.0.1", "node1"),)), ("closed", "1"), True),
    (HostsEntry((("10.0.0.1", "node1"),)), ("open", "0"), False),
]


@pytest.mark.parametrize(("operation", "state", "holds"), HELD)
def test_what_is_in_place(operation: Operation, state: StateLines, holds: bool) -> None:
    assert operation.holds(state) is holds


EVERY: list[Operation] = [
    *dict.fromkeys(operation for operation, *_ in (*UNDONE, *HELD)),
    ContainerStart("docker", "start", "train"),
    EndJob(Line("nccl-doctor fix-port --pid 7@1 --kill --yes"), "node1", 7, 1),
    KubeApply("{}"),
    ServicePatch("a", "b"),
    ModulesBuild(),
    NvidiaDevices(2),
    NvidiaUnifiedMemory(),
]


@given(st.sampled_from(EVERY), st.lists(st.text(max_size=40), max_size=5))
def test_no_state_breaks_an_operation(operation: Operation, words: list[str]) -> None:
    """A host prints whatever it likes."""
    state = tuple(words)
    assert operation.line is not None
    assert operation.holds(state) in (True, False)
    undo = operation.undo(state)
    assert undo is None or "\n" not in str(undo)


@pytest.mark.parametrize("operation", EVERY, ids=str)
def test_a_text_is_one_line_that_a_shell_reads(operation: Operation) -> None:
    for text in (operation.line, operation.look):
        assert text is None or "\n" not in str(text)
        assert text is None or subprocess.run(["/bin/sh", "-n", "-c", str(text)], check=False).returncode == 0


def test_a_failed_service_counts_as_stopped(tmp_path: Path) -> None:
    """The undo leaves it stopped, which has to be the state before."""
    program = tmp_path / "systemctl"
    program.write_text(
        "#!/bin/sh\n[ $1 = is-enabled ] && echo enabled && exit\necho failed\nexit 3\n", encoding="ascii"
    )
    program.chmod(0o755)
    look = str(ServiceStart("x").look)
    done = subprocess.run(
        ["/bin/sh", "-c", f'PATH="{tmp_path}:$PATH"; {look}'], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["enabled", "inactive"]


def test_whether_an_entry_of_the_hosts_file_survives_depends_on_the_machine() -> None:
    """cloud-init and container engines write the file anew."""
    assert HostsEntry((("10.0.0.1", "node1"),)).survives_reboot is None


def test_nvidias_device_files_are_those_of_all_gpus() -> None:
    """One for each GPU, and nvidiactl; -u would leave all of them out."""
    assert str(NvidiaDevices(2).line) == "nvidia-modprobe -c 255 -c 0 -c 1"


def test_operations_that_differ_in_peers_alone_are_of_one_kind() -> None:
    """Only these are folded on the screen."""
    one, other = (
        (FirewalldAllow((peer,), permanent=True, zone="trusted", entries=(("source", peer),)))
        for peer in ("10.0.0.2", "10.0.0.23")
    )
    assert one.kind == other.kind == "firewall-cmd --permanent --zone=trusted --add-source=PEER"
    assert (
        FirewalldAllow(("10.0.0.2",), permanent=True, zone="work", entries=(("source", "10.0.0.2"),)).kind != one.kind
    )
    assert SysctlSet((("a", "1"),)).kind != SysctlSet((("a", "2"),)).kind


LINES = st.lists(
    st.sampled_from(["127.0.0.1 localhost", "10.0.0.1 node1", "10.0.0.1 node1 # ours", "10.0.0.2 node2", "", "# x"]), max_size=6
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(LINES, st.booleans(), st.booleans())
def test_entries_of_the_hosts_file_go_and_everything_else_stays(lines: list[str], closed: bool, added: bool) -> None:
    """With or without a last newline, beside identical and similar lines, before and behind lines of somebody else."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        hosts = Path(folder) / "hosts"
        text = "".join(f"{line}\n" for line in lines)
        text = text if closed or not lines else text[:-1]
        hosts.write_text(text, encoding="utf-8")
        hosts.chmod(0o640)
        entry = HostsEntry((("10.0.0.1", "node1"), ("10.0.0.2", "node2")))

        def run(command: Line | None) -> list[str]:
            done = subprocess.run(
                ["/bin/sh", "-c", str(command).replace("/etc/hosts", str(hosts))],
                check=True,
                capture_output=True,
                text=True,
            )
            return done.stdout.splitlines()

        before = tuple(run(entry.look))
        if entry.holds(before):
            return
        run(entry.line)
        assert entry.holds(tuple(run(entry.look)))
        theirs = "10.0.0.9 node9\n" if added else ""
        with hosts.open("a", encoding="utf-8") as file:
            file.write(theirs)
        run(entry.undo(before))
        whole = text + ("\n" if theirs and text and not text.endswith("\n") else "") + theirs
        assert hosts.read_text(encoding="utf-8") == whole
        assert tuple(run(entry.look))[1:] == before[1:]
        assert hosts.stat().st_mode & 0o777 == 0o640
        assert [*Path(folder).iterdir()] == [hosts]
