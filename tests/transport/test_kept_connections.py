"""Connections that stay open between the commands of a host."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from nccl_doctor.act.root import unshared
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.transport import make_transport
from nccl_doctor.transport.base import Transport
from nccl_doctor.transport.ssh import paramiko_transport
from tests.patience import LONG_S
from tests.transport.conftest import run
from tests.transport.servers import Controller, Sshd, node

pytestmark = pytest.mark.slow


@pytest.fixture
def host(server: Sshd, controller: Controller) -> Node:
    controller.know(server.known())
    return node(server.port)


@pytest.fixture
def keeping(host: Node, controller: Controller) -> Iterator[Transport]:
    transport = make_transport("paramiko", Cluster(nodes=(host,), master_addr="n"), controller.config, keeps=True)
    yield transport
    transport.close()


def logins(server: Sshd) -> int:
    return server.log.read_text().count("Accepted publickey")


def test_commands_share_a_connection(keeping: Transport, host: Node, server: Sshd) -> None:
    before = logins(server)
    assert [run(keeping, host, f"echo {n}") for n in range(3)] == [[b"0"], [b"1"], [b"2"]]
    assert logins(server) - before == 1
    (connection,) = server.connections()
    assert not connection.children(recursive=True)[1:]  # nothing runs there meanwhile
    assert run(keeping, unshared(host), "echo alone") == [b"alone"]
    assert logins(server) - before == 2
    keeping.close()
    _, left = psutil.wait_procs(server.connections(), timeout=LONG_S)  # sshd ends after its client
    assert [one for one in left if one in server.connections()] == []


def test_a_connection_that_was_lost_is_made_anew(keeping: Transport, host: Node, server: Sshd) -> None:
    run(keeping, host, "true")
    for connection in server.connections():
        connection.kill()
    assert run(keeping, host, "echo back") == [b"back"]


def test_a_connection_that_stands_still_is_made_anew(
    keeping: Transport, host: Node, server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after hours at the question, in which a firewall has forgotten the connection."""
    monkeypatch.setattr(paramiko_transport, "REUSE_S", 0.5)
    run(keeping, host, "true")
    (first,) = server.connections()
    stopped = [first, *first.children(recursive=True)]
    for process in stopped:
        process.suspend()
    try:
        assert run(keeping, host, "echo back") == [b"back"]
    finally:
        for process in stopped:
            process.resume()
