"""Random small networks: our verdict against a real gloo all-reduce, and against dials over what libnccl names.

``python -m tests.cli.network_differential COUNT [SEED]`` prints each network on which they differ, and how many agreed.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.checks.in_the_lab import Env
from tests.cli import gloo_job
from tests.cli.doctor import Run, doctor
from tests.lab.cluster import Lab
from tests.lab.faults.network import map_name
from tests.lab.host import NETWORK, LabHost, inside
from tests.lab.machine import FIRST_INDEX, ip_batch
from tests.patience import LONG_S

BLOCKS = ("10.5.{net}.{host}", "192.168.{net}.{host}", "172.20.{net}.{host}")
_DIAL = """\
import json, socket, sys
lost = []
for address in json.loads(sys.argv[1]):
    try:
        socket.create_connection((address, 45555), 1.5).close()
    except OSError as error:
        lost.append([address, str(error)])
print(json.dumps(lost))
"""
_LISTEN = """\
import socket, sys
with socket.create_server(("", 45555), backlog=64) as server:
    print("listening", flush=True)
    while True:
        server.accept()[0].close()
"""


@dataclass
class Network:
    """One drawn network: lines that set it up, by host, and what the hosts file says."""

    hosts: list[str]
    lines: dict[str, list[str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    env: Env = field(default_factory=dict)
    master: str = ""

    def on(self, host: str, line: str) -> None:
        """Adds a line."""
        self.lines.setdefault(host, []).append(line)


def draw(seed: int) -> Network:
    """A network of two to four hosts with one to three nets, most of them with one fault or two, or with none."""
    dice = random.Random(seed)
    count = dice.choice((2, 3, 3, 4))
    made = Network([f"node{number}" for number in range(1, count + 1)])
    nets = {"eth0": "10.77.0.{host}"}
    for place in range(1, dice.choice((1, 2, 2, 3))):
        nets[f"eth{place}"] = dice.choice(BLOCKS).replace("{net}", str(place))
    address = {
        (host, dev): text.replace("{host}", str(number))
        for number, host in enumerate(made.hosts, 1)
        for dev, text in nets.items()
    }
    for (host, dev), text in address.items():
        if dev != "eth0":
            made.on(host, f"ip address add {text}/24 dev {dev}; ip link set {dev} up")
    used = dice.choice([*nets])
    made.master = address["node1", used]
    for host in made.hosts:
        made.names[host] = address[host, used]
        made.env[host] = {"NCCL_SOCKET_IFNAME": f"={used}"}
    if dice.random() < 0.4:
        chosen = dice.choice([used, used, ",".join(nets), dice.choice([*nets])])
        for host in made.hosts:
            made.env[host]["GLOO_SOCKET_IFNAME"] = chosen
    for _ in range(dice.choice((0, 1, 1, 1, 2))):
        _break(made, dice, nets, address, used)
    return made


def _break(
    made: Network, dice: random.Random, nets: dict[str, str], address: dict[tuple[str, str], str], used: str
) -> None:
    host = dice.choice(made.hosts)
    peer = dice.choice([name for name in made.hosts if name != host])
    dev, other = dice.choice([*nets]), dice.choice([*nets])
    to, kind = address[peer, dev], dice.randrange(10)
    keep = "meta iif != lo tcp dport != 22 tcp sport != 22"
    if kind == 0:
        made.names[host] = dice.choice(
            ("127.0.1.1", "10.77.0.99", "192.168.77.7", address[peer, used], address[host, other])
        )
    elif kind == 1:
        made.on(host, f"ip route add unreachable {to}/32")
    elif kind == 2:
        made.on(host, f"ip route add {to}/32 dev {other} src {address[host, dev]}")
    elif kind == 3:
        made.on(host, f"sysctl -qw net.ipv4.conf.all.rp_filter={dice.choice((1, 2))}")
        made.on(peer, f"ip route add {address[host, dev]}/32 dev {other} src {address[peer, dev]}")
    elif kind == 4:
        made.on(
            host, "ip link add tun0 index 99 type bridge; ip link set tun0 up; ip route add default dev tun0 table 100"
        )
        made.on(
            host,
            f"ip rule add from {address[host, dev]} table 100 priority 50; ip rule add to 10.77.0.254 lookup main priority 40",
        )
    elif kind == 5 and dev != "eth0":
        made.on(host, f"ip address del {address[host, dev]}/24 dev {dev}")
    elif kind == 6 and dev != "eth0":
        made.on(host, f"ip link set {dev} down")
    else:
        match = dice.choice(
            (
                f"iif {dev}",
                f"ip saddr {to}",
                f"iif {dev} tcp dport 29500",
                f"ip saddr {to} tcp dport 32768-60999",
                "tcp dport 29500",
            )
        )
        verdict = dice.choice(("drop", "reject", "reject with tcp reset"))
        rule = f"{keep} {match} {verdict}".replace("reject with tcp reset", "ip protocol tcp reject with tcp reset")
        made.on(
            host,
            f"nft 'add table ip f; add chain ip f in {{ type filter hook input priority 0; }}; add rule ip f in {rule}'",
        )


class Stand:
    """A lab of four hosts with three nets, for one network after the other."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        for place in (1, 2):
            lab.switch(["ip", "link", "add", f"br{place}", "type", "bridge"])
            lab.switch(["ip", "link", "set", f"br{place}", "up"])
            for host in lab.hosts:
                port = f"{host.name}n{place}"
                link = f"link add name eth{place} index {FIRST_INDEX + place} type veth peer name {port} netns {lab.supervisor}\n"
                inside(host.pid, NETWORK, partial(ip_batch, link))
                lab.switch(["ip", "link", "set", port, "master", f"br{place}", "up"])
        self.etc = {host.name: host.read("/etc/hosts") for host in lab.hosts}

    def clear(self) -> None:
        """As it was."""
        for host in self.lab.hosts:
            host.run(
                "nft flush ruleset; ip link del tun0; ip rule del priority 50; ip rule del priority 40; "
                "ip route flush table 100; for d in eth1 eth2; do ip link set $d down; ip address flush dev $d; done; "
                "ip route flush root 10.0.0.0/8 type unreachable; ip route flush root 192.168.0.0/16; ip route flush root 172.16.0.0/12;"
                "for n in 1 2 3 4; do ip route del 10.77.0.$n/32; ip route del unreachable 10.77.0.$n/32; done; "
                "ip link set eth0 up; sysctl -qw net.ipv4.conf.all.rp_filter=0 2>&1; true",
                check=False,
            )
            host.write("/etc/hosts", self.etc[host.name])

    def compare(self, made: Network) -> dict[str, Any]:
        """What both say: ``ready`` is ours, ``gloo`` and ``dials`` are the witnesses'."""
        chosen = [self.lab.host(name) for name in made.hosts]
        for host in chosen:
            for line in made.lines.get(host.name, ()):
                host.run(line, check=False)
            map_name(host, host.name, made.names[host.name])
            _settle(host)
        run = self._verdict(made, chosen)
        job = gloo_job.Job(hosts=chosen, own=made.env, master=made.master)
        said = gloo_job.run(self.lab, job, gloo_job.SOON_S)
        if run.code == 0 and any(word != "works" for word in said):
            said = gloo_job.run(self.lab, job, LONG_S)  # a busy machine is no fault
        dials = self._dials(run, chosen)
        return {
            "ready": run.code == 0,
            "gloo": all(word == "works" for word in said),
            "dials": not dials,
            "found": [(each["name"], each["severity"], each["hosts"]) for each in run.report["diagnoses"]],
            "lost": dials,
        }

    def _verdict(self, made: Network, chosen: list[LabHost]) -> Run:
        hosts = [{"name": host.name, "address": host.address, "env": made.env[host.name]} for host in chosen]
        return doctor(self.lab, "check", "--no-smoke", hosts=self.lab.hosts_file(hosts=hosts, master_addr=made.master))

    def _dials(self, run: Run, chosen: list[LabHost]) -> list[Any]:
        """Every host dials what libnccl listens on, on every other one."""
        used = {each["name"]: each["nccl_interface"] for each in run.report["hosts"]}
        if not all(used.values()):
            return ["no interface"]
        servers = [host.popen([sys.executable, "-S", "-c", _LISTEN], stdout=-1) for host in chosen]
        try:
            for server in servers:
                assert server.stdout is not None
                server.stdout.readline()
            dialling = []
            for host in chosen:
                wanted = json.dumps([used[other.name]["address"] for other in chosen if other.name != host.name])
                dialling.append(host.popen([sys.executable, "-S", "-c", _DIAL, wanted], stdout=-1))
            return [
                [host.name, *row]
                for host, process in zip(chosen, dialling, strict=True)
                for row in json.loads(process.communicate()[0])
            ]
        finally:
            for server in servers:
                with server:
                    server.kill()


def _settle(host: LabHost) -> None:
    """Waits until the kernel has marked what is up as running, which takes it seconds; libnccl passes over the rest."""
    up = host.run("ip -o link show up").stdout
    for name in ("eth0", "eth1", "eth2"):
        if f" {name}@" in up:
            host.wait_until(lambda name=name: host.runs(name), f"a running {name}")  # type: ignore[misc]  # bound early


def main(count: int, seed: int) -> int:
    """Prints what differs."""
    agreed = 0
    with Lab.up(4) as lab:
        stand = Stand(lab)
        for number in range(seed, seed + count):
            stand.clear()
            made = draw(number)
            told = stand.compare(made)
            if told["ready"] == (told["gloo"] and told["dials"]):
                agreed += 1
            else:
                print(number, json.dumps(told), made, flush=True)  # noqa: T201 - a program's output
            if number % 10 == 9:
                print(f"{agreed} of {number - seed + 1} agreed", flush=True)  # noqa: T201
    print(f"{agreed} of {count} agreed")  # noqa: T201
    return count - agreed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])) > 0)
