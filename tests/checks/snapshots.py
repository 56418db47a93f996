"""Snapshots for tests: a healthy cluster, and patches to it.

A fixture is a whole snapshot (it has the key ``schema``) or a patch to the healthy one::

    {"hosts": {"node2": {"facts": {"torch": null}}}, "cluster": {"master_port": 80}, "mesh": {"failed": [...]}}

Its key ``source`` names the public document or thread that shows these facts.

Objects are merged and everything else is replaced; ``null`` is a value, not a removal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nccl_doctor.snapshot.hosts import Snapshot

NAMES = ("node1", "node2", "node3")

UNREACHABLE = {"target": "node3", "address": "10.0.0.3", "port": 22, "user": "ann", "reason": "timed-out"}
"""The facts of an ssh-unreachable."""


def _host(rank: int) -> dict[str, Any]:
    name, address = NAMES[rank], f"10.0.0.{rank + 1}"
    return {
        "node": {"name": name, "address": address, "node_rank": rank},
        "failure": None,
        "facts": {
            "identity": {
                "hostname": name,
                "user": "ubuntu",
                "uid": 1000,
                "machine": "x86_64",
                "kernel": "6.8.0",
                "boot_id": f"00000000-0000-0000-0000-00000000000{rank}",
                "container": None,
            },
            "resolution": {
                **{f"10.0.0.{r + 1}": {"addresses": [f"10.0.0.{r + 1}"], "source": address} for r in range(3)},
                **{NAMES[r]: {"addresses": [f"10.0.0.{r + 1}"], "source": address} for r in range(3)},
            },
            "interfaces": {
                "links": [
                    {"name": "lo", "index": 1, "flags": ["up", "loopback", "running"], "mtu": 65536, "speed_mbps": None,
                     "kind": "loopback"},
                    {"name": "eno1", "index": 2, "flags": ["up", "broadcast", "running", "multicast"], "mtu": 1500,
                     "speed_mbps": 10000, "kind": "physical"},
                ],
                "addresses": [
                    {"interface": "lo", "family": "inet", "address": "127.0.0.1", "netmask": "255.0.0.0"},
                    {"interface": "eno1", "family": "inet", "address": address, "netmask": "255.255.255.0"},
                ],
            },
            "routes": [
                {"family": "inet", "destination": "10.0.0.0/24", "gateway": None, "interface": "eno1", "metric": 0},
                {"family": "inet", "destination": "0.0.0.0/0", "gateway": "10.0.0.254", "interface": "eno1", "metric": 100},
            ],
            "sockets": [],
            "python": {"executable": "/usr/bin/python3", "version": "3.11.7", "prefix": "/usr"},
            "torch": {"version": "2.9.1+cu128", "cuda": "12.8", "hip": None, "nccl": "2.27.7",
                      "nccl_library": "/usr/lib/python3/nvidia/nccl/lib/libnccl.so.2", "location": "/usr/lib/python3/torch"},
            "gpus": [],
            "limits": {"nofile_soft": 65536, "nofile_hard": 1048576, "memlock_soft": None, "memlock_hard": None},
            "shm": {"total_bytes": 67_000_000_000, "free_bytes": 67_000_000_000},
            "temporary": [{"path": "/tmp", "free_bytes": 50_000_000_000, "free_files": 3_000_000}],
            "tasks": [{"name": "ulimit -u", "most": 30000, "used": 40}],
            "conntrack": {"most": 262144, "used": 300},
            "port_range": {"low": 32768, "high": 60999, "reserved": ""},
            "env": {},
            "config_files": [],
            "engines": {"route": address, "route6": None, "configured": [address], "by_inet": address,
                        "by_fqdn": address, "fqdn": name, "packages": {}},
            "sysctls": {"net.ipv4.neigh.default.gc_thresh3": "1024", "net.ipv4.conf.all.rp_filter": "2"},
            "rdma": [],
            "pci": {},
            "gpu_driver": None,
            "gpu_health": [],
            "processes": [],
            "gpu_processes": [],
            "xids": [],
            "plugins": [],
            "same": [],
            "login_shell": None,
            "clock": {"offset_s": 0.0, "error_s": 0.001},
            "master_port": {"port": 29500, "free": True} if rank == 0 else {"$skipped": "only the master's port is tried"},
        },
    }  # fmt: skip


def healthy() -> dict[str, Any]:
    """Three hosts on one net, a whole mesh, an all-reduce that came out right."""
    return {
        "schema": 1,
        "version": "0.1.0",
        "taken_at": "2026-01-01T00:00:00+00:00",
        "cluster": {
            "nodes": [_host(rank)["node"] for rank in range(3)],
            "master_addr": "10.0.0.1",
            "master_port": 29500,
            "source": "hosts.yaml",
        },
        "hosts": [_host(rank) for rank in range(3)],
        "mesh": {
            "hosts": 3,
            "pairs": 6,
            "tested": 6,
            "ports": {
                "node1": [29500, 32768, 60999, 40001],
                "node2": [32768, 60999, 40002],
                "node3": [32768, 60999, 40003],
            },
            "failed": [],
        },
        "smoke": {
            "backend": "gloo",
            "world_size": 3,
            "outcome": "ok",
            "deadline_s": 60.0,
            "ranks": [{"rank": r, "host": NAMES[r], "local_rank": 0, "stage": "done", "ok": True} for r in range(3)],
            "sizes": [{"bytes": 1048576, "seconds": 0.002, "algbw": 0.5, "busbw": 0.67}],
        },
        "timings": {"connect": 0.4, "total": 3.1},
    }


def patched(patch: dict[str, Any]) -> Snapshot:
    """The healthy snapshot with a patch laid over it; "hosts" is by name there."""
    return Snapshot.model_validate(overlaid(healthy(), patch))


def overlaid(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A whole snapshot of three hosts, as JSON, with a patch laid over it."""
    hosts = [_merged(host, patch.get("hosts", {}).get(host["node"]["name"], {})) for host in document["hosts"]]
    merged: dict[str, Any] = _merged(document, {**patch, "hosts": hosts})
    merged.pop("source", None)
    return merged


def load(path: Path) -> Snapshot:
    """A fixture file."""
    document = json.loads(path.read_text())
    return Snapshot.model_validate(document) if "schema" in document else patched(document)


def _merged(base: Any, change: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(change, dict) or any(key.startswith("$") for key in change):
        return change
    return {**base, **{key: _merged(base.get(key), value) for key, value in change.items()}}
