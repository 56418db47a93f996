from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.engines.base import TransportKind
from nccl_doctor.transport import make_transport
from nccl_doctor.transport.base import AccessError, Transport
from tests.patience import LONG_S, crowd
from tests.transport.servers import Controller, Sshd, keygen, node, sshd

Make = Callable[[TransportKind], Transport]


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of all sorts, made once."""
    place = tmp_path_factory.mktemp("keys")
    keygen(place / "id")
    keygen(place / "other")
    keygen(place / "locked", passphrase="secret")
    keygen(place / "host_ed25519")
    keygen(place / "host_ecdsa", "ecdsa")
    keygen(place / "host_rsa", "rsa")
    return place


@pytest.fixture(scope="session")
def server(keys: Path) -> Iterator[Sshd]:
    """An sshd with an ed25519 key."""
    with sshd(keys, (keys / "host_ed25519",)) as running:
        yield running


@pytest.fixture(scope="session")
def rsa_server(keys: Path) -> Iterator[Sshd]:
    """An sshd with an RSA key."""
    with sshd(keys, (keys / "host_rsa",)) as running:
        yield running


@pytest.fixture
def controller(keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    """A home of its own, whose only key is ``id``, and no agent."""
    ssh = tmp_path / ".ssh"
    ssh.mkdir()
    known_hosts = ssh / "known_hosts"
    known_hosts.write_text("")
    config = ssh / "config"
    config.write_text(f"Host *\n  IdentityFile {keys / 'id'}\n  UserKnownHostsFile {known_hosts}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return Controller(tmp_path, config, known_hosts)


@pytest.fixture
def make(controller: Controller) -> Iterator[Make]:
    """Makes transports that are closed afterwards."""
    made: list[Transport] = []

    def of(kind: TransportKind) -> Transport:
        cluster = Cluster(nodes=(node(22),), master_addr="node1")
        made.append(make_transport(kind, cluster, controller.config))
        return made[-1]

    yield of
    for transport in made:
        transport.close()


def run(transport: Transport, to: Node, command: str, data: bytes = b"", seconds: float = LONG_S) -> list[bytes]:
    """All lines that a command prints when given ``data``."""
    deadline = time.monotonic() + seconds
    channel = transport.open(to, command, deadline)
    try:
        if data:
            channel.send(data, deadline)
        lines = []
        while (line := channel.read_line(deadline)) is not None:
            lines.append(line)
        return lines
    finally:
        channel.close()


def failure(transport: Transport, to: Node, seconds: float = 10.0) -> Any:
    """Why a host is not reached; the deadline, later on a busy machine, must hold."""
    started, stretch = time.monotonic(), crowd()
    seconds *= stretch
    with pytest.raises(AccessError) as caught:
        transport.open(to, "true", started + seconds).close()
    assert time.monotonic() - started < seconds + 4.0 * stretch
    return caught.value.failure
