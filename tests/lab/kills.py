"""The tool killed at random moments: ``python -m tests.lab.kills [--runs 200] [--seed 0]``.

SIGKILL in the middle of check, smoke and fix-port, over either way of connecting. Ten seconds later nothing of ours is
on any host or on the controller: counted are processes, TCP sockets other than sshd's own listener, and files.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.cli.doctor import files, ours
from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.patience import crowd

GRACE_S = 10.0
"""Within which everything has gone; longer on a crowded machine."""

PORT = "29500"
QUICK: tuple[str, ...] = ("check", "hosts.yaml", "--no-smoke")
COMMANDS: tuple[tuple[str, ...], ...] = (
    QUICK,
    ("check", "hosts.yaml"),
    ("check", "hosts.yaml", "--rate", "--no-smoke"),
    ("check", "hosts.yaml", "--transport", "openssh"),
    ("smoke", "hosts.yaml"),
    ("smoke", "hosts.yaml", "--transport", "openssh"),
    ("fix-port", PORT, "--hosts", "hosts.yaml", "--host", "node1", "--next"),
    ("fix-port", PORT, "--hosts", "hosts.yaml", "--host", "node1", "--wait", "5"),
)


@dataclass(frozen=True)
class Kill:
    """One of them: the command, when it was killed, whether it still ran then, and what stayed."""

    command: tuple[str, ...]
    after_s: float
    ran: bool
    left: tuple[str, ...]


def kills(runs: int, seed: int, within_s: float | None = None, word: str = "") -> Iterator[Kill]:
    """Each in turn, of commands with this word, in a lab of two hosts.

    Within these seconds, or as many as its command takes where nobody ends it.
    """
    draw = random.Random(seed)
    with Lab.up(2) as lab:
        lab.controller.write("/root/hosts.yaml", lab.hosts_file())
        # the result of a check that went well is kept, so one goes first
        whole = {QUICK: _takes(lab.controller, QUICK)}
        before = {host.name: files(host) for host in _all(lab)}
        for _ in range(runs):
            command = draw.choice([one for one in COMMANDS if not word or word in one])
            if command not in whole and within_s is None:
                whole[command] = _takes(lab.controller, command)
            after_s = draw.uniform(0.0, within_s or whole[command])
            ran = _killed(lab.controller, command, after_s)
            yield Kill(command, after_s, ran, _left(lab, before))


def _all(lab: Lab) -> list[LabHost]:
    return [*lab.hosts, lab.controller]


def _takes(controller: LabHost, command: tuple[str, ...]) -> float:
    began = time.monotonic()
    controller.run(["nccl-doctor", *command], check=False)
    return time.monotonic() - began


def _killed(controller: LabHost, command: tuple[str, ...], after_s: float) -> bool:
    null = subprocess.DEVNULL
    with controller.popen(["nccl-doctor", *command], stdout=null, stderr=null) as process:
        time.sleep(after_s)
        ran = process.poll() is None
        process.kill()
    return ran


def _left(lab: Lab, before: dict[str, set[str]]) -> tuple[str, ...]:
    """What is still there when the grace is over; looked at again and again, for most goes at once."""
    until = time.monotonic() + GRACE_S * crowd()
    while True:
        found = tuple(line for host in _all(lab) for line in _of_host(host, before[host.name]))
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.2)


def _of_host(host: LabHost, before: set[str]) -> Iterator[str]:
    yield from (f"{host.name}: process {pid} {line[:200]}" for pid, line in ours(host))
    yield from (f"{host.name}: file {path}" for path in sorted(files(host) - before))
    for line in host.run(["ss", "-Htan"]).stdout.splitlines():
        state, _, _, local, *_ = line.split()
        if state != "TIME-WAIT" and not (state == "LISTEN" and local.endswith(":22")):
            yield f"{host.name}: socket {line}"


def main() -> None:
    """Ends with 1 where something was left."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.kills", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--word", default="", help="only commands with this word, as --rate")
    given = parser.parse_args()
    ran = bad = 0
    for number, kill in enumerate(kills(given.runs, given.seed, word=given.word)):
        ran += kill.ran
        bad += bool(kill.left)
        if kill.left:
            print(f"kill {number}, {' '.join(kill.command)} after {kill.after_s:.2f} s:", *kill.left[:20], sep="\n  ")
        if (number + 1) % 10 == 0:
            print(f"{number + 1} of {given.runs} kills, {bad} left something", flush=True)
    print(f"{given.runs} kills (seed {given.seed}), {ran} of them while it ran: {bad} left something")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
