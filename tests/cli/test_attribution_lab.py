"""What a failed all-reduce is put down to: a cause that can have done it, whatever else is amiss on the hosts."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.doctor import Run, doctor
from tests.cli.injected import inject
from tests.cli.smoking import soon
from tests.lab.cluster import Lab, MakeLab
from tests.lab.faults import fault
from tests.lab.faults.memory import limited_memory, set_limit
from tests.lab.host import LabHost
from tests.lab.warm import interpreter
from tests.patience import LONG_S

pytestmark = pytest.mark.lab

SHM = "mount -o remount,size=64m /dev/shm"
NAMES = ("node1", "node2", "node3")
MINOR = {
    "shm-small": NAMES,
    "nofile-low": ("node1",),
    "mtu-mismatch": ("node3",),
    "shared-subnet-nics": ("node1",),
    "env-bad-value": NAMES,
    "env-mismatch": ("node3",),
}
"""Warnings that the lab can make, and the hosts that have them."""


@pytest.fixture
def amiss(make_lab: MakeLab) -> Lab:
    """Three hosts with every one of these warnings."""
    lab = make_lab(3)
    for host in lab.hosts:
        host.run(SHM)
    fault("mtu-small")(lab, lab.host("node3"))
    fault("nofile-low")(lab, lab.host("node1"))
    fault("shared-subnet")(lab, lab.host("node1"))
    return lab


def hosts_file(lab: Lab, python: str = "", **env: str) -> str:
    """Of hosts with a word that NCCL reads as 0, of which the last has a protocol of its own."""
    every = {"NCCL_IB_DISABLE": "true"}
    own = {"node2": env, "node3": {"NCCL_PROTO": "LL"}}
    hosts = [{"name": name, "env": {**every, **own.get(name, {})}} for name in NAMES]
    return lab.hosts_file(hosts=hosts, python=python or interpreter())


def beside(run: Run, name: str = "allreduce-failed") -> dict[str, Any]:
    """The all-reduce's own diagnosis, beside which each warning stands as one, with nothing below it."""
    rows = {one["name"]: one for one in run.report["diagnoses"]}
    failure: dict[str, Any] = rows.pop(name)
    assert {each: tuple(one["hosts"]) for each, one in rows.items()} == MINOR
    assert {each for each, one in rows.items() if one["severity"] == "error"} == {"env-mismatch"}
    assert [one["explains"] for one in rows.values()] == [[]] * len(MINOR)
    assert (failure["hosts"], failure["explains"], failure["severity"]) == (["node2"], [], "error")
    assert run.code == 1
    return failure


@pytest.mark.parametrize(("name", "remedy"), [("SIGKILL", "dmesg"), ("SIGSEGV", "a library of torch")])
def test_a_rank_that_is_killed_or_crashes(amiss: Lab, name: str, remedy: str) -> None:
    env = inject(amiss.host("node2"), name, "allreduce")
    failure = beside(doctor(amiss, "check", hosts=hosts_file(amiss, **env)))
    assert f"Rank 1 on node2 was killed by {name}" in failure["message"]
    assert remedy in failure["fix"]["summary"]


def test_a_rank_that_raises(amiss: Lab) -> None:
    failure = beside(doctor(amiss, "check", hosts=hosts_file(amiss, **inject(amiss.host("node2"), "raise", "group"))))
    assert "ValueError: injected" in failure["message"]


def test_a_rank_for_which_there_is_no_memory(amiss: Lab) -> None:
    python = sys.executable  # a fork would not be of the group
    with limited_memory(amiss, amiss.host("node2")) as group:
        set_limit(group, 120)
        failure = beside(doctor(amiss, "check", hosts=hosts_file(amiss, python)))
    assert "killed by SIGKILL" in failure["message"]
    assert "for want of memory" in failure["fix"]["summary"]


def test_a_host_that_goes_away(amiss: Lab) -> None:
    amiss.controller.write("/root/hosts.yaml", hosts_file(amiss, **inject(amiss.host("node2"), "hang", "group")))
    words = ["nccl-doctor", "check", "hosts.yaml", "-o", "json", "--output-file", "report.json", *soon()]
    with amiss.controller.popen(words, stderr=-1) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("all-reduce"):
                break
        amiss.kill(amiss.host("node2"))
        code = process.wait(LONG_S)
    report = json.loads(amiss.controller.read("/root/report.json"))
    names = {one["name"] for one in report["diagnoses"]}
    failure = "allreduce-failed" if "allreduce-failed" in names else "allreduce-timeout"
    beside(Run(code, report, ""), failure)


def test_a_limit_of_processes_is_told_and_no_small_shared_memory(make_lab: MakeLab) -> None:
    lab = make_lab(3)
    node2 = lab.host("node2")
    for host in lab.hosts:
        host.run(SHM)
    number = random.SystemRandom().randrange(
        20_000, 60_000
    )  # the kernel counts a user's processes, of all labs together
    node2.run(f"useradd -m -u {number} -s /bin/bash carl && usermod -p '*' carl && cp -a /root/.ssh /home/carl/")
    node2.run("chown -R carl: /home/carl")
    node2.write("/home/carl/.bashrc", "ulimit -u 6\n")
    hosts = ["node1", {"name": "node2", "ssh": {"user": "carl"}}, "node3"]
    run = doctor(lab, "check", hosts=lab.hosts_file(hosts=hosts, python=sys.executable))
    rows = {one["name"]: one for one in run.report["diagnoses"]}
    assert (rows["shm-small"]["severity"], rows["shm-small"]["explains"]) == ("warning", [])
    assert (run.names[0], run.first["hosts"]) == ("process-limit-low", ["node2"])
    assert [one["name"] for one in run.first["explains"]] == ["allreduce-failed"]


Breaks = Callable[[Lab, LabHost], dict[str, str]]


def _named(name: str) -> Breaks:
    def broken(lab: Lab, host: LabHost) -> dict[str, str]:
        fault(name)(lab, host)
        return {}

    return broken


def _ends(name: str, at: str) -> Breaks:
    return lambda _lab, host: inject(host, name, at)


FAULTS: dict[str, tuple[Breaks, str]] = {
    **{
        name: (_named(name), diagnosis)
        for name, diagnosis in {
            "cut-off": "port-unreachable",
            "hostname-loopback": "hostname-loopback",
            "mtu-small": "mtu-mismatch",
            "nftables-drop-ephemeral": "firewall-blocks",
            "nftables-policy-drop": "firewall-blocks",
            "nofile-low": "nofile-low",
            "route-missing": "route-missing",
            "shared-subnet": "shared-subnet-nics",
            "shm-small": "shm-small",
            "sshd-dead": "ssh-unreachable",
            "ufw-deny": "firewall-blocks",
        }.items()
    },
    "ifname": (lambda _lab, _host: {"NCCL_SOCKET_IFNAME": "ib0"}, "ifname-no-match"),
    "gloo-ifname": (lambda _lab, _host: {"GLOO_SOCKET_IFNAME": "ib0"}, "gloo-ifname-invalid"),
    "ib-disable": (lambda _lab, _host: {"NCCL_IB_DISABLE": "true"}, "env-bad-value"),
    "killed": (_ends("SIGKILL", "allreduce"), "allreduce-failed"),
    "crashed": (_ends("SIGSEGV", "group"), "allreduce-failed"),
    "raised": (_ends("raise", "store"), "allreduce-failed"),
}
"""By fault, how it is made and how its diagnosis begins that it has alone, on any host."""
ENDS = {name for name, (_, diagnosis) in FAULTS.items() if diagnosis == "allreduce-failed"}


def pair_of(seed: int) -> dict[str, str]:
    """Two faults, at most one of which ends the all-reduce before another can, each with its host."""
    drawn = random.Random(seed)
    while len(ENDS.union({"gloo-ifname"}).intersection(pair := drawn.sample(sorted(FAULTS), 2))) > 1:
        pass
    return dict(zip(pair, drawn.sample(NAMES, 2), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_of_two_faults_on_two_hosts_both_are_told(make_lab: MakeLab, seed: int) -> None:
    both_are_told(make_lab(3), pair_of(seed))


def test_a_pair_that_is_cut_off_is_told_beside_a_wrong_name_of_another_host(make_lab: MakeLab) -> None:
    both_are_told(make_lab(3), {"cut-off": "node3", "ifname": "node2"})


def both_are_told(lab: Lab, pair: dict[str, str]) -> None:
    """Neither stands below the other; an end of the all-reduce only where there was one."""
    env = {host: FAULTS[name][0](lab, lab.host(host)) for name, host in pair.items()}
    hosts = [{"name": name, "env": env.get(name, {})} for name in NAMES]
    run = doctor(lab, "check", *soon(), hosts=lab.hosts_file(hosts=hosts, python=interpreter()))
    standing = [(one["name"], f"{one['hosts']} {one['message']}") for one in run.report["diagnoses"]]
    below = {effect["name"] for one in run.report["diagnoses"] for effect in one["explains"]}
    for name, host in pair.items():
        if name not in ENDS or run.report["smoke"] is not None:
            assert any(each.startswith(FAULTS[name][1]) and host in words for each, words in standing), pair
    assert below <= {"allreduce-failed"} - {FAULTS[name][1] for name in pair}, pair


if __name__ == "__main__":
    for seed in range(40):
        with Lab.up(3) as another:
            both_are_told(another, pair_of(seed))
