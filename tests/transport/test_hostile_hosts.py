"""Hosts that say more than anybody bears, before the login and after it, over every way of reaching them."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paramiko
import pytest

from nccl_doctor.model.cluster import Node
from nccl_doctor.model.engines.base import TransportKind
from nccl_doctor.snapshot.access import SshAuthFailed, SshUnreachable
from nccl_doctor.transport.base import AccessError, FloodError, LineBuffer, Transport
from nccl_doctor.transport.containers.transport import InsideTransport
from nccl_doctor.transport.kube.pods import KubeTransport
from nccl_doctor.transport.process import LocalTransport
from nccl_doctor.transport.slurm.transport import SlurmTransport
from nccl_doctor.transport.ssh import session
from tests.patience import LONG_S
from tests.transport.conftest import Make, failure
from tests.transport.servers import LOOPBACK, Controller, doors, for_ever, misbehaving, node, public, sshd

pytestmark = pytest.mark.slow

MIB = 1 << 20
FLOODS = {"lines": "exec yes", "empty lines": "exec yes ''", "one line": "exec tr '\\0' y </dev/zero"}


def fails(transport: Transport, to: Node) -> Any:
    """Why a host that never comes to our command is not reached, with what that took of memory."""
    tracemalloc.start()
    try:
        with pytest.raises(AccessError) as caught:
            transport.open(to, "true", time.monotonic() + LONG_S).close()
        assert tracemalloc.get_traced_memory()[1] < 80 * MIB
    finally:
        tracemalloc.stop()
    return caught.value.failure


def says_so(found: Any) -> bool:
    assert max(map(len, (found.detail, *found.evidence))) < 2000
    said = found.kind, found.facts.stage, found.detail
    return said == ("probe-failed", "login", "its login printed more than 4 MiB and did not come to our command")


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_login_that_prints_without_end(flood: str, make: Make, controller: Controller, keys: Path) -> None:
    with sshd(keys, (keys / "host_ed25519",), f"ForceCommand {flood}") as server:
        controller.know(server.known())
        assert says_so(fails(make("openssh"), node(server.port)))


ENGINES: dict[str, tuple[str, Callable[[], Transport], dict[str, Any]]] = {
    "slurm": ("srun", SlurmTransport, {"slurm": {"job": "7"}}),
    "kube": ("kubectl", KubeTransport, {"kube": {"pod": "p", "namespace": "n", "container": "c"}}),
    "inside": ("podman", lambda: InsideTransport(LocalTransport()), {"inside": {"runtime": "podman", "name": "c"}}),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_that_prints_without_end(
    engine: str, flood: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, transport, access = ENGINES[engine]
    (tmp_path / program).write_text(f"#!/bin/sh\n{flood}\n")
    (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    host = Node.model_validate({"name": "n", "address": "n", "node_rank": 0, "access": access})
    there = transport()
    assert says_so(fails(there, host))
    there.close()


def test_what_comes_while_nobody_reads_is_bounded() -> None:
    buffer = LineBuffer(most=10)
    for _ in range(1000):
        buffer.feed(b"y\n")
    with pytest.raises(FloodError, match="more than 10 bytes"):
        buffer.pop()
    with pytest.raises(FloodError):
        buffer.flush()


KINDS: tuple[TransportKind, ...] = ("paramiko", "openssh")
METHODS = {
    "long": ",".join(f"{number}{'m' * 4200}" for number in range(40)),
    "many": ",".join(f"m{number}" for number in range(20_000)),
    "no words": "\x1b[2J,,\n",
}


@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_methods_of_a_login_without_bound(
    kind: TransportKind, methods: str, make: Make, controller: Controller, keys: Path
) -> None:
    with doors(keys / "host_ed25519", methods) as port:
        controller.know(f"[{LOOPBACK}]:{port} {public(keys / 'host_ed25519')}\n")
        found = failure(make(kind), node(port), LONG_S)
    assert isinstance(found, SshAuthFailed)
    assert len(found.facts.methods) <= 64
    assert sum(map(len, (found.detail, *found.evidence, *found.facts.methods))) < 300_000


@pytest.mark.parametrize("banner", ["b" * 200_000, "\n" * 200_000, "b\r\n" * 60_000], ids=["line", "empty", "lines"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_banner_without_bound(
    kind: TransportKind, banner: str, make: Make, controller: Controller, keys: Path
) -> None:
    with doors(keys / "host_ed25519", banner=banner) as port:
        controller.know(f"[{LOOPBACK}]:{port} {public(keys / 'host_ed25519')}\n")
        found = failure(make(kind), node(port), LONG_S)
    assert isinstance(found, SshAuthFailed)
    assert max(map(len, (found.detail, *found.evidence))) <= 4096


GREETINGS = {
    "a version without end": (b"SSH-2.0-", b"x"),
    "lines before the version": (b"", b"welcome\r\n"),
    "no line at all": (b"", b"x"),
    "a packet of 2 GiB": (b"SSH-2.0-x\r\n" + struct.pack(">IB", 0x7FFFFFF4, 4), b"x"),
}


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_greeting_without_end(kind: TransportKind, greeting: tuple[bytes, bytes], make: Make) -> None:
    """The sockets' own buffers take some MiB."""
    answer, sent = for_ever(*greeting)
    with misbehaving(answer) as port:
        found = failure(make(kind), node(port), LONG_S)
    assert isinstance(found, SshUnreachable)
    assert found.facts.reason not in ("timed-out", "stalled", "no-banner"), "it is left at once"
    assert max(map(len, (found.detail, *found.evidence))) <= 4096
    assert sum(sent) < 64 * MIB


def test_a_server_that_passes_over_the_window_is_left() -> None:
    """paramiko counts the window, and keeps whatever comes."""
    channel = paramiko.Channel(1)
    channel._set_window(1000, 1000)  # type: ignore[attr-defined]
    data = paramiko.Message()
    data.add_string(b"x" * 1000)

    def feed(times: int) -> None:
        feeding = session.SshSession._channel_handler_table[paramiko.common.MSG_CHANNEL_DATA]
        for _ in range(times):
            feeding(channel, paramiko.Message(data.asbytes()))

    feed(1)
    with pytest.raises(paramiko.SSHException, match="more data than the channel's window"):
        feed(2 * session.MAX_PACKET // 1000)
