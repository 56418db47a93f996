"""Checks of the containers that jobs run in, with real ones on every host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.doctor import Run, doctor, ours
from tests.lab.cluster import Lab
from tests.lab.containers import prepare, start

pytestmark = pytest.mark.lab

HEALTHY = ("--network", "host", "--ipc", "host")


@pytest.fixture(scope="module")
def boxes() -> Iterator[Lab]:
    """Two hosts, each with a container "train" that is as good as the host."""
    with Lab.up(2) as lab:
        for host in lab.hosts:
            prepare(host)
            start(host, "train", *HEALTHY)
        yield lab


def check(lab: Lab, *options: str, **keys: Any) -> Run:
    return doctor(lab, "check", *options, hosts=lab.hosts_file(**keys))


def test_a_healthy_container_is_silent_and_nothing_stays_in_it(boxes: Lab) -> None:
    for transport in ("paramiko", "openssh"):
        run = check(boxes, "--no-smoke", "--transport", transport, inside={"podman": "train"})
        assert (run.names, run.code) == ([], 0), run.report["diagnoses"]
    assert [ours(host) for host in boxes.hosts] == [[], []]


def test_no_such_container(boxes: Lab) -> None:
    run = check(boxes, "--no-smoke", "--inside", "podman:trian")
    assert (run.names, run.first["hosts"]) == (["container-unreachable"], ["node1", "node2"])
    assert run.first["message"] == "node[1-2]: there is no podman container trian; there run train."
