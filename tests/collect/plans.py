"""Plans of an all-reduce over the healthy cluster's hosts."""

from __future__ import annotations

from typing import Any

from nccl_doctor.collect.smoke.plan import SmokeLimits, plan
from tests.checks.snapshots import NAMES, patched

GPU = {"name": "H100", "uuid": "GPU-{0}", "memory_total_mib": 81559, "memory_used_mib": 0, "driver": "570.86"}


def gpus(count: int) -> list[dict[str, Any]]:
    return [{**GPU, "index": index, "uuid": f"GPU-{index}"} for index in range(count)]


def planned(hosts: dict[str, Any], limits: SmokeLimits | None = None) -> Any:
    for name, change in hosts.items():
        change.setdefault("facts", {}).setdefault("gpus", gpus(2))
        change.setdefault("node", {"name": name})
    snapshot = patched({"hosts": hosts})
    nodes = tuple(host.node for host in snapshot.hosts)
    facts = {host.name: host.facts for host in snapshot.hosts if host.facts is not None}
    return plan(snapshot.cluster.model_copy(update={"nodes": nodes}), facts, limits or SmokeLimits())


def everywhere(**node: Any) -> dict[str, Any]:
    return {name: {"node": dict(node)} for name in NAMES}
