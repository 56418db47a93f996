"""Words of ssh that the servers of these tests don't bring about."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nccl_doctor.transport import resolve as resolving
from nccl_doctor.transport.openssh_log import Attempt, classify
from nccl_doctor.transport.ssh_options import SshOptions
from tests.patience import LONG_S


@pytest.mark.parametrize(
    ("log", "kind", "reason"),
    [
        ("ssh: connect to host n port 22: No route to host", "ssh-unreachable", "no-route"),
        ("ssh: connect to host n port 22: Network is unreachable", "ssh-unreachable", "unreachable"),
        ("ssh: connect to host n port 22: Connection timed out", "ssh-unreachable", "timed-out"),
        ("ssh: connect to host n port 22: Host is down", "ssh-unreachable", "no-route"),
        (
            "ssh: Could not resolve hostname n: Temporary failure in name resolution",
            "ssh-unreachable",
            "name-unresolved",
        ),
        ("ssh: something nobody ever saw", "ssh-unreachable", "failed"),
        ("", "ssh-unreachable", "failed"),
        (
            "debug1: Connection established.\nkex_exchange_identification: read: Connection reset by peer",
            "ssh-unreachable",
            "dropped",
        ),
        (
            "debug1: Remote protocol version 2.0\nUnable to negotiate with n: no matching key exchange method found",
            "ssh-unreachable",
            "handshake",
        ),
        (
            "debug1: Authentications that can continue: publickey\nDisconnected: Too many authentication failures",
            "ssh-auth-failed",
            None,
        ),
        (
            "debug1: Remote protocol version 2.0\ndebug1: Server accepts key: /k RSA x\nConnection closed by n port 22",
            "ssh-auth-failed",
            None,
        ),
        ("No ED25519 host key is known for n.\nHost key verification failed.", "ssh-host-key-unknown", None),
    ],
)
def test_classification(log: str, kind: str, reason: str | None, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("")
    host = resolving.resolve("n", SshOptions(), time.monotonic() + LONG_S, config)
    found = classify(Attempt(host, log, "", 2.0, late=False)).failure
    assert (found.kind, getattr(found.facts, "reason", None)) == (kind, reason)
