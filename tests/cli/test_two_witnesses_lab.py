"""One host's word accuses no other: a host that lies about its dials, and a local user who crowds the listeners."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.doctor import Run, doctor
from tests.lab.cluster import Lab, MakeLab
from tests.lab.faults import fault
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
import socket, sys
keep, known = [], set()
def listening():
    for table in ("tcp", "tcp6"):
        with open("/proc/net/" + table) as file:
            for line in file.read().splitlines()[1:]:
                fields = line.split()
                port = int(fields[1].split(":")[1], 16)
                if fields[3] == "0A" and port != 22:
                    yield port
print("ready", flush=True)
while True:
    fresh = {*listening()} - known
    known |= fresh
    for _ in range(450):
        for port in fresh:
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex((sys.argv[1], port))
            keep.append(one)
"""


@contextmanager
def crowding(host: LabHost) -> Iterator[None]:
    """Have alice connect to every listener on the host as often as she may, and say nothing."""
    line = f"ulimit -n 65536; exec {sys.executable} -c {shlex.quote(CROWD)} {host.address}"
    crowd = host.popen(["sh", "-c", line], user="alice", stdout=subprocess.PIPE)
    assert crowd.stdout is not None
    assert crowd.stdout.readline() == "ready\n"
    try:
        yield
    finally:
        crowd.kill()
        crowd.communicate()


def test_a_local_user_who_crowds_the_listeners_accuses_nobody(make_lab: MakeLab) -> None:
    lab = make_lab(3)
    fault("nofile-low")(lab, lab.host("node1"))
    with crowding(lab.host("node1")):
        run = doctor(lab, *NO_SMOKE)
    assert not {"port-unreachable", "firewall-blocks-ephemeral", "proxy-intercepts"} & {*run.names}, run.names
