"""Each fault of the catalogue does to the host what its name says, seen with plain tools."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.lab.cluster import Lab
from tests.lab.errors import LabError
from tests.lab.faults import MASTER_PORT, all_faults, fault
from tests.lab.host import LabHost
from tests.lab.looking import bind, dial, listening, send, ssh

pytestmark = pytest.mark.lab

OTHER_PORT = 45000
"""A port as NCCL draws them."""

Effect = Callable[[Lab, LabHost, LabHost], None]
"""Asserts what can be seen of a fault: in the lab, on the broken host, from its first peer."""


def _dials(master: str, other: str) -> Effect:
    """SSH works; connections to the master port and to another end so."""

    def look(lab: Lab, host: LabHost, peer: LabHost) -> None:
        with listening(host, MASTER_PORT, OTHER_PORT):
            assert ssh(lab, host, "hostname").stdout == f"{host.name}\n"
            assert (dial(peer, host.address, MASTER_PORT), dial(peer, host.address, OTHER_PORT)) == (master, other)

    return look


def _ssh_fails(message: str) -> Effect:
    def look(lab: Lab, host: LabHost, peer: LabHost) -> None:
        assert message in ssh(lab, host, "true").stderr
        assert ssh(lab, peer, "hostname").stdout == f"{peer.name}\n"

    return look


def _sees(command: str, expected: str) -> Effect:
    """A command over SSH prints this on the broken host, and something else on its peer."""

    def look(lab: Lab, host: LabHost, peer: LabHost) -> None:
        assert ssh(lab, host, command.format(peer=peer)).stdout.strip() == expected
        assert ssh(lab, peer, command.format(peer=peer)).stdout.strip() != expected

    return look


def _output_drop(lab: Lab, host: LabHost, peer: LabHost) -> None:
    with listening(peer, MASTER_PORT, OTHER_PORT):
        assert dial(host, peer.address, MASTER_PORT) == "timed out"
        assert dial(host, peer.address, OTHER_PORT) == "connected"
        assert dial(lab.hosts[2], peer.address, MASTER_PORT) == "connected"


def _firewalld(lab: Lab, host: LabHost, peer: LabHost) -> None:
    _dials("EHOSTUNREACH", "EHOSTUNREACH")(lab, host, peer)
    assert "eth0" in host.run(["firewall-cmd", "--zone=public", "--list-interfaces"]).stdout
    host.run(["firewall-cmd", "--zone=trusted", f"--add-source={peer.address}"])
    _dials("connected", "connected")(lab, host, peer)


def _ufw(lab: Lab, host: LabHost, peer: LabHost) -> None:
    _dials("timed out", "timed out")(lab, host, peer)
    assert "Status: active" in host.run(["ufw", "status"]).stdout
    host.run(["ufw", "allow", "from", peer.address])
    _dials("connected", "connected")(lab, host, peer)


def _cut_off(lab: Lab, host: LabHost, peer: LabHost) -> None:
    assert dial(host, peer.address, 22) == dial(peer, host.address, 22) == "timed out"
    assert dial(host, lab.hosts[2].address, 22) == dial(lab.hosts[2], host.address, 22) == "connected"
    assert host.run(["nft", "list", "ruleset"]).stdout == ""


def _stale(lab: Lab, host: LabHost, peer: LabHost) -> None:
    assert ("0.0.0.0", MASTER_PORT) in host.listeners()
    [(pid, _)] = [process for process in host.processes() if "train.py --local_rank=0" in process[1]]
    assert host.run(["ps", "-o", "ppid=", str(pid)]).stdout.strip() == "1"
    assert bind(host, MASTER_PORT) == "EADDRINUSE"


def _bound(lab: Lab, host: LabHost, peer: LabHost) -> None:
    assert str(MASTER_PORT) not in host.run(["ss", "-Htan"]).stdout
    assert bind(host, MASTER_PORT) == "EADDRINUSE"
    assert dial(peer, host.address, MASTER_PORT) == "ECONNREFUSED"


def _held_in_state(state: str) -> Effect:
    def look(lab: Lab, host: LabHost, peer: LabHost) -> None:
        assert host.run(f"ss -Htan state {state} sport = :{MASTER_PORT}").stdout.count("\n") == 1
        assert bind(host, MASTER_PORT) == "EADDRINUSE"
        assert MASTER_PORT not in {port for _, port in host.listeners()}

    return look


def _mtu_blackhole(lab: Lab, host: LabHost, peer: LabHost) -> None:
    with listening(host, OTHER_PORT), listening(peer, OTHER_PORT):
        assert send(lab.hosts[2], peer.address, OTHER_PORT, 1_000_000) == "ok"
        assert send(peer, host.address, OTHER_PORT, 1000) == "ok"
        assert send(peer, host.address, OTHER_PORT, 1_000_000) == "timed out"
        assert send(host, peer.address, OTHER_PORT, 1_000_000) == "timed out"
    assert len(ssh(lab, host, "head -c 1000000 /dev/zero | tr '\\0' x").stdout) == 1_000_000


def _jumbo_frames_end(lab: Lab, host: LabHost, peer: LabHost) -> None:
    """All hosts send frames of 9000 bytes, and the switch between them drops what is above 1500.

    TCP does not show it surely: what the kernel leaves to the card to cut (GSO) passes the switch of the lab.
    """
    assert {ssh(lab, one, "cat /sys/class/net/eth0/mtu").stdout.strip() for one in lab.hosts} == {"9000"}
    with listening(peer, OTHER_PORT):
        assert send(host, peer.address, OTHER_PORT, 1000) == "ok"
    assert _arrived(host, peer) == "1400"


_DATAGRAMS = """
import socket, sys
to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for size in (8000, 1400):
    to.sendto(bytes(size), (sys.argv[1], 9))
"""
_ARRIVED = """
import socket
at = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
at.bind(("", 9))
print("ready", flush=True)
print(len(at.recv(1 << 16)))
"""


def _arrived(host: LabHost, peer: LabHost) -> str:
    """The size of the first datagram that arrives, of one of 8000 bytes and then one of 1400."""
    with peer.popen([sys.executable, "-c", _ARRIVED], stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        host.run([sys.executable, "-c", _DATAGRAMS, peer.address])
        return str(receiver.stdout.readline()).strip()


def _docker(lab: Lab, host: LabHost, peer: LabHost) -> None:
    for one in lab.hosts:
        assert one.run("ip -br -4 address show docker0").stdout.split() == ["docker0", "UP", "172.17.0.1/16"]


def _compose(lab: Lab, host: LabHost, peer: LabHost) -> None:
    names = [line.split()[0] for line in host.run("ip -br -4 address").stdout.splitlines()]
    assert [name.partition("@")[0] for name in names] == ["lo", "br-5f2c8a6e9d01", "eth0"]
    assert "LOWER_UP" in host.run("ip link show br-5f2c8a6e9d01").stdout


def _shared_subnet(lab: Lab, host: LabHost, peer: LabHost) -> None:
    addresses = [line.split()[2] for line in host.run("ip -br -4 address show scope global").stdout.splitlines()]
    assert addresses == ["10.77.0.1/24", "10.77.0.252/24"]
    assert dial(peer, "10.77.0.252", 22) == "connected"


def _second_network(lab: Lab, host: LabHost, peer: LabHost) -> None:
    addresses = [line.split()[2] for line in host.run("ip -br -4 address show scope global").stdout.splitlines()]
    assert addresses == ["10.77.0.1/24", "10.78.0.1/24"]
    assert dial(peer, "10.78.0.1", 22) == dial(host, "10.78.0.2", 22) == "connected"


def _interface_down(lab: Lab, host: LabHost, peer: LabHost) -> None:
    [line] = host.run("ip -br link show eth1").stdout.splitlines()
    assert "NO-CARRIER" in line
    assert "LOWER_UP" not in line
    assert "10.78.0.1/24" in host.run("ip -br -4 address show eth1").stdout
    assert dial(peer, "10.78.0.1", 22) != "connected"
    assert dial(peer, "10.78.0.3", 22) == dial(peer, host.address, 22) == "connected"


def _no_python(lab: Lab, host: LabHost, peer: LabHost) -> None:
    for interpreter in (sys.executable, "python3"):
        assert ssh(lab, host, f"{interpreter} -c 1").returncode == 127
    assert ssh(lab, peer, f"{sys.executable} -c 1").returncode == 0


def _python_hangs(lab: Lab, host: LabHost, peer: LabHost) -> None:
    for interpreter in (sys.executable, "python3"):
        assert ssh(lab, host, f"timeout 0.3 {interpreter} -c 1").returncode == 124


def _full(lab: Lab, host: LabHost, peer: LabHost) -> None:
    for directory in ("/tmp", "/root"):
        assert "No space left on device" in ssh(lab, host, f"yes | head -c 100000 > {directory}/x").stderr


def _noisy(lab: Lab, host: LabHost, peer: LabHost) -> None:
    done = ssh(lab, host, "echo answer")
    assert done.stdout.startswith("Welcome!")
    assert done.stdout.endswith("answer\n")
    assert "module: command not found" in done.stderr


def _dead(lab: Lab, host: LabHost, peer: LabHost) -> None:
    assert not host.alive()
    assert dial(peer, host.address, 22) in ("timed out", "EHOSTUNREACH")  # the latter once ARP has given up, after 3 s
    assert dial(peer, lab.hosts[2].address, 22) == "connected"


EFFECTS: dict[str, Effect] = {
    "bound-not-listening": _bound,
    "compose-bridge": _compose,
    "cut-off": _cut_off,
    "disk-full": _full,
    "docker-bridge": _docker,
    "duplicate-address": _sees("ip -o -4 address | grep -c 10.77.0.[12]/", "2"),
    "firewalld-master-port": _dials("connected", "EHOSTUNREACH"),
    "firewalld-public": _firewalld,
    "host-dead": _dead,
    "host-key-changed": _ssh_fails("REMOTE HOST IDENTIFICATION HAS CHANGED"),
    "host-key-unknown": _ssh_fails("Host key verification failed"),
    "hostname-loopback": _sees("getent ahostsv4 node1 | awk 'NR==1 {{print $1}}'", "127.0.1.1"),
    "hostname-mismatch": _sees("getent ahostsv4 {peer.name} | awk 'NR==1 {{print $1}}'", "10.77.0.252"),
    "hostname-unresolvable": _sees("getent ahostsv4 node1; echo $?", "2"),
    "interface-down": _interface_down,
    "iptables-drop-port": _dials("timed out", "connected"),
    "iptables-reject": _dials("EHOSTUNREACH", "EHOSTUNREACH"),
    "jumbo-frames-end": _jumbo_frames_end,
    "mtu-blackhole": _mtu_blackhole,
    "mtu-small": _sees("cat /sys/class/net/eth0/mtu", "1400"),
    "nftables-drop-ephemeral": _dials("connected", "timed out"),
    "nftables-drop-port": _dials("timed out", "connected"),
    "nftables-output-drop": _output_drop,
    "nftables-policy-drop": _dials("timed out", "timed out"),
    "nofile-low": _sees("ulimit -Hn", "256"),
    "noisy-bashrc": _noisy,
    "outbound-owner": _held_in_state("established"),
    "python-hangs": _python_hangs,
    "python-missing": _no_python,
    "route-missing": _sees("ip route get 10.77.0.2 2>&1 | head -1", "RTNETLINK answers: No route to host"),
    "second-network": _second_network,
    "shared-subnet": _shared_subnet,
    "shm-small": _sees("df --output=size -k /dev/shm | tail -1", "4096"),
    "ssh-key-refused": _ssh_fails("Permission denied (publickey)"),
    "sshd-dead": _ssh_fails("Connection refused"),
    "sshd-silent": _ssh_fails("Connection timed out during banner exchange"),
    "stale-listener": _stale,
    "switch-drops-port": _dials("timed out", "connected"),
    "time-wait": _held_in_state("time-wait"),
    "ufw-deny": _ufw,
}


def test_every_fault_is_tested() -> None:
    assert sorted(EFFECTS) == list(all_faults())


@pytest.mark.parametrize("name", sorted(EFFECTS))
def test_fault(name: str, fresh_lab: Lab) -> None:
    host, peer = fresh_lab.hosts[:2]
    fault(name)(fresh_lab, host)
    EFFECTS[name](fresh_lab, host, peer)


def test_unknown_fault_is_named() -> None:
    with pytest.raises(LabError, match="No fault is named 'earthquake'; there are bound-not-listening, "):
        fault("earthquake")
