"""Words of ssh that the servers of these tests don't bring about."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nccl_doctor.model.engines.ssh import SshOptions
from nccl_doctor.snapshot.access import UnreachableFacts
from nccl_doctor.transport.ssh.config import ConfigError, ConfigValues, SshConfigs, ask
from nccl_doctor.transport.ssh.failures import SshDestination
from nccl_doctor.transport.ssh.openssh import FailedSsh, classify
from nccl_doctor.transport.ssh.settings import resolve
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
    host = resolve("n", SshOptions(), time.monotonic() + LONG_S, config)
    found = classify(FailedSsh(host, log, "", 2.0, late=False)).failure
    assert (found.kind, getattr(found.facts, "reason", None)) == (kind, reason)


HOP = 'debug1: Remote protocol version 2.0\nAuthenticated to j ([10.0.0.1]:22) using "publickey".\n'
DROPPED = "kex_exchange_identification: Connection closed by remote host\nConnection closed by UNKNOWN port 65535"
NOT_IN = "debug1: Executing proxy command: exec ssh -W j2:22 j\ndebug1: Remote protocol version 2.0\nConnection closed"


@pytest.mark.parametrize(
    ("log", "hops", "late", "hop", "reason"),
    [
        (DROPPED, HOP, False, None, "dropped"),
        (DROPPED, HOP + "Killed by signal 1.", False, None, "dropped"),
        ("Connection timed out during banner exchange", HOP, False, None, "no-banner"),
        ("", HOP, True, None, "no-banner"),
        (DROPPED, HOP + NOT_IN, False, "j", "handshake"),  # the first of two let us in, the second did not
        (DROPPED, "debug1: Remote protocol version 2.0\nConnection closed", False, "j", "handshake"),
    ],
)
def test_behind_a_jump_host_that_let_us_in_it_is_the_host(
    log: str, hops: str, late: bool, hop: str | None, reason: str, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text("Host n\n  ProxyJump j\n")
    host = resolve("n", SshOptions(), time.monotonic() + LONG_S, config)
    found = classify(FailedSsh(host, log, hops, 2.0, late=late), SshDestination("j", "j", 22, "root", hop=True)).failure
    assert isinstance(found.facts, UnreachableFacts)
    assert (found.facts.jump_host, found.facts.reason) == (hop, reason)


NAMES = ("n1", "n2", "N3", "10.0.0.4", "n5.example")


@pytest.mark.parametrize(
    ("text", "more", "questions"),
    [
        ("User bob\nHost *\n  Port 2200\n", "", 2),  # of the capital letter's name by itself
        ("# Host n2\nMatch all\nUser=bob\nInclude {}/more*\n", "SendEnv LANG\n", 2),
        ("Include {}/more*\n", "Host n2 n5*\n  Port 1\n", 5),
        ("Include {}/more*\n", "Match host n2\n  User eve\n", 5),
        ("HostName %h.example\n", "", 5),
        ("Host *\n  ProxyJump n2\n", "", 5),
        ("Host *,!n2\n  Port 1\n", "", 5),
        ('"Host" n2\n  Port 1\n', "", 5),
        ("UserKnownHostsFile ~/%n\n", "", 5),
    ],
)
def test_a_configuration_that_tells_no_host_from_another_is_asked_about_once(
    text: str, more: str, questions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, count = tmp_path / "config", itertools.count()
    config.write_text(text.format(tmp_path))
    (tmp_path / "more.conf").write_text(more)

    def answer(name: str, ask: Callable[[], ConfigValues]) -> ConfigValues | str:
        try:
            return ask()
        except ConfigError as error:  # a jump host through itself
            return str(error).replace(name, "")

    arguments, deadline = ["-F", str(config), "-l", "ann"], time.monotonic() + LONG_S
    wanted = [answer(name, lambda name=name: ask(arguments, name, deadline)) for name in NAMES]  # type: ignore[misc]
    monkeypatch.setattr("nccl_doctor.transport.ssh.config.ask", lambda *words: next(count) < 9 and ask(*words))
    answers = SshConfigs(config)
    found = [answer(name, lambda name=name: answers.of(arguments[2:], name, deadline)) for name in NAMES]  # type: ignore[misc]
    assert found == wanted
    assert next(count) == questions
