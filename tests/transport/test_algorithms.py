"""Which algorithms are offered where no SSH configuration says: those of OpenSSH's client, beside the real one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nccl_doctor.model.engines.base import TransportKind
from nccl_doctor.transport.ssh import config
from nccl_doctor.transport.ssh.settings import OPENSSH_ALGORITHMS
from tests.patience import LONG_S
from tests.transport.conftest import Make, failure, run
from tests.transport.servers import LOOPBACK, Controller, node, sshd

OLD = [
    ("Ciphers aes128-cbc", "cipher", "aes128-cbc"),
    ("Ciphers 3des-cbc,aes256-cbc", "cipher", "3des-cbc, aes256-cbc"),
    ("Ciphers aes128-ctr\nMACs hmac-md5", "MAC", "hmac-md5"),
    ("Ciphers aes128-ctr\nMACs hmac-sha1-96,hmac-md5-96", "MAC", "hmac-sha1-96, hmac-md5-96"),
    ("KexAlgorithms diffie-hellman-group14-sha1", "key exchange", "diffie-hellman-group14-sha1"),
    ("HostKeyAlgorithms ssh-rsa", "host key algorithm", "ssh-rsa"),
]
SORTS = {
    "ciphers": ("cipher", "ciphers"),
    "digests": ("mac", "macs"),
    "kex": ("kex", "kexalgorithms"),
    "key_types": ("sig", "hostkeyalgorithms"),
    "pubkeys": ("sig", "pubkeyacceptedalgorithms"),
}
"""Of ssh -Q and of ssh -G, by our name."""


@pytest.mark.parametrize("kind", ["paramiko", "openssh", "auto"])
@pytest.mark.parametrize("case", OLD)
def test_a_server_that_has_only_what_ssh_gave_up_is_refused_in_one_sentence(
    case: tuple[str, str, str], kind: TransportKind, make: Make, controller: Controller, keys: Path
) -> None:
    lines, sort, offer = case
    with sshd(keys, (keys / "host_rsa",), lines) as old:
        words = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-p", str(old.port), LOOPBACK, "true"]
        real = subprocess.run(
            ["ssh", "-F", str(controller.config), *words], capture_output=True, text=True, timeout=LONG_S, check=False
        )
        assert "Unable to negotiate" in real.stderr
        if kind != "openssh":
            controller.config.unlink()  # else ssh is asked what to offer
        found = failure(make(kind), node(old.port))
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "no-algorithm")
    assert found.detail == f"answered but has no {sort} that this machine accepts: it offers only {offer}"


def test_what_ssh_is_told_to_take_again_is_taken(make: Make, controller: Controller, keys: Path) -> None:
    controller.configure("Host *\n  Ciphers +aes128-cbc\n  MACs +hmac-md5\n")
    with sshd(keys, (keys / "host_rsa",), "Ciphers aes128-cbc\nMACs hmac-md5") as old:
        controller.know(old.known())
        assert run(make("paramiko"), node(old.port), "echo in") == [b"in"]


@pytest.mark.parametrize("sort", SORTS)
def test_nothing_is_offered_that_the_real_client_knows_and_does_not(sort: str) -> None:
    query, option = SORTS[sort]
    known = subprocess.run(["ssh", "-Q", query], capture_output=True, text=True, check=True).stdout.split()
    offered = config.compiled_in()[option][0].split(",")
    ours = [name for name in OPENSSH_ALGORITHMS[sort] if name in known]
    assert ours
    assert set(ours) <= set(offered)
