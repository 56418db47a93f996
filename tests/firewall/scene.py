"""A pair of boxes as the two hosts of a snapshot: facts collected, all dialled, judged, and the remedy pasted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

from nccl_doctor.checks.ports.firewall_blocks_ephemeral import firewall_blocks_ephemeral
from nccl_doctor.checks.ports.firewall_blocks_port import firewall_blocks_port
from nccl_doctor.checks.view import Derived, View
from nccl_doctor.model.finding import Finding
from nccl_doctor.model.register import Unjudged
from nccl_doctor.model.report import FailedDial
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.snapshot.mesh import Mesh
from tests.checks.snapshots import healthy, patched
from tests.firewall.netbox import Box, Pair

PORTS = {"node1": [29500, 33000, 45000], "node2": [33000, 45000]}
ADDRESSES = {"node1": "10.9.0.2", "node2": "10.9.0.1"}


@dataclass
class Judgement:
    """What the two checks say of a snapshot."""

    snapshot: Snapshot
    port: list[Finding]
    ephemeral: list[Finding]
    unjudged: list[Unjudged]

    @property
    def failed(self) -> tuple[FailedDial, ...]:
        assert isinstance(self.snapshot.mesh, Mesh)
        return self.snapshot.mesh.failed


class Scene:
    """node1, the master, is box ``b``; node2 is box ``a``; firewalld and ufw are looked for on the managed ones."""

    def __init__(self, managed: tuple[str, ...] = ()) -> None:
        self.managed = managed
        self.pair = Pair(PORTS["node1"])
        self.boxes: dict[str, Box] = {"node1": self.pair.b, "node2": self.pair.a}

    def failed(self) -> list[dict[str, Any]]:
        """Every dial between the two that does not connect."""
        found = []
        for source, box in self.boxes.items():
            target = "node2" if source == "node1" else "node1"
            flows = [(ADDRESSES[source], ADDRESSES[target], port) for port in PORTS[target]]
            for (_, address, port), outcome in zip(flows, box.dial(flows, 0.4), strict=True):
                if outcome != "connected":
                    found.append({"src": source, "dst": target, "address": address, "port": port, "outcome": outcome})
        return found

    def facts(self, name: str, *, managers: bool = True) -> dict[str, Any]:
        """What the collector captures on a host, in JSON form; managers are asked where they run only."""
        facts = self.boxes[name].facts(managers=managers and name in self.managed)
        return facts.model_dump(by_alias=True, mode="json")

    def judge(self) -> Judgement:
        """Facts, dials, checks."""
        before = {name: self.facts(name) for name in self.boxes}
        failed = self.failed()
        after = {name: self.facts(name, managers=False) for name in self.boxes}
        hosts = {
            name: {
                "node": {"address": address},
                "facts": {
                    "interfaces": {
                        "addresses": [
                            {"interface": "eno1", "family": "inet", "address": address, "netmask": "255.255.255.0"}
                        ]
                    },
                    "routes": [
                        {"family": "inet", "destination": "10.9.0.0/24", "gateway": None, "interface": "eno1", "metric": 0}
                    ],
                    "ways": [
                        {"to": other, "dev": "eno1", "prefers": address, "table": 254}
                        for other in ADDRESSES.values() if other != address
                    ],
                    "sysctls": {"net.ipv4.ip_default_ttl": "64"},
                    "resolution": {
                        other: {"addresses": [other], "source": address} for other in ADDRESSES.values()
                    },
                    "firewall": before[name],
                    "firewall_after": after[name],
                },
            }
            for name, address in ADDRESSES.items()
        }  # fmt: skip
        mesh = {"hosts": 2, "pairs": 2, "tested": 2, "ports": PORTS, "failed": failed}
        nodes = [
            {**node, "address": ADDRESSES.get(node["name"], node["address"])} for node in healthy()["cluster"]["nodes"]
        ]
        cluster = {"nodes": nodes, "master_addr": ADDRESSES["node1"]}
        snapshot = patched({"cluster": cluster, "hosts": hosts, "mesh": mesh})
        view = View(Derived(snapshot), snapshot.reached)
        port, ephemeral = list(firewall_blocks_port(view)), list(firewall_blocks_ephemeral(view))
        return Judgement(
            snapshot,
            [found for found in port if isinstance(found, Finding)],
            [found for found in ephemeral if isinstance(found, Finding)],
            [found for found in port + ephemeral if isinstance(found, Unjudged)],
        )

    def paste(self, finding: Finding) -> None:
        """Every command of a finding, as a person would: into a shell of its host."""
        for command in finding.fix.commands:
            assert command.host
            self.boxes[command.host].sh(command.command)

    def rules(self) -> dict[str, str]:
        """All rules of both hosts, without their counters."""
        script = "nft -s list ruleset; iptables-legacy-save | sed '/^[#:]/d'"
        return {name: box.sh(script) for name, box in self.boxes.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.pair.close()


def start_firewalld(box: Box) -> None:
    """firewalld as it comes: zone public, ssh and dhcpv6-client."""
    box.sh("dbus-daemon --system --fork")
    box.ask("start", ["firewalld", "--nofork", "--nopid"])
    box.sh("for _ in $(seq 300); do firewall-cmd --state >/dev/null 2>&1 && exit 0; sleep 0.1; done; exit 1")
