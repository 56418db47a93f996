"""Commands that ``fix`` may run, their ways back, and those that it may not."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nccl_doctor.judge.changes import change_of
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.judge.fix_plan import plan
from tests.checks.snapshots import load
from tests.checks.test_register import fixtures

UNDONE = [
    ("sysctl -w net.ipv4.ip_local_port_range='15000 65000'", ["32768\t60999"], "sysctl -w net.ipv4.ip_local_port_range='32768 60999'"),
    ("sysctl -w a.b=1 c.d=2", ["3", "4"], "sysctl -w c.d=4 a.b=3"),
    (
        "firewall-cmd --permanent --zone=trusted --add-source=10.0.0.2 --add-source=10.0.0.3",
        [],
        "firewall-cmd --permanent --zone=trusted --remove-source=10.0.0.2 --remove-source=10.0.0.3",
    ),
    (
        "firewall-cmd --zone=trusted --add-source=10.0.0.2 --add-source=10.0.0.3",
        ["Warning: ALREADY_ENABLED: '10.0.0.2' already in 'trusted'"],
        "firewall-cmd --zone=trusted --remove-source=10.0.0.3",
    ),
    (
        "firewall-cmd --zone=work --add-rich-rule='rule family=\"ipv4\" source address=\"10.0.0.2\" accept'",
        [],
        "firewall-cmd --zone=work --remove-rich-rule='rule family=\"ipv4\" source address=\"10.0.0.2\" accept'",
    ),
    (
        "ufw prepend allow proto tcp from 10.0.0.2 to any port 29500,32768:60999",
        [],
        "ufw delete allow proto tcp from 10.0.0.2 to any port 29500,32768:60999",
    ),
    (
        "iptables-nft -w -t raw -C PREROUTING -s 10.0.0.2 -j ACCEPT 2>/dev/null || iptables-nft -w -t raw -I PREROUTING -s 10.0.0.2 -j ACCEPT",
        [],
        "iptables-nft -w -t raw -D PREROUTING -s 10.0.0.2 -j ACCEPT",
    ),
    ("ip rule add to 10.0.0.0/24 lookup main priority 1", [], "ip rule del to 10.0.0.0/24 lookup main priority 1"),
    ("ip -6 route del unreachable fd00::1 table 7", [], "ip -6 route add unreachable fd00::1 table 7"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "before", "undo"), UNDONE)
def test_the_way_back(command: str, before: list[str], undo: str) -> None:
    change = change_of(command)
    assert change is not None
    assert change.undo is not None
    assert str(change.undo(before)) == undo


@pytest.mark.parametrize(
    ("command", "before"),
    [
        ("firewall-cmd --zone=trusted --add-source=10.0.0.2", ["ALREADY_ENABLED: '10.0.0.2' already in 'trusted'"]),
        ("ufw allow proto tcp from 10.0.0.2 to any port 29500", ["Skipping adding existing rule"]),
        ("sysctl -w a.b=1 c.d=2", ["3"]),
    ],
)
def test_what_was_there_before_is_not_taken_back(command: str, before: list[str]) -> None:
    change = change_of(command)
    assert change is not None
    assert change.undo is not None
    assert change.undo(before) is None


NEVER = [
    "rm -rf /",
    "nft list ruleset",
    "nft flush ruleset",
    "nft delete table inet filter",
    "iptables -F",
    "iptables -w -I INPUT -j ACCEPT || iptables -w -I INPUT -j ACCEPT",
    "firewall-cmd --state",
    "firewall-cmd --zone=public --remove-service=ssh",
    "ufw disable",
    "ufw deny from 10.0.0.2",
    "sysctl -p /tmp/x",
    "sysctl -w",
    "ip route flush table main",
    "ip link set eth0 down",
    "systemctl stop firewalld",
    "kubectl delete pods --all",
    "mount -o remount,exec /tmp",
    "printf %s x | sh",
    "printf '%s %s\\n' 10.0.0.1 node1 >> /etc/passwd",
    "nccl-doctor fix-port --pid 7@1 --kill --force --yes",
    "nccl-doctor fix-port 29500 --kill --yes",
    "export NCCL_SOCKET_IFNAME==eth0",
    'eval "$(ssh-agent -s)"',
    "ssh-keygen -R node1",
    "docker exec -u 0 --privileged train sh -c id",
    "an 'open quote",
    "",
]


@pytest.mark.parametrize("command", NEVER)
def test_never_run(command: str) -> None:
    assert change_of(command) is None


WHOLE = [
    *(command for command, _, _ in UNDONE),
    "printf '%s %s\\n' 10.0.0.1 node1 >> /etc/hosts",
    "nft list chain inet a b | grep -qF 'nccl-doctor 0123abcd' || nft insert rule inet a b accept",
    "docker exec -u 0 --privileged train mount -o remount,size=1G /dev/shm",
    "nccl-doctor fix-port 29500 --pid 7@1 --kill --yes",
]
"""Commands that are run; parts of them may be, and break nothing."""


@given(st.sampled_from(WHOLE), st.integers(0, 12), st.integers(0, 12))
@example("ufw allow", 1, 9)
@example("printf '%s %s\\n' 10.0.0.1 node1 >> /etc/hosts", 2, 4)
def test_no_part_of_a_command_breaks_the_reading(command: str, first: int, last: int) -> None:
    words = shlex.split(command)
    reads_without_error([*words[:first], *words[last:]])


@given(st.lists(st.sampled_from([*(word for one in NEVER for word in one.split()), "|", "||", ">>", "-I", "-C"])))
def test_no_command_breaks_the_reading(words: list[str]) -> None:
    reads_without_error(words)


def reads_without_error(words: list[str]) -> None:
    change = change_of(shlex.join(words))
    if change is not None and change.undo is not None:
        change.undo([])


@pytest.mark.parametrize(
    "path", [path for _, path in fixtures("fires")], ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_a_plan_has_commands_of_its_diagnoses_alone(path: Path) -> None:
    snapshot = load(path)
    report = judge(snapshot, "check")
    printed = {(one.host, one.command) for found in report.diagnoses for one in found.fix.commands}
    steps, by_hand = plan(report, snapshot)
    assert {(step.host, step.command) for step in steps if not step.settings} <= printed
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert {step.mends for step in steps} | {one.name for one in by_hand} >= {found.name for found in report.diagnoses}


def test_entries_of_the_hosts_file_go_and_others_stay(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.0.0.1 node1 # ours\n10.0.0.1 node1\n", encoding="utf-8")
    change = change_of("printf '%s %s\\n' 10.0.0.1 node1 10.0.0.2 node2 >> /etc/hosts")
    assert change is not None
    assert change.undo is not None

    def run(command: str) -> int:
        return subprocess.run(["/bin/sh", "-c", command.replace("/etc/hosts", str(hosts))], check=False).returncode

    assert run(str(change.in_place)) != 0
    assert run("printf '%s %s\\n' 10.0.0.1 node1 10.0.0.2 node2 >> /etc/hosts") == 0
    assert run(str(change.in_place)) == 0
    assert run(str(change.undo(()))) == 0
    assert hosts.read_text(encoding="utf-8") == "127.0.0.1 localhost\n10.0.0.1 node1 # ours\n"
