"""Checks of the same hosts at the same time: they take turns, and accuse nobody of each other's ports and processes."""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cli.holders import fix_port, hold, new_port
from tests.cli.program import run_in
from tests.lab.cluster import Lab, MakeLab
from tests.lab.host import LabHost
from tests.lab.warm import calls, interpreter

pytestmark = pytest.mark.lab

SQUAT = """
import socket, json, sys, time
lock = socket.socket(socket.AF_UNIX)
lock.bind(b"\\0nccl-doctor/turn")
lock.listen()
print("held", flush=True)
while True:
    peer, _ = lock.accept()
    peer.sendall(json.dumps({"run": "f" * 32, "began": 1.0, "controller": "gpu07", "held_s": 40.0}).encode())
    peer.close()
"""
WORD = "<nccl-doctor>"


def hosts_file(lab: Lab) -> None:
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(python=interpreter()))


@pytest.mark.parametrize("seed", range(3))
def test_checks_that_begin_together_find_no_fault_of_each_other(make_lab: MakeLab, seed: int) -> None:
    """Up to five at once; the third is `smoke`, whose store has the master port."""
    lab, draw = make_lab(3), random.Random(seed)
    hosts_file(lab)
    gaps = [draw.choice([0.0, 0.02, 0.2, 1.0]) * draw.random() for _ in range(2 + seed + seed % 2)]

    def check(place: int) -> tuple[int, list[str]]:
        time.sleep(sum(gaps[:place]))
        command = "smoke" if place == 2 else "check"
        done = run_in(lab.controller, command, "hosts.yaml", "-o", "json")
        report = json.loads(done.stdout)
        return done.returncode, [f"{one['name']}: {one['message']}" for one in report["diagnoses"]]

    calls()  # started by this thread, since it ends with the one that started it
    with ThreadPoolExecutor(len(gaps)) as pool:
        assert [*pool.map(check, range(len(gaps)))] == [(0, [])] * len(gaps)


def squat(host: LabHost) -> None:
    host.write("/tmp/squat.py", SQUAT)
    host.background(["python3", "/tmp/squat.py"], user="alice")
    taken = "grep -q @nccl-doctor/turn /proc/net/unix"
    host.wait_until(lambda: host.run(taken, check=False).returncode == 0, "the turn to be taken")


def test_what_another_check_does_not_give_up_is_left_unjudged(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    hosts_file(lab)
    squat(lab.host("node2"))
    hold(lab.host("node1"), "keep = listen()", 29500)  # whose it is can't be judged either
    done = run_in(lab.controller, "check", "hosts.yaml", "--timeout", "6", "-o", "json")
    report = json.loads(done.stdout)
    assert done.returncode == 3
    assert "waiting for another check of alice from gpu07\n" in done.stderr
    assert not [one for one in report["diagnoses"] if one["severity"] == "error"]
    reasons = {one["name"]: one["reason"] or "" for one in report["checks"] if one["outcome"] == "unknown"}
    words = "not tested: another check of alice from gpu07 has been testing node2 for 40 s"
    for name in ("port-in-use", "port-unreachable", "allreduce-failed"):
        assert words in reasons[name], reasons


def test_a_port_that_a_check_holds_is_waited_for(make_lab: MakeLab) -> None:
    """Not even --force ends a check of somebody."""
    host, port = make_lab(1).hosts[0], new_port()
    body = "keep = listen()\nimport threading, os\nthreading.Timer(6, os._exit, [0]).start()"
    pid = hold(host, body, port, WORD)
    refused = fix_port(host, port, "--kill", "--yes", "--force")
    assert (refused.code, refused.document["ended"]) == (1, [])
    assert refused.document["holders"][0]["refusal"] == (
        f"pid {pid} belongs to another run of nccl-doctor, by root, which ends by itself"
    )
    done = run_in(host, "fix-port", str(port))
    assert "Wait for it:" in done.stdout
    assert "--force" not in done.stdout
    waited = fix_port(host, port, "--wait")
    assert (waited.code, waited.document["free"]) == (0, True)


def test_a_port_that_a_container_publishes(make_lab: MakeLab) -> None:
    """The proxy is none to end, also with --force: the container that it serves is."""
    host, port = make_lab(1).hosts[0], new_port()
    host.write(
        "/tmp/docker-proxy.c",
        "#include <sys/socket.h>\n#include <netinet/in.h>\n#include <unistd.h>\n#include <arpa/inet.h>\n"
        "#include <stdlib.h>\nint main(int c, char **v) { struct sockaddr_in a = {AF_INET, htons(atoi(v[1]))};"
        "int s = socket(AF_INET, SOCK_STREAM, 0); bind(s, (void *)&a, sizeof a); listen(s, 1); for (;;) pause(); }\n",
    )
    host.run("cc -o /tmp/docker-proxy /tmp/docker-proxy.c")
    host.background(["/tmp/docker-proxy", str(port)])
    host.wait_until(lambda: any(one == port for _, one in host.listeners()), "the proxy")
    refused = fix_port(host, port, "--kill", "--yes", "--force")
    assert (refused.code, refused.document["ended"]) == (1, [])
    assert "publishes a container's port" in refused.document["holders"][0]["refusal"]
    done = run_in(host, "fix-port", str(port))
    assert f"\n\ndocker ps --filter publish={port}\n" in done.stdout
    assert "--force" not in done.stdout
