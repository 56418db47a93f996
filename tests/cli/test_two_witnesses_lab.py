"""One host's word accuses no other: a host that lies about its dials, and a local user who crowds the listeners."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.doctor import Run, doctor
from tests.lab.cluster import Lab, MakeLab
from tests.lab.host import LabHost
from tests.lab.liar import interpreter

pytestmark = pytest.mark.lab

NO_SMOKE = ("check", "--no-smoke")
LIAR = "/usr/local/bin/liar"


def accused_by_a_liar(lab: Lab, *options: str) -> Run:
    """A check in which node2's probe says that no dial of its to node1 came about."""
    lab.host("node2").write(LIAR, interpreter("a1"), 0o755)
    hosts = [{"name": host.name, "python": LIAR if host.name == "node2" else sys.executable} for host in lab.hosts]
    return doctor(lab, *NO_SMOKE, *options, hosts=lab.hosts_file(hosts=hosts))


def test_a_host_that_lies_about_its_dials_accuses_nobody(make_lab: MakeLab) -> None:
    lab = make_lab(4)
    run = accused_by_a_liar(lab, "--write-failed", "/root/failed", "--write-hosts", "/root/good")
    assert run.names == []
    assert run.code == 3
    (ports,) = (one for one in run.report["checks"] if one["name"] == "port-unreachable")
    assert ports["outcome"] == "unknown"
    assert "node[1-2]: node2 says that it could not connect to node1:" in ports["reason"]
    assert "node1 accepted it" in ports["reason"]
    assert lab.controller.read("/root/failed") == ""


CROWD = """\
import socket, sys, threading, time
def hold(address, port, keep=[]):
    while True:
        try:
            keep.append(socket.create_connection((address, port), 1))
        except OSError:
            time.sleep(0.001)
def listening():
    for line in open("/proc/net/tcp").read().splitlines()[1:] + open("/proc/net/tcp6").read().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[1].split(":")[1], 16) != 22:
            yield int(fields[1].split(":")[1], 16)
known = set()
print("ready", flush=True)
while True:
    for port in {*listening()} - known:
        known.add(port)
        for _ in range(2):
            threading.Thread(target=hold, args=(sys.argv[1], port), daemon=True).start()
    time.sleep(0.001)
"""


@contextmanager
def crowding(host: LabHost) -> Iterator[None]:
    """Have alice connect to every listener on the host as often as she may, and say nothing."""
    crowd = host.popen(f"ulimit -n 8192; exec {sys.executable} -c '{CROWD}' {host.address}", user="alice")
    try:
        yield
    finally:
        crowd.kill()
        crowd.wait()


def test_a_local_user_who_crowds_the_listeners_accuses_nobody(make_lab: MakeLab) -> None:
    lab = make_lab(3)
    with crowding(lab.host("node1")):
        run = doctor(lab, *NO_SMOKE)
    assert not {"port-unreachable", "firewall-blocks-ephemeral", "proxy-intercepts"} & {*run.names}, run.names
