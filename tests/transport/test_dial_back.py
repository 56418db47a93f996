"""Hosts that come to us: what is asked of them runs there, and nobody takes part who does not know the token."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_doctor import probe
from nccl_doctor.cluster import Cluster, Node
from nccl_doctor.errors import UsageError
from nccl_doctor.transport.base import AccessError
from nccl_doctor.transport.dial_back import DialBackTransport, make
from tests.patience import LONG_S

AGENT = Path(probe.__file__).parent / "dial_back.py"
TOKEN = "of-the-job"
NODE = Node(name="a", address="a.check", node_rank=0)


def come(port: int, token: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", AGENT.read_text(), "127.0.0.1", str(port), NODE.address]
    return subprocess.Popen(words, env={**os.environ, "NCDOCTOR_TOKEN": token, "NCDOCTOR_AGENT": "x"})


@pytest.fixture
def port() -> int:
    with socket.create_server(("", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def transport(port: int) -> Iterator[DialBackTransport]:
    made = DialBackTransport(TOKEN, port)
    yield made
    made.close()


def test_a_command_runs_there_again_and_again(transport: DialBackTransport, port: int) -> None:
    with come(port, TOKEN) as agent:
        for _ in range(2):  # one that is late is tried again, with a connection of its own
            deadline = time.monotonic() + LONG_S
            channel = transport.open(
                NODE, 'echo ready; read word; echo "$word ${NCDOCTOR_TOKEN-none} ${NCDOCTOR_AGENT-none}"', deadline
            )
            assert channel.read_line(deadline) == b"ready"
            channel.send(b"word\n", deadline)
            assert channel.read_line(deadline) == b"word none none"
            assert channel.read_line(deadline) is None
            channel.close()
        agent.kill()


def test_its_stdin_ends_with_the_channel(transport: DialBackTransport, port: int, tmp_path: Path) -> None:
    with come(port, TOKEN) as agent:
        deadline = time.monotonic() + LONG_S
        channel = transport.open(NODE, f"echo ready; cat; echo gone > {tmp_path}/end", deadline)
        assert channel.read_line(deadline) == b"ready"
        channel.close()
        while not (tmp_path / "end").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        agent.kill()


def test_who_does_not_know_the_token_takes_no_part(transport: DialBackTransport, port: int, tmp_path: Path) -> None:
    """Neither a pod that we don't know, nor a master that the pod does not know."""
    with come(port, "another") as agent:
        with pytest.raises(AccessError, match="came "):
            transport.open(NODE, f"touch {tmp_path}/ran", time.monotonic() + LONG_S)
        agent.kill()
    assert not (tmp_path / "ran").exists()


def test_who_does_not_come_is_said_to_be_missing(transport: DialBackTransport) -> None:
    with pytest.raises(AccessError) as caught:
        transport.open(NODE, "true", time.monotonic() + 0.2)
    assert caught.value.failure.kind == "pod-not-ready"
    assert caught.value.failure.detail.startswith("did not come to the meeting point")


def test_without_the_jobs_variables_it_is_refused() -> None:
    with pytest.raises(UsageError, match="is for the Job that check --render prints"):
        make("dial-back", None, Cluster(nodes=(NODE,), master_addr=NODE.address))


def test_one_that_comes_as_we_leave_is_let_go(port: int) -> None:
    """Its greeting is read by a thread of its own, which may be late."""
    made = DialBackTransport(TOKEN, port)
    with socket.create_connection(("127.0.0.1", port), LONG_S) as late:
        late.settimeout(LONG_S)
        late.sendall(b"a.check ")  # half a greeting
        deadline = time.monotonic() + LONG_S
        while not any(thread.name == "greeting" for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        made.close()
        late.sendall(b"nonce\n")
        assert late.recv(1) == b""
