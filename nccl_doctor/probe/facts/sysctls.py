"""Kernel settings: how it answers ARP and filters by the way back, and how many neighbours it keeps."""

from __future__ import annotations

import contextlib
import os

from nccl_doctor.probe import neighbours

ROOT = "/proc/sys/net/ipv4/conf"
KEYS = ("rp_filter", "arp_ignore", "arp_announce")


def collect() -> dict[str, str]:
    """The settings by full name: "net.ipv4.conf.all.rp_filter", for "all" and each interface (ip-sysctl.rst)."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):  # a sandbox whose kernel is its own has no such table: its limits stay unknown
        found.update(neighbours.thresholds())
    for interface in sorted(os.listdir(ROOT)):
        for key in KEYS:
            try:
                with open(f"{ROOT}/{interface}/{key}") as file:
                    found[f"net.ipv4.conf.{interface}.{key}"] = file.read().strip()
            except FileNotFoundError:  # the interface went away meanwhile
                continue
    return found
