"""Ports, with torch's own verdict: who holds one and lives, what stops one that nobody could dial, which is suggested."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.checks.in_the_lab import check, is_healthy, only, paste
from tests.cli import gloo_job
from tests.cli.doctor import Run
from tests.cli.holders import hold, wait_for_age, wait_for_rest
from tests.cli.program import run_in
from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab

NEXT = ("fix-port", "--hosts", "hosts.yaml", "--next")
USUAL = "ct state established,related accept; iif lo accept; meta l4proto icmp accept; tcp dport 22 accept;"
PORT = 29500


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    """Two hosts that the tests of this module share; each mends what it broke."""
    with Lab.up(2) as lab:
        yield lab


def closed_but(lab: Lab, ports: str) -> None:
    """node1 lets in SSH and these ports, and drops the rest."""
    text = f"table ip f {{ chain in {{ type filter hook input priority 0; policy drop; {USUAL} {ports}\n}}\n}}"
    lab.host("node1").run(["nft", "-f", "-"], input=f"flush ruleset\n{text}\n")


def test_next_is_a_port_that_the_firewall_lets_through(two: Lab) -> None:
    two.controller.write("/root/hosts.yaml", two.hosts_file())
    assert run_in(two.controller, *NEXT).stdout == "29501\n"
    assert gloo_job.works(two, 29501)
    try:
        closed_but(two, "tcp dport { 29503, 32768-60999 } accept;")
        assert gloo_job.fails(two, 29501)
        assert run_in(two.controller, *NEXT).stdout == "29503\n"
        assert gloo_job.works(two, 29503)
        closed_but(two, "")
        none = run_in(two.controller, *NEXT)
        assert (none.returncode, none.stdout) == (2, "")
        assert "node2 can't reach node1 (node1) on any of the ports that were tried there" in none.stderr
    finally:
        two.host("node1").run("nft flush ruleset")


STEPS = """\
import os, sys, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
step = 0
while True:
    stand = torch.full((1000,), float(os.path.exists("/root/stand")))
    dist.all_reduce(stand)  # both stop behind the same one: who waits in it ends with its peer
    if stand[0]:
        break
    step += 1
    with open("/root/step.new", "w") as file:
        file.write(str(step))
    os.replace("/root/step.new", "/root/step")
    time.sleep(0.05)
time.sleep(86400)
"""


def test_ranks_started_over_ssh_live_as_long_as_their_steps_go_on(two: Lab) -> None:
    """Their parent is pid 1 as a leftover's is; nobody is told to end them before they stand still."""
    master = two.host("node1")
    for rank, host in enumerate(two.hosts):
        host.run("rm -f /root/step /root/stand")
        host.write("/root/train.py", STEPS)
        words = (
            f"MASTER_ADDR={master.address} MASTER_PORT={PORT} RANK={rank} WORLD_SIZE=2 LOCAL_RANK=0 OMP_NUM_THREADS=1"
        )
        line = f"{words} nohup {sys.executable} /root/train.py >/root/out 2>&1 </dev/null &"
        two.controller.run(["ssh", host.address, line])

    def step() -> int:
        return int(two.host("node2").run("cat /root/step 2>/dev/null || echo 0").stdout)

    try:
        master.wait_until(lambda: step() > 3, "the first steps")
        assert gloo_job.fails(two)  # the port is theirs

        def refused() -> bool:  # what is younger than 10 s is refused for that
            found = only(check(two), "port-in-use", ["node1"])
            (moving,) = found["fix"]["commands"]
            assert moving["command"].endswith("--next --write")
            return "t makes progress" in found["fix"]["summary"]

        wait_for_age(master, {pid for pid, line in master.processes() if "/root/train.py" in line})
        master.wait_until(refused, "the steps to be the reason")
        before = step()
        master.wait_until(lambda: step() > before + 3, "further steps")
        for host in two.hosts:
            host.write("/root/stand", "")
        runs: list[Run] = []
        for host in two.hosts:
            wait_for_rest(host, "/root/step")

        def told() -> bool:  # each host goes by what its own rank has heard, the one a moment before the other
            runs.append(check(two))
            ends = all(found["fix"]["commands"] for found in runs[-1].report["diagnoses"])
            return ends and runs[-1].names == ["port-in-use", "stale-process"]

        master.wait_until(told, "a leftover's line for either")
        for found in runs[-1].report["diagnoses"]:
            paste(two, found)
        assert gloo_job.works(two)
        is_healthy(check(two))
    finally:
        for host in two.hosts:
            ranks = [str(pid) for pid, line in host.processes() if "/root/train.py" in line]
            host.run(["kill", "-9", *ranks], check=False)


def test_a_rule_for_a_port_that_is_held_is_told_beside_its_holder(two: Lab) -> None:
    master = two.host("node1")
    is_healthy(check(two))
    pid = hold(master, "keep = listen()", PORT)
    try:
        closed_but(two, "tcp dport 32768-60999 accept;")
        assert gloo_job.fails(two)
        run = check(two)
        assert sorted(run.names) == ["firewall-blocks-port", "port-in-use"]
        assert run.report["mesh"]["failed"] == []
        rule = next(found for found in run.report["diagnoses"] if found["name"] == "firewall-blocks-port")
        assert any("not tested because the port is busy" in line for line in rule["evidence"])
        screen = run_in(two.controller, "check", "hosts.yaml", "--no-smoke", "--color", "never").stdout
        assert "master port 29500 was not tested" in " ".join(screen.split())
        master.run(["kill", str(pid)])
        master.wait_until(lambda: PORT not in {port for _, port in master.listeners()}, "the end of the holder")
        assert gloo_job.fails(two)
        paste(two, rule)
        assert gloo_job.works(two)
        is_healthy(check(two))
    finally:
        master.run(f"nft flush ruleset; kill {pid}", check=False)


@pytest.mark.parametrize("reject", ["DROP", "REJECT --reject-with icmp-host-prohibited"])
def test_a_limit_of_connections_before_the_real_block(two: Lab, reject: str) -> None:
    """As guides against denials of service have it: the limit is nobody's fault, what stands behind it is."""
    master = two.host("node1")
    limit = "iptables -w -A INPUT -p tcp -m connlimit --connlimit-above 100 -j REJECT --reject-with tcp-reset"
    usual = (
        "iptables -w -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables -w -A INPUT -i lo -j ACCEPT;"
        "iptables -w -A INPUT -p tcp --dport 22 -j ACCEPT"
    )
    try:
        master.run(limit)
        is_healthy(check(two))
        assert gloo_job.works(two)
        master.run(f"{usual}; iptables -w -A INPUT -j {reject}")
        assert gloo_job.fails(two)
        found = only(check(two), "firewall-blocks-port", ["node1"])
        (rule,) = (line for line in found["evidence"] if line.startswith("rule"))
        assert reject.split(maxsplit=1)[0] in rule
        assert "connlimit" not in rule
        paste(two, found)
        assert gloo_job.works(two)
        is_healthy(check(two))
    finally:
        master.run("iptables -w -F INPUT")


def test_a_listener_on_ipv6_loopback_alone_keeps_nobody_from_the_port(two: Lab) -> None:
    """As ``ssh -L 29500:...`` leaves it where 127.0.0.1 was taken: torch falls back to IPv4."""
    pid = hold(two.host("node1"), "keep = listen(socket.AF_INET6, '::1', v6only=1)", PORT)
    try:
        is_healthy(check(two))
        assert gloo_job.works(two)
    finally:
        two.host("node1").run(["kill", str(pid)])


ODD = """\
table inet odd {
 counter seen { }
 quota much { over 500000 mbytes }
 set peers { type ipv4_addr; flags dynamic,timeout; timeout 1m; }
 chain in { type filter hook input priority 0; policy accept; counter name seen; quota name much drop;
  tcp flags syn limit rate over 5000/second burst 5000 packets drop; add @peers { ip saddr }; ct state invalid drop; }
}
"""


def test_odd_rules_and_a_hundred_interfaces_beside_the_cluster_are_no_fault(two: Lab) -> None:
    node = two.host("node1")
    numbers = range(100)
    node.run(["nft", "-f", "-"], input=ODD)
    links = "".join(
        f"link add va{n} type veth peer name vb{n}\nlink set va{n} up\nlink set vb{n} up\n" for n in numbers
    )
    vpn = "link add wg0 index 300 type bridge\nlink set wg0 up\naddress add 10.99.0.1/24 dev wg0\n"
    node.run(["ip", "-batch", "-"], input=links + vpn)
    try:
        is_healthy(check(two, {host.name: {"NCCL_SOCKET_IFNAME": "=eth0"} for host in two.hosts}))
        assert gloo_job.works(two)
    finally:
        node.run(["ip", "-batch", "-"], input="".join(f"link del va{n}\n" for n in numbers) + "link del wg0\n")
        node.run("nft flush ruleset")
