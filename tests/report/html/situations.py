"""The clusters whose reports are looked at in a browser: judged snapshots, as ``check --from`` shows them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.verdict import report as log_report
from nccl_doctor.model.documents import HangJob, HangLook, HangRank, HangReport
from nccl_doctor.model.report import Report
from nccl_doctor.snapshot.hosts import Snapshot
from tests.checks.snapshots import healthy, load, overlaid
from tests.report.html.reading import html

FIXTURES = Path(__file__).parents[2] / "checks"
NASTY = (
    "<script>pwned=1</script>",
    '"onload="pwned=1',
    "</style><h1>",
    "'><img src=x onerror=pwned=1>",
    "\u202egnp.exe\u2066",
    "x" * 10_000,
)
LINK_GB_S = 1.25
"""What the healthy snapshot's interface of 10 Gbit/s gives."""


def three_healthy() -> Report:
    """Nothing to do."""
    return judge(Snapshot.model_validate(healthy() | {"spent": _spent(["node1", "node2", "node3"])}), "check")


def three_with_a_firewall() -> Report:
    """A host that drops the others' dials."""
    return judge(load(FIXTURES / "ports/firewall_blocks_port/fires.json"), "check")


def hundred_with_a_dead_port() -> Report:
    """A host that no other reaches, nor it them, though SSH gets there by another net."""
    names = [_name(rank) for rank in range(100)]
    dead = names[36]
    pairs = [(dead, name) for name in names if name != dead] + [(name, dead) for name in names if name != dead]
    addresses = {name: _address(rank) for rank, name in enumerate(names)}
    dial = {"port": 40001, "outcome": "timed-out", "error": None}
    failed = [{"src": src, "dst": dst, "address": addresses[dst], **dial} for src, dst in pairs]
    return judge(_many(100, {"pairs": 9900, "tested": 9900, "failed": failed}, slow=dead), "check")


def sampled_256() -> Report:
    """So many that the mesh is a sample; all is well but one host's torch."""
    sample = {"order": [_name(rank) for rank in range(256)], "distances": [1, 255, 97, 41]}
    mesh = {"pairs": 256 * 255, "tested": 256 * 4 + 2 * 251, "sample": sample}
    return judge(_many(256, mesh, other_torch=_name(130)), "check")


def smoke_with_a_curve() -> Report:
    """Every size from 8 bytes to 64 MiB."""
    sizes = [8 << power for power in range(24)]
    seconds = [
        4e-5 * (1 + 0.3 * (place % 3)) + 4 / 3 * size / (0.92 * LINK_GB_S * 1e9) for place, size in enumerate(sizes)
    ]
    rows = [
        {"bytes": size, "seconds": took, "algbw": size / took / 1e9, "busbw": 4 / 3 * size / took / 1e9}
        for size, took in zip(sizes, seconds, strict=True)
    ]
    return judge(Snapshot.model_validate(overlaid(healthy(), {"smoke": {"sizes": rows}})), "smoke")


def three_rails() -> Report:
    """RDMA devices of which those behind one that is down meet others."""
    return judge(load(FIXTURES / "rdma/rdma_pair_unreachable/fires-one-down.json"), "check")


def hostile() -> Report:
    """Every word that a host or a user can choose is an attack, and a command is left to paste."""
    document = json.loads(load(FIXTURES / "processes/stale_process/fires.json").model_dump_json(by_alias=True))
    names = [NASTY[2], NASTY[3] + NASTY[4], NASTY[5][:4000]]
    text = json.dumps(document)
    for place, name in enumerate(names, start=1):
        text = text.replace(json.dumps(f"node{place}"), json.dumps(name))
    document = json.loads(text)
    for host in document["hosts"]:
        facts = host["facts"]
        facts["python"]["executable"] = NASTY[0] + NASTY[5][:4000]
        for job in facts["processes"] or ():
            job["command"] = " ".join(NASTY[:5])
        facts["gpus"] = {"$unknown": NASTY[1] + NASTY[0]}
        facts["firewall"] = {"$unknown": NASTY[2]}
    report = judge(Snapshot.model_validate(document), "check")
    # A snapshot and what was measured hold 4,096 characters of a text at most; a report's own words, any number.
    told = json.loads(report.model_dump_json(by_alias=True))
    measured = {"smoke": told.pop("smoke"), "mesh": told.pop("mesh")}
    longer = Report.model_validate(json.loads(json.dumps(told).replace(NASTY[5][:4000], NASTY[5])) | measured)
    return longer.model_copy(update={"title": NASTY[0] + NASTY[4]})


def a_log() -> Report:
    """Ranks of two hosts; one can't reach the other, and the rest follows."""
    lines = (
        "2026-03-01 10:00:31 gpu02:3977:4050 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 8 nranks 16 cudaDev 0 - Init START",
        "2026-03-01 10:00:33 gpu02:3977:4050 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.1<53211> failed : No route to host",
        "2026-03-01 10:00:34 [rank0]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.",
        "2026-03-01 10:00:37 [rank1]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
    )
    return log_report(diagnose([LogSource("train.log", ["\n".join(lines).encode() + b"\n"])]), 0.1)


def a_hang() -> HangReport:
    """Three ranks wait for one that loads data."""
    ranks = [
        HangRank(
            rank=rank,
            host=f"node{rank}",
            pid=4711 + rank,
            state="S",
            frame="train.py:140 in step",
            called="all_reduce",
            collectives={"0": 7},
        )
        for rank in range(3)
    ]
    late = HangRank(
        rank=3, host="node3", pid=4799, state="R", frame="data.py:88 in _next", behind=True, collectives={"0": 6}
    )
    return HangReport(
        verdict="outside-nccl",
        complete=True,
        message="Rank 3 stands in its data loader while 3 other ranks wait for it.",
        job=HangJob(master_addr="10.0.0.1", master_port=29500, world_size=4),
        ranks=(*ranks, late),
        looks=(HangLook(at="2026-01-01T00:00:00+00:00"),),
        diagnoses=(),
        hosts=4,
        interval_s=5,
    )


REPORTS: dict[str, Callable[[], Report]] = {
    "healthy": three_healthy,
    "firewall": three_with_a_firewall,
    "dead-port": hundred_with_a_dead_port,
    "sampled": sampled_256,
    "smoke": smoke_with_a_curve,
    "rails": three_rails,
    "hostile": hostile,
    "log": a_log,
}


def files() -> dict[str, str]:
    """Every page, by name."""
    made = {name: make() for name, make in REPORTS.items()}
    return {name: html(report, report.command) for name, report in made.items()} | {"hang": html(a_hang(), "hang")}


def _name(rank: int) -> str:
    return f"gpu{rank + 1:03d}"


def _address(rank: int) -> str:
    return f"10.1.{rank // 200}.{rank % 200 + 1}"


def _spent(names: list[str], slow: str = "") -> dict[str, Any]:
    """Times in which one host is slow to answer."""
    return {
        name: {
            "connect": (0.0, 0.2 + place % 7 / 50),
            "probe": (0.2 + place % 7 / 50, 3.1 if name == slow else 0.6 + place % 5 / 40),
            "mesh": (3.2, 3.6),
        }
        for place, name in enumerate(names)
    }


def _many(count: int, mesh: dict[str, Any], *, slow: str = "", other_torch: str = "") -> Snapshot:
    """So many copies of the healthy snapshot's second host, each with its own name and address; no all-reduce."""
    base = healthy()
    names = [_name(rank) for rank in range(count)]
    hosts = [_copy(base["hosts"][1], rank) for rank in range(count)]
    hosts[0]["facts"]["master_port"] = {"port": 29500, "free": True}
    for host in hosts:
        if host["node"]["name"] == other_torch:
            host["facts"]["torch"]["version"] = "2.7.0"
    ports = {name: [32768, 60999, 40001] for name in names}
    return Snapshot.model_validate(
        base
        | {
            "cluster": base["cluster"] | {"nodes": [host["node"] for host in hosts], "master_addr": _address(0)},
            "hosts": hosts,
            "names": {_address(rank): {"addresses": [_address(rank)]} for rank in range(count)},
            "mesh": {"hosts": count, "ports": ports, "failed": [], **mesh},
            "smoke": {"$skipped": "not requested (--no-smoke)"},
            "spent": _spent(names, slow),
        }
    )


def _copy(host: dict[str, Any], rank: int) -> dict[str, Any]:
    text = json.dumps(host).replace("10.0.0.2", _address(rank)).replace('"node2"', json.dumps(_name(rank)))
    made: dict[str, Any] = json.loads(text)
    made["node"]["node_rank"] = rank
    made["facts"]["identity"]["boot_id"] = f"boot-{rank}"
    for one in made["facts"]["interfaces"]["addresses"]:
        one["netmask"] = "255.255.0.0" if one["interface"] == "eno1" else one["netmask"]
    made["facts"]["routes"] = [
        route | {"destination": "10.1.0.0/16"} if route["gateway"] is None else route | {"gateway": "10.1.255.254"}
        for route in made["facts"]["routes"]
    ]
    made["facts"]["resolution"] = {"own": {}, "source": _address(rank)}
    made["facts"]["firewall"] = {"iptables": [], "nft": None}
    return made
