"""Two hosts that are no more than network namespaces on a veth pair: real rules, real dials, nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from typing_extensions import Self

from nccl_doctor.snapshot.network import FirewallFacts
from tests.patience import crowd

AGENT = Path(__file__).with_name("agent.py")
ROOT = Path(__file__).parents[2]

PRIVATE_FOLDERS = """
mount -t tmpfs tmpfs /run && mount -t sysfs sysfs /sys && mkdir /run/dbus
for folder in etc var; do
    mkdir -p /run/over/$folder/up /run/over/$folder/work
    mount -t overlay overlay -o lowerdir=/$folder,upperdir=/run/over/$folder/up,workdir=/run/over/$folder/work /$folder
done
"""


class Box:
    """One network namespace with its own /etc, /var, /run and /sys, and an agent in it."""

    def __init__(self) -> None:
        # Killing unshare ends all that runs in the box, daemons too: they share its process namespace.
        spaces = ["--net", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = ["unshare", *spaces, sys.executable, str(AGENT)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask("run", ["sh", "-ec", PRIVATE_FOLDERS])
        self.sh("sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0 net.ipv4.icmp_msgs_per_sec=100000")
        self.sh("ip link set lo up")

    def ask(self, method: str, *arguments: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([method, arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the agent died"
        return json.loads(line)

    def sh(self, script: str, given: str | None = None) -> str:
        """Stdout of a shell script that must succeed."""
        done = self.ask("run", ["bash", "-ec", script], given)
        assert done["rc"] == 0, f"{script}: {done['err']}{done['out']}"
        return str(done["out"])

    def facts(self, *, managers: bool = True) -> FirewallFacts:
        """What the probe's own collector captures here; ``managers``: ask firewalld and ufw as well."""
        return FirewallFacts.model_validate(self.ask("facts", str(ROOT), managers))

    def dial(self, flows: list[tuple[str, str, int]], timeout_s: float) -> list[str]:
        """Outcomes of (source, target, port), all dialled at once; on a busy machine each has longer."""
        return list(self.ask("dial", flows, timeout_s * crowd()))

    def close(self) -> None:
        """Ends the agent; the kernel removes the namespaces with it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


class Pair:
    """Boxes ``a`` (10.9.0.1, .11) and ``b`` (10.9.0.2, .12) on eno1; ``b`` listens."""

    def __init__(self, ports: list[int]) -> None:
        self.a, self.b = Box(), Box()
        first, second = self.a.process.pid, self.b.process.pid
        link = f"ip link add eno1 netns {first} type veth peer name eno1 netns {second}"
        subprocess.run(link.split(), check=True)
        for box, host, other in ((self.a, 1, 2), (self.b, 2, 1)):
            box.sh(
                f"ip link set eno1 address 02:09:00:00:00:0{host};"
                f"ip addr add 10.9.0.{host}/24 dev eno1; ip addr add 10.9.0.{host + 10}/24 dev eno1;"
                f"ip addr add fd09::{host}/64 dev eno1 nodad; ip link set eno1 up;"
                # rules that drop NDP make a dial that waits long "no route to host" at some time
                f"for peer in 10.9.0.{other} 10.9.0.{other + 10} fd09::{other}; do"
                f" ip neigh replace $peer lladdr 02:09:00:00:00:0{other} dev eno1 nud permanent; done"
            )
            box.ask("listen", ports)
        # The kernel takes a moment to bring both ends up.
        ready = [("10.9.0.1", "10.9.0.2", ports[0]), ("fd09::1", "fd09::2", ports[0])]
        assert any(self.a.dial(ready, 1.0) == ["connected", "connected"] for _ in range(5))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends both boxes."""
        self.a.close()
        self.b.close()
