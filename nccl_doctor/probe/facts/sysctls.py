"""Kernel settings: how it answers ARP and filters by the way back, and how many neighbours it keeps."""

from __future__ import annotations

import os

ROOT = "/proc/sys/net/ipv4/conf"
KEYS = ("rp_filter", "arp_ignore", "arp_announce")
NEIGHBOURS = "/proc/sys/net/ipv4/neigh/default"
THRESHOLDS = ("gc_thresh1", "gc_thresh2", "gc_thresh3")


def collect() -> dict[str, str]:
    """The settings by full name: "net.ipv4.conf.all.rp_filter", for "all" and each interface (ip-sysctl.rst)."""
    found = {}
    for key in THRESHOLDS:
        try:
            with open(f"{NEIGHBOURS}/{key}") as file:
                found[f"net.ipv4.neigh.default.{key}"] = file.read().strip()
        except FileNotFoundError:  # only the first network namespace shows them
            continue
    for interface in sorted(os.listdir(ROOT)):
        for key in KEYS:
            try:
                with open(f"{ROOT}/{interface}/{key}") as file:
                    found[f"net.ipv4.conf.{interface}.{key}"] = file.read().strip()
            except FileNotFoundError:  # the interface went away meanwhile
                continue
    return found
