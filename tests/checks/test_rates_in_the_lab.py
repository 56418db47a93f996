"""Links that the kernel shapes: each slow one is named with its direction and rail, and a busy machine accuses nobody.

``python -m tests.checks.test_rates_in_the_lab 20`` tries each so many times.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest

from tests.cli.doctor import Run, doctor
from tests.lab.cluster import Lab
from tests.lab.faults import fault

pytestmark = pytest.mark.lab

MBIT = 100  # of each link, far below what two busy cores can do
SLOW = MBIT // 5
RAILS = {"NCCL_SOCKET_IFNAME": "eth0,eth1"}
Shell = Callable[[str], object]


def shape(run: Shell, device: str, mbit: int) -> None:
    run(f"tc qdisc replace dev {device} root tbf rate {mbit}mbit burst 32kb latency 50ms")


def switch(lab: Lab) -> Shell:
    """The switch's own shell, where a host's ports have its name, ``b`` behind that of the second."""
    return lambda line: lab.switch(["sh", "-c", line])


@contextmanager
def slow_sender(lab: Lab) -> Iterator[None]:
    for device in ("eth0", "eth1"):
        shape(lab.host("node3").run, device, SLOW)
    yield
    for device in ("eth0", "eth1"):
        shape(lab.host("node3").run, device, MBIT)


@contextmanager
def slow_receiver(lab: Lab) -> Iterator[None]:
    for port in ("node3", "node3b"):
        shape(switch(lab), port, SLOW)
    yield
    for port in ("node3", "node3b"):
        switch(lab)(f"tc qdisc del dev {port} root")


@contextmanager
def slow_pair(lab: Lab) -> Iterator[None]:
    run = lab.host("node1").run
    for device, peer in (("eth0", "10.77.0.3"), ("eth1", "10.78.0.3")):
        run(f"tc qdisc replace dev {device} root handle 9: htb default 10")
        for number, mbit in ((10, MBIT), (20, SLOW)):
            run(f"tc class add dev {device} parent 9: classid 9:{number} htb rate {mbit}mbit")
        run(f"tc filter add dev {device} parent 9: protocol ip u32 match ip dst {peer}/32 flowid 9:20")
    yield
    for device in ("eth0", "eth1"):
        shape(run, device, MBIT)


@contextmanager
def slow_rail_of_a_host(lab: Lab) -> Iterator[None]:
    shape(lab.host("node3").run, "eth1", SLOW)
    yield
    shape(lab.host("node3").run, "eth1", MBIT)


@contextmanager
def slow_rail(lab: Lab) -> Iterator[None]:
    for host in lab.hosts:
        shape(host.run, "eth1", SLOW)
    yield
    for host in lab.hosts:
        shape(host.run, "eth1", MBIT)


@contextmanager
def lossy_receiver(lab: Lab) -> Iterator[None]:
    run = lab.host("node3").run
    run("nft add table inet loss && nft 'add chain inet loss in { type filter hook input priority 0; }'")
    run("nft add rule inet loss in tcp sport != 22 tcp dport 1024-65535 numgen random mod 100 '<' 6 drop")
    yield
    run("nft delete table inet loss")


@contextmanager
def busy_machine(_lab: Lab) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@dataclass(frozen=True)
class Case:
    """A fault, the hosts that are to be named, and words of the message; no words: nothing is found."""

    make: Callable[[Lab], AbstractContextManager[None]]
    hosts: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


CASES = {
    "a-slow-sender": Case(slow_sender, ("node3",), ("node3 sends over eth0 and eth1",)),
    "a-slow-receiver": Case(slow_receiver, ("node3",), ("node3 receives over eth0 and eth1",)),
    "a-slow-pair": Case(slow_pair, ("node1",), ("node1 sends to node3 over eth0 and eth1",)),
    "a-slow-rail-of-a-host": Case(slow_rail_of_a_host, ("node3",), ("node3 sends over eth1 at",)),
    "a-slow-rail": Case(slow_rail, ("node1", "node2", "node3", "node4"), ("All hosts send over eth1",)),
    "a-lossy-receiver": Case(lossy_receiver, ("node3",), ("Packets to node3", "over eth0 and eth1")),
    "a-busy-machine": Case(busy_machine),
}


@pytest.fixture(scope="module")
def shaped() -> Iterator[Lab]:
    with shaped_lab() as lab:
        yield lab


@contextmanager
def shaped_lab() -> Iterator[Lab]:
    """Four hosts with two rails each, all links as fast."""
    with Lab.up(4) as lab:
        fault("second-network")(lab, lab.host("node1"))
        for host in lab.hosts:
            for device in ("eth0", "eth1"):
                shape(host.run, device, MBIT)
        yield lab


def rated(lab: Lab) -> Run:
    """A run that judges the rates alone."""
    return doctor(lab, "check", "--rate", "--no-smoke", "--only", "link-slow", hosts=lab.hosts_file(env=RAILS))


def judge(case: Case, run: Run) -> str | None:
    """What is not as it should be."""
    found = run.report["diagnoses"]
    if not case.hosts:
        return None if not found and run.code == 0 else f"{run.code} {found}"
    if len(found) != 1 or tuple(found[0]["hosts"]) != case.hosts:
        return str([(one["hosts"], one["message"]) for one in found])
    message = found[0]["message"]
    return None if all(words in message for words in case.words) else message


@pytest.mark.parametrize("name", CASES)
def test_the_slow_link_is_named(shaped: Lab, name: str) -> None:
    with CASES[name].make(shaped):
        run = rated(shaped)
    assert judge(CASES[name], run) is None
    measured = {(one["src"], one["dst"], one["interface"]) for one in run.report["rates"]}
    wanted = {
        (src.name, dst.name, rail)
        for src in shaped.hosts
        for dst in shaped.hosts
        if src is not dst
        for rail in ("eth0", "eth1")
    }
    # where packets are lost, so may be those that open a connection
    lossy = CASES[name].hosts if "lossy" in name else ()
    assert {one for one in wanted - measured if not {*one} & {*lossy}} == measured - wanted == set()


def main(times: int) -> None:
    """Tries each case so many times, and says how often it was right."""
    with shaped_lab() as lab:
        for name, case in CASES.items():
            wrong = []
            began = time.monotonic()
            with case.make(lab):
                for _ in range(times):
                    problem = judge(case, rated(lab))
                    wrong += [problem] if problem else []
            took = (time.monotonic() - began) / times
            right = f"{name:24} {times - len(wrong)} of {times}, {took:.1f} s each"
            sys.stdout.write("\n  ".join((right, *wrong)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
