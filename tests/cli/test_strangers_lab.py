"""What alice, who has no rights, can make of root's commands on a cluster whose hosts she shares: nothing."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shlex
import sys

import pytest

from tests.cli.doctor import doctor
from tests.cli.program import run_in
from tests.hang.running import hang, with_spy
from tests.lab.cluster import Lab
from tests.lab.maps import MAPS_A_LIE

pytestmark = pytest.mark.lab

NCCL_LIBRARY = importlib.metadata.distribution("nvidia-nccl-cu13").locate_file("nvidia/nccl/lib/libnccl.so.2")

CANARY = "/tmp/ran"
CHECKOUT = f"""\
set -e
mkdir /srv/shared && cd /srv/shared
git init -q --shared=group . && git config user.email root@x && git config user.name root
echo one > a.py && git add a.py && git commit -q -m first
printf '[filter "x"]\\n\\tclean = id > {CANARY}\\n' >> .git/config
echo '* filter=x' > .gitattributes
echo two > a.py && touch -d @1 a.py
chgrp -R alice . && chmod -R g+w .
"""


def test_a_checkout_that_others_may_configure_runs_nothing(fresh_lab: Lab) -> None:
    node = fresh_lab.host("node2")
    node.run(CHECKOUT)
    node.write("/root/secret", "secret")
    node.run(f"rm -f {CANARY}; ln -s /root/secret /home/alice/link; chown -h alice:alice /home/alice/link")
    run = doctor(fresh_lab, "check", "--no-smoke", hosts=fresh_lab.hosts_file(same=["/srv/shared", "/home/alice/link"]))
    assert run.code in (0, 1)
    assert node.run(["test", "-e", CANARY], check=False).returncode == 1
    assert hashlib.sha256(b"secret").hexdigest() not in json.dumps(run.report)


RANK = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR={addr} MASTER_PORT=29500 PYTHONUNBUFFERED=1"


def test_hang_of_root_opens_nothing_that_a_rank_has_mapped_by_name(fresh_lab: Lab) -> None:
    with_spy(fresh_lab)
    node = fresh_lab.host("node2")
    node.write("/root/lie.py", MAPS_A_LIE)
    node.run("mkdir -p /dev/shm/x && chown alice /dev/shm/x && install -m 644 /root/lie.py /tmp/lie.py")
    node.run("mkdir -m 700 /root/own && mkfifo -m 600 /root/own/pipe")
    # open(2) of a FIFO for writing returns once somebody opens it for reading
    node.popen("exec 3> /root/own/pipe; touch /root/opened")
    rank = f"exec env {RANK.format(addr=fresh_lab.hosts[0].address)} {sys.executable} /tmp/lie.py /dev/shm/x"
    node.popen(f"{rank} /root/own/pipe", user="alice")
    node.wait_until(lambda: node.run("ls /dev/shm/x").stdout.strip().endswith("(deleted)"), "the link")
    report = json.loads(run_in(node, "hang", "--user", "alice", "--interval", "1", "-o", "json").stdout)
    assert [one["rank"] for one in report["ranks"] if one["state"] not in ("gone", "unseen")] == [1]
    assert node.run("test -e /root/opened", check=False).returncode == 1


def test_a_report_of_root_is_not_given_to_who_made_the_file_first(fresh_lab: Lab) -> None:
    ctl = fresh_lab.controller
    ctl.run("chmod 1777 /tmp && install -m 666 -o alice -g alice /dev/null /tmp/report.json")
    ctl.write("/root/hosts.yaml", fresh_lab.hosts_file())
    for option in ("--save", "--output-file"):
        done = run_in(ctl, "check", "hosts.yaml", "--no-smoke", option, "/tmp/report.json")
        assert "Traceback" not in done.stderr
        owner, _, size = ctl.run("stat -c '%U %a %s' /tmp/report.json").stdout.split()
        assert (done.returncode == 2 and size == "0") or owner == "root", done.stderr


DIALLED = "import socket; s = socket.create_server(('', 9999)); s.accept(); open('/root/dialled', 'w').close()"
SERVES = f"""\
import ctypes, socket, time
ctypes.CDLL({str(NCCL_LIBRARY)!r})
held = [socket.create_server(("127.0.0.1", port)) for port in (28028, 9999)]
time.sleep(600)
"""


def test_an_address_that_a_rank_names_is_not_dialled(fresh_lab: Lab) -> None:
    with_spy(fresh_lab)
    node, third = fresh_lab.host("node2"), fresh_lab.host("node3")
    third.popen([sys.executable, "-c", DIALLED])
    third.wait_until(lambda: ":9999" in third.run(["ss", "-ltn"]).stdout, "the listener")
    env = f"{RANK.format(addr=fresh_lab.hosts[0].address)} NCCL_RAS_ADDR={third.address}:9999"
    node.popen(f"exec env {env} {sys.executable} -c {shlex.quote(SERVES)}", user="alice")
    node.wait_until(lambda: ":28028" in node.run(["ss", "-ltn"]).stdout, "the rank")
    _, report = hang(fresh_lab, "--user", "alice")
    assert [one["host"] for one in report["ranks"] if one["state"] not in ("gone", "unseen")] == ["node2"]
    assert third.run("test -e /root/dialled", check=False).returncode == 1


HOARD = """\
import os, socket, sys, time
if sys.argv[1] == "119":
    server = socket.create_server(("", 29500))
null = os.open("/dev/null", os.O_RDONLY)
for _ in range(19_000):
    os.dup(null)
open(f"/home/alice/there-{sys.argv[1]}", "w").close()
time.sleep(600)
"""
HOARDERS = 120


def test_who_holds_the_port_is_told_beside_processes_with_many_files(fresh_lab: Lab) -> None:
    node = fresh_lab.host("node2")
    node.write("/tmp/hoard.py", HOARD)
    as_alice = "setpriv --reuid=alice --regid=alice --init-groups"
    node.popen(
        f"ulimit -n 20000; for n in $(seq 0 {HOARDERS - 1}); do {as_alice} {sys.executable} /tmp/hoard.py $n & done; wait"
    )
    node.wait_until(lambda: int(node.run("ls /home/alice | grep -c there || true").stdout) == HOARDERS, "all processes")
    for _ in range(4):  # beside other people's work, as on any host that is in use
        node.popen("while :; do :; done", user="alice")
    fresh_lab.controller.write("/root/hosts.yaml", fresh_lab.hosts_file())
    line = ["fix-port", "29500", "--hosts", "hosts.yaml", "--host", "node2", "-o", "json"]
    told = run_in(fresh_lab.controller, *line).stdout
    assert "hoard.py" in told, told[:2000]
