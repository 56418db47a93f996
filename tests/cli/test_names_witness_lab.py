"""Names and who is cut off, with torch's own verdict; what is printed is pasted, and torch works again."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checks.in_the_lab import ALL, is_healthy, only, printed
from tests.cli import gloo_job
from tests.cli.doctor import Run, doctor
from tests.lab.cluster import Lab, MakeLab
from tests.lab.faults.network import map_name, switch_rule
from tests.lab.host import LabHost

pytestmark = pytest.mark.lab


def check(lab: Lab, *words: str, **change: Any) -> Run:
    return doctor(lab, "check", "--no-smoke", *words, hosts=lab.hosts_file(**change))


def pasted(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines of a diagnosis, with their hosts; there is at least one."""
    assert found["fix"]["commands"]
    return [(command["host"], command["command"]) for command in found["fix"]["commands"]]


@pytest.fixture(scope="module")
def three() -> Iterator[Lab]:
    """Three hosts that the tests of this module share; each mends what it broke."""
    with Lab.up(3) as lab:
        yield lab


def test_a_second_address_of_the_master_that_reaches_it_is_no_fault(three: Lab) -> None:
    master, other = three.host("node1"), three.host("node2")
    before = other.read("/etc/hosts")
    try:
        master.run("ip address add 10.77.0.240/24 dev eth0")
        map_name(other, "node1", "10.77.0.240")
        run = check(three, master_addr="node1")
        assert (run.names, run.code) == ([], 0), run.report["diagnoses"]
        assert gloo_job.works(three, master="node1")
        map_name(other, "node1", "10.77.0.241")
        assert gloo_job.fails(three, master="node1")
        assert check(three, master_addr="node1").names == ["hostname-mismatch"]
    finally:
        other.write("/etc/hosts", before)
        master.run("ip address del 10.77.0.240/24 dev eth0")


def test_a_stale_own_name_is_a_fault_where_gloo_dials_what_it_falls_back_to(three: Lab) -> None:
    """Of two addresses gloo dials the lower one: 127.0.0.1 below 192.168.0.0/16, and not below 10.77.0.0/24."""
    before = {host.name: host.read("/etc/hosts") for host in three.hosts}
    node = three.host("node3")
    try:
        map_name(node, "node3", "10.77.0.77")
        run = check(three)
        assert (run.names, run.first["severity"], run.first["hosts"]) == (["hostname-mismatch"], "info", ["node3"])
        assert gloo_job.works(three)
        for place, host in enumerate(three.hosts, 1):
            host.run(f"ip address add 192.168.0.{place}/24 dev eth0")
            for number, other in enumerate(three.hosts, 1):
                map_name(host, other.name, f"192.168.0.{number}")
        assert check(three).names == []
        assert gloo_job.works(three, master="node1")
        map_name(node, "node3", "192.168.0.77")
        found = only(check(three), "hostname-mismatch", ["node3"])
        assert found["severity"] == "error"
        assert gloo_job.fails(three, master="node1")
        own = {host: dict([shlex.split(line)[1].split("=")]) for host, line in pasted(found)}
        assert gloo_job.works(three, master="node1", own=own)
        map_name(node, "node3", "127.0.1.1")
        assert only(check(three), "hostname-loopback", ["node3"])["severity"] == "error"
    finally:
        for place, host in enumerate(three.hosts, 1):
            host.write("/etc/hosts", before[host.name])
            host.run(f"ip address del 192.168.0.{place}/24 dev eth0; true")


def test_a_masters_own_name_on_loopback_is_one_diagnosis_and_no_fault_where_gloo_works(three: Lab) -> None:
    master = three.host("node1")
    before = master.read("/etc/hosts")
    try:
        map_name(master, "node1", "127.0.1.1")
        run = doctor(three, "check", hosts=three.hosts_file(master_addr="node1"))
        assert (run.names, run.first["severity"], run.code) == (["hostname-loopback"], "info", 0)
        assert run.report["smoke"]["ok"]
        assert gloo_job.works(three, master="node1")
        map_name(three.host("node2"), "node2", "127.0.1.1")
        found = only(check(three, master_addr="node1"), "hostname-loopback", ["node1", "node2"])
        assert found["severity"] == "error"
        assert gloo_job.fails(three, master="node1")
    finally:
        master.write("/etc/hosts", before)
        map_name(three.host("node2"), "node2", "10.77.0.2")


IPV6 = "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0; ip address add fd00::{place}/64 dev eth0 nodad"
LIBNCCL = """\
import ctypes, importlib.metadata
found = importlib.metadata.distribution("nvidia-nccl-cu13").locate_file("nvidia/nccl/lib/libnccl.so.2")
print(ctypes.CDLL(str(found)).ncclGetUniqueId(ctypes.create_string_buffer(128)))
"""


def nccl_works(lab: Lab, **env: str) -> set[bool]:
    """Whether libnccl finds an interface on each host."""
    answers = [host.run([sys.executable, "-c", LIBNCCL], env=env).stdout for host in lab.hosts]
    return {answer.split()[-1] == "0" for answer in answers}


def test_two_families(three: Lab) -> None:
    """A name that gives IPv6 among such that give IPv4; IPv6 asked for where there is none."""
    node = three.host("node2")
    before, family = node.read("/etc/hosts"), {"NCCL_SOCKET_FAMILY": "AF_INET6"}
    for host in three.hosts:
        host.run("sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1")
    assert nccl_works(three, **family) == {False}
    found = only(check(three, env=family), "ifname-no-match", ALL)
    assert found["message"].startswith('With NCCL_SOCKET_FAMILY="AF_INET6"')
    assert "NCCL_SOCKET_IFNAME" not in json.dumps([found["message"], found["fix"]])
    assert gloo_job.works(three)
    is_healthy(check(three))  # left out, as is printed
    try:
        for place, host in enumerate(three.hosts, 1):
            host.run(IPV6.format(place=place))
        assert nccl_works(three, **family) == {True}  # the other remedy
        is_healthy(check(three, env=family))
        map_name(node, "node2", "fd00::2")
        assert gloo_job.fails(three)
        found = only(check(three), "hostname-mismatch", ["node2"])
        assert "but gloo uses IPv4 on node[1,3]. Gloo can't mix address families" in found["message"]
        own = {host: dict([shlex.split(line)[1].split("=")]) for host, line in pasted(found)}
        assert gloo_job.works(three, own=own)
    finally:
        node.write("/etc/hosts", before)
        for place, host in enumerate(three.hosts, 1):
            host.run(f"ip address del fd00::{place}/64 dev eth0", check=False)


@pytest.fixture(scope="module")
def no_libnccl() -> Iterator[str]:
    """An interpreter with torch, which has no NCCL: as a CPU build alone."""
    folder = Path(sys.prefix) / f"no-libnccl-{os.getpid()}"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (mine,), (own,) = (list(Path(place).glob("lib/python*/site-packages")) for place in (sys.prefix, folder))
    for one in mine.iterdir():
        if "nvidia" not in one.name:
            (own / one.name).symlink_to(one)
    yield str(folder / "bin" / "python")
    shutil.rmtree(folder)


def test_a_config_file_of_the_login_and_a_torch_without_nccl(three: Lab, no_libnccl: str) -> None:
    """All that this torch could come with read the file."""

    def team(text: str) -> Run:
        for host in three.hosts:
            host.write("/root/team.conf", text)
            host.write("/root/.bashrc", "export NCCL_CONF_FILE=/root/team.conf\n")
        return check(three, python=no_libnccl)

    try:
        is_healthy(team("NCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME==eth0\n"))
        assert nccl_works(three, NCCL_CONF_FILE="/root/team.conf") == {True}
        found = only(team("NCCL_SOCKET_IFNAME==eth9\n"), "ifname-no-match", ALL)
        assert "/root/team.conf:1" in found["message"]
        assert nccl_works(three, NCCL_CONF_FILE="/root/team.conf") == {False}
        mended = printed(found, {})["node1"]
        assert nccl_works(three, NCCL_CONF_FILE="/root/team.conf", **mended) == {True}
        is_healthy(check(three, python=no_libnccl, env=mended))
        assert gloo_job.works(three)
    finally:
        for host in three.hosts:
            host.run("rm -f /root/.bashrc /root/team.conf")


def test_one_of_five_that_the_switch_cuts_off_is_the_one(make_lab: MakeLab) -> None:
    lab = make_lab(5)
    node = lab.host("node3")
    for other in lab.others(node):
        switch_rule(lab, f"ip saddr {node.address} ip daddr {other.address} drop")
        switch_rule(lab, f"ip saddr {other.address} ip daddr {node.address} drop")
    run = check(lab, "--write-hosts", "good")
    assert (run.names, run.first["hosts"]) == (["port-unreachable"], ["node3"]), json.dumps(run.first, indent=1)
    good = lab.controller.read("/root/good").split()
    assert good == ["node1", "node2", "node4", "node5"]

    def of(names: list[str]) -> list[LabHost]:
        return [lab.host(name) for name in names]

    assert gloo_job.fails(lab, hosts=of(["node1", "node3"]))
    assert gloo_job.works(lab, hosts=of(good))


def test_a_host_that_this_machine_alone_cannot_reach(make_lab: MakeLab) -> None:
    """Two others look whether it is down, or only the controller cut off from it; torch needs no controller."""
    lab = make_lab(3)
    node, controller = lab.host("node3"), lab.controller
    is_healthy(check(lab))
    switch_rule(lab, f"ip saddr {controller.address} ip daddr {node.address} drop")
    found = only(check(lab), "ssh-unreachable", ["node3"])
    assert (
        ", but the SSH port is reachable from node[1-2]: the host is up, and only this machine is cut off"
        in found["message"]
    )
    assert "ProxyJump" in found["fix"]["summary"]
    assert gloo_job.works(lab)
    controller.run("printf 'Host node3\n  ProxyJump node1\n' >> /root/.ssh/config")  # as is printed
    is_healthy(check(lab))
    controller.run("sed -i /node3/,+1d /root/.ssh/config")
    lab.switch(["nft", "flush", "ruleset"])
    lab.kill(node)
    found = only(check(lab), "ssh-unreachable", ["node3"])
    assert found["message"].endswith(", and node[1-2] can't reach the host either.")


SLOW = """#!/bin/bash
exec {python} "$@" > >(exec {python} -c '
import sys, time
for line in sys.stdin.buffer:
    time.sleep(60 if len(line) > 2000 else 0)
    sys.stdout.buffer.write(line)
    sys.stdout.flush()
')
"""
"""An interpreter that says what is short at once, and what is long too late."""


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("iifname", "large packets seem to vanish on the way"),
        ("oifname", "large packets vanish on their way to this machine"),
    ],
)
def test_large_packets_vanish_between_the_controller_and_a_host(make_lab: MakeLab, end: str, words: str) -> None:
    """The handshake fits in small packets; what is sent to the probe does not, nor what it answers."""
    lab = make_lab(2)
    node, controller = lab.host("node2"), lab.controller
    for one in (node, controller):
        lab.switch(["ip", "link", "set", one.name, "mtu", "9000"])
        one.run("ip link set eth0 mtu 9000 gso_max_segs 1")  # as on a wire, where no packet is larger than the MTU
    is_healthy(check(lab, "--only", "access"))
    other = "oifname" if end == "iifname" else "iifname"
    switch_rule(lab, f"{end} {controller.name} {other} {node.name} meta length > 1500 drop")
    found = only(check(lab), "probe-failed", ["node2"])
    assert words in found["message"]
    assert "ping -M do -s 1472" in found["fix"]["summary"]
    assert gloo_job.works(lab)
    for one in (node, controller):
        one.run("ip link set dev eth0 mtu 1400")  # as is printed
    assert "probe-failed" not in check(lab).names


def test_a_slow_host_loses_no_large_packets(make_lab: MakeLab) -> None:
    """Its short answers come and its long ones do not, and nothing was sent in vain."""
    lab = make_lab(2)
    lab.host("node2").write("/root/slow", SLOW.format(python=sys.executable), 0o755)
    hosts = ["node1", {"address": "node2", "python": "/root/slow"}]
    found = only(check(lab, hosts=hosts), "probe-failed", ["node2"])
    assert found["message"].endswith("the probe returned no data (no answer in time).")
