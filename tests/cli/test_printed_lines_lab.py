"""Every kind of line that ``launch`` prints, run as printed: it trains, or ``check`` has named before why it can't."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.cli.program import run_in
from tests.cli.training import launch, run_lines
from tests.lab.cluster import Lab
from tests.lab.warm import interpreter
from tests.servers.witness import packages

pytestmark = pytest.mark.lab


class Layout(NamedTuple):
    """Lines of /etc/hosts on the two hosts, whether they are listed by address, and the variables of the job."""

    first: str
    second: str
    by_address: bool = False
    env: Mapping[str, str] = MappingProxyType({"GLOO_SOCKET_IFNAME": "eth0"})


BOTH = "10.77.0.1 node1\n10.77.0.2 node2\n"
LAYOUTS = {
    "right": Layout(BOTH, BOTH),
    "Debian's on the master": Layout("127.0.1.1 node1\n10.77.0.2 node2\n", BOTH),
    "Debian's on both": Layout("127.0.1.1 node1\n10.77.0.2 node2\n", "10.77.0.1 node1\n127.0.1.1 node2\n"),
    "Debian's on both, by address": Layout("127.0.1.1 node1\n", "127.0.1.1 node2\n", by_address=True),
    "no names, by address": Layout("", "", by_address=True),
    "Debian's on both, without the variable": Layout(
        "127.0.1.1 node1\n10.77.0.2 node2\n", "10.77.0.1 node1\n127.0.1.1 node2\n", env={}
    ),
    "full names": Layout(
        "10.77.0.1 node1.lan node1\n10.77.0.2 node2.lan node2\n",
        "10.77.0.1 node1.lan node1\n10.77.0.2 node2.lan node2\n",
    ),
}
MACHINES = {"10.77.0.1": "node1", "10.77.0.2": "node2"}
LAUNCHERS = {
    "torchrun": ("--launcher", "torchrun"),
    "c10d": ("--rdzv",),
    "launch": ("--launcher", "launch"),
    "env": ("--launcher", "env"),
    "tcp": ("--launcher", "tcp"),
    "accelerate": ("--engine", "accelerate"),
    "deepspeed": ("--engine", "deepspeed"),
}
PROGRAMS = {"accelerate": "accelerate.commands.accelerate_cli", "deepspeed": "deepspeed.launcher.runner"}
NAMED = {"Debian's on both, without the variable": "hostname-loopback"}
"""Layouts in which gloo can't work, and the diagnosis that says so before the start."""


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    """Two hosts that the tests of this module share."""
    with Lab.up(2) as lab:
        for host in lab.hosts:
            for name, module in PROGRAMS.items():
                host.write(f"/root/bin/{name}", f'#!/bin/sh\nexec {interpreter()} -m {module} "$@"\n', 0o755)
        yield lab


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_printed_line_trains_or_its_fault_was_named(two: Lab, name: str) -> None:
    lab, layout = two, LAYOUTS[name]
    for host, own in zip(lab.hosts, (layout.first, layout.second), strict=True):
        host.write("/etc/hosts", f"127.0.0.1 localhost\n{own}")
    programs = {"PATH": "/root/bin:/usr/bin:/bin", "PYTHONPATH": ":".join(str(packages(one)) for one in PROGRAMS)}
    documents, refused = {}, {}
    for port, (launcher, options) in enumerate(LAUNCHERS.items(), start=29600):
        hosts = lab.hosts_file(
            by_address=layout.by_address,
            python=interpreter(),
            master_port=port,
            nproc_per_node=1,
            env={**layout.env, **(programs if launcher in PROGRAMS else {})},
        )
        lab.controller.write("/root/hosts.yaml", hosts)
        report = json.loads(run_in(lab.controller, "check", "hosts.yaml", "--no-smoke", "-o", "json").stdout)
        refused[launcher] = [one["name"] for one in report["diagnoses"] if one["severity"] == "error"]
        documents[launcher] = launch(lab, hosts, *options)
    assert refused == {launcher: [NAMED[name]] if name in NAMED else [] for launcher in LAUNCHERS}
    if name in NAMED:
        return
    with ThreadPoolExecutor() as pool:
        said = pool.map(lambda one: sorted(run_lines(lab, one, MACHINES)), documents.values())
        assert dict(zip(documents, said, strict=True)) == {one: [0, 1] for one in documents}
