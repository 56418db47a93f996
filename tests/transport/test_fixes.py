"""The commands of the access diagnoses, pasted: the diagnosis goes away."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nccl_doctor.checks.access import ssh_host_key_unknown
from nccl_doctor.checks.view import Derived, View
from nccl_doctor.model.base import skipped
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.engines.base import TransportKind
from nccl_doctor.model.finding import Finding
from nccl_doctor.snapshot.access import AccessFailure
from nccl_doctor.snapshot.hosts import Host, Snapshot
from tests.transport.conftest import Make, failure, run
from tests.transport.servers import LOOPBACK, Controller, Sshd, node


def paste(host: Node, found: AccessFailure) -> list[str]:
    """Runs what the check says for a host that failed."""
    cluster = Cluster(nodes=(host,), master_addr="node1")
    snapshot = Snapshot(
        schema=1,
        version="0",
        taken_at="2026-01-01T00:00:00+00:00",
        cluster=cluster,
        hosts=(Host(node=host, failure=found),),
        mesh=skipped("no"),
        smoke=skipped("no"),
    )
    (finding,) = ssh_host_key_unknown.ssh_host_key_unknown(View(Derived(snapshot), ()))
    assert isinstance(finding, Finding)
    lines = [command.command for command in finding.fix.commands]
    subprocess.run(["sh", "-ec", "\n".join(lines)], check=True, capture_output=True)
    return lines


KINDS: tuple[TransportKind, ...] = ("paramiko", "openssh")


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_host_key(make: Make, server: Sshd, controller: Controller, kind: TransportKind) -> None:
    host = node(server.port)
    lines = paste(host, failure(make(kind), host))
    if kind == "openssh":
        assert lines == []  # the ssh program alone saw the key
        return
    (line,) = lines
    assert line.startswith(f"printf '%s\\n' '[{LOOPBACK}]:{server.port} ssh-ed25519 ")
    assert run(make(kind), host, "echo in") == [b"in"]


def test_unknown_host_key_of_an_rsa_host_on_first_use(
    make: Make, controller: Controller, tmp_path: Path, rsa_server: Sshd
) -> None:
    controller.config.write_text(
        controller.config.read_text().replace(f"UserKnownHostsFile {controller.known_hosts}", "")
        + f"  HostKeyAlias twin\n  UserKnownHostsFile {tmp_path}/first-use/known_hosts\n"
    )
    host = node(rsa_server.port)
    lines = paste(host, failure(make("paramiko"), host))
    assert lines[0] == f"install -d -m 700 {tmp_path}/first-use"
    assert lines[1].startswith("printf '%s\\n' 'twin ssh-rsa ")
    assert run(make("paramiko"), host, "echo in") == [b"in"]
