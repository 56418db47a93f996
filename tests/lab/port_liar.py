"""A host that lies to ``fix-port --hosts --host``, run after run: ``python -m tests.lab.port_liar --runs 100``.

It is the host whose port is asked about, or another one of the job. Whatever it says, the port's state or one sentence
that names it comes out, no line to paste holds anything of its making, and memory stays bounded.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys

from tests.lab.cluster import Lab
from tests.lab.liar import MOST_MIB, NAMES, PROJECT, WATCHED, Lie

TARGET, PORT = "node2", 29500
LINES = re.compile(
    r"nccl-doctor fix-port 29500 --hosts hosts\.yaml --host node2 (?:--wait|--pid \d+@\d+ --kill)"
    r"|(?:sudo )?(?:nsenter -t \d+ -n )?ss -tanp 'sport = :29500'"
    r"|sysctl -w net\.ipv4\.ip_local_reserved_ports=[\d,-]+"
    r"|export MASTER_PORT=\d+ PET_MASTER_PORT=\d+|torchrun --master_port \d+ …"
    r"|python -m torch\.distributed\.launch --master_port \d+ …|init_method=tcp://node1:\d+"
)
STARTS = ("nccl-doctor", "sudo", "nsenter", "ss ", "sysctl", "export", "torchrun", "python", "init_method")
CALLS = ((), ("--kill", "--yes", "--force", "--grace", "1"), ("--next",), ("--wait",))


def lie(number: int) -> Lie:
    """The run of this number: about ports, by the target two times of three."""
    return Lie(f"p{number}", random.Random(number).choice((TARGET, TARGET, "node3")))


def through_cli(one: Lie, lab: Lab) -> list[str]:
    """What went wrong; nothing where all held."""
    draw = random.Random(one.seed)
    call, form = draw.choice(CALLS), draw.choice(("json", "human"))
    program = "/root/liar"
    lab.host(one.liar).write(program, one.script)
    lab.host(one.liar).run(["chmod", "755", program])
    hosts = [{"name": name, "python": program} if name == one.liar else name for name in NAMES]
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(hosts=hosts))
    words = ["nccl-doctor", "fix-port", str(PORT), "--hosts", "hosts.yaml", "--host", TARGET, *call, "-o", form]
    command = [sys.executable, "-c", WATCHED, "env", f"PYTHONPATH={PROJECT}", *words]
    holder = lab.host(TARGET).background(["nc", "-lk", "-p", str(PORT)]) if draw.random() < 0.5 else None
    try:
        done = lab.controller.run(command, check=False, timeout=200)
    finally:
        if holder is not None:
            lab.host(TARGET).run(["kill", "-9", str(holder)], check=False)
    said, _, peak = done.stderr.rpartition("@peak ")
    found = [f"{peak.strip()} MiB"] if int(peak) > MOST_MIB else []
    if done.returncode not in (0, 1, 3) or "Traceback" in said:
        found.append(f"exit code {done.returncode}: {said[-2000:]}")
    if done.returncode == 3 and one.liar not in said:
        found.append(f"the liar is not named: {said[-500:]}")
    if done.returncode in (0, 1) and form == "json":
        suggestion = json.loads(done.stdout)["suggestion"]
        found += [] if suggestion is None or LINES.fullmatch(suggestion["command"]) else [suggestion["command"]]
    elif form == "human":
        found += [line for line in done.stdout.splitlines() if line.startswith(STARTS) and not LINES.fullmatch(line)]
    return found


def main() -> int:
    """Runs them; the exit status is 1 where one did not hold."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=100)
    options.add_argument("--start", type=int, default=0, help="the first seed")
    asked = options.parse_args()
    broken = 0
    with Lab.up(3) as lab:
        for number in range(asked.start, asked.start + asked.runs):
            found = through_cli(lie(number), lab)
            broken += bool(found)
            for text in found:
                sys.stdout.write(f"{lie(number)}: {text}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{asked.runs} runs, {broken} broken\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
