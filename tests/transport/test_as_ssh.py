"""The same verdict as ``ssh``, and the same key: on real sshds of a lab, for many configurations at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.each import each
from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.transport.ssh_cases import CASES

pytestmark = pytest.mark.lab

KEYS = "/root/diff/keys"
MAKE_KEYS = """
set -e
mkdir -p {K} && cd {K}
key() {{ ssh-keygen -q -N "$3" -C "$1" -t "$2" -f "$1"; }}
for name in id id2 other ca signed public stale open certified many1 many2 many3 many4 many5 many6; do key $name ed25519 ''; done
for name in host_rsa other_rsa; do ssh-keygen -q -N '' -t rsa -b 2048 -f $name; done
ssh-keygen -q -N '' -t rsa -b 2048 -m PEM -f pem
key host ed25519 ''; key host_ecdsa ecdsa ''; key ecdsa ecdsa ''; key locked ed25519 secret
cp signed signed_plain; cp signed.pub signed_plain.pub
ssh-keygen -q -s ca -I user -n root signed.pub
ssh-keygen -q -s ca -I host -h -n node1 certified.pub
cp stale.pub hidden.pub; cp other.pub stale.pub; chmod 644 open
agent() {{ ssh-agent -a {K}/agent-$1 >agent.env; . ./agent.env >/dev/null; shift; for key; do ssh-add -q $key </dev/null; done; }}
agent id id
agent many many1 many2 many3 many4 many5 many6 public
agent signed signed_plain
agent cert signed; ssh-add -q -d signed.pub 2>/dev/null || true
printf '#!/bin/sh\\necho secret\\n' >askpass; chmod 700 askpass
export SSH_ASKPASS={K}/askpass SSH_ASKPASS_REQUIRE=force
agent locked locked
"""
AUTHORIZED = ("id", "id2", "public", "hidden", "open", "locked", "pem", "ecdsa")
PLAIN = "Port 22\nPort 2201\nExposeAuthInfo yes\nTrustedUserCAKeys /etc/ssh/user_ca.pub\n"


@pytest.fixture(scope="module")
def answers() -> Any:
    """What ssh and we said of each case."""
    with Lab.up(2) as lab:
        variables = _prepare(lab)
        done = lab.controller.run(
            [sys.executable, "-m", "tests.transport.compare_with_ssh"],
            input=json.dumps(variables),
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        return {answer["name"]: answer for answer in json.loads(done.stdout)}


def _prepare(lab: Lab) -> dict[str, str]:
    """Keys, agents and servers; the variables of the cases' texts."""
    controller, (node1, node2) = lab.controller, lab.hosts
    controller.run(MAKE_KEYS.format(K=KEYS))
    public = {name: controller.read(f"{KEYS}/{name}.pub") for name in (*AUTHORIZED, "ca", "other", "certified")}
    authorized = "".join(public[name] for name in AUTHORIZED)
    default = controller.run(["ssh-keygen", "-y", "-f", "/root/.ssh/id_ed25519"]).stdout
    for node in (node1, node2):
        node.write("/root/.ssh/authorized_keys", authorized + default * (node is node2), 0o600)
        node.write("/etc/ssh/user_ca.pub", public["ca"])
        more = [f"HostKey /etc/ssh/{name}\n" for name in ("host", "host_ecdsa", "host_rsa")] if node is node1 else []
        config = node.read("/etc/ssh/sshd_config")
        if more:
            config = config.replace("HostKey /etc/ssh/ssh_host_ed25519_key\n", "".join(more))
        for name in ("host", "host_ecdsa", "host_rsa", "certified", "certified.pub", "certified-cert.pub"):
            node.write(f"/etc/ssh/{name}", controller.read(f"{KEYS}/{name}"), 0o600)
        node.write("/etc/ssh/sshd_config", PLAIN + config)
        node.run("kill -HUP $(cat /run/sshd.pid)")
        _await_port(node, 2201)
    certified = (
        "Port 2202\nPidFile none\nHostKey /etc/ssh/certified\nHostCertificate /etc/ssh/certified-cert.pub\n"
        "ExposeAuthInfo yes\nUsePAM no\n"
    )
    node1.write("/etc/ssh/certified_config", certified)
    node1.run('exec "$(command -v sshd)" -f /etc/ssh/certified_config')
    _await_port(node1, 2202)

    def known(file: str) -> str:
        return " ".join(controller.read(file).split()[:2])

    inner = " ".join(node2.run(["ssh-keygen", "-y", "-f", "/etc/ssh/ssh_host_ed25519_key"]).stdout.split()[:2])
    variables = {
        name: known(f"{KEYS}/{name}.pub")
        for name in ("host", "host_ecdsa", "host_rsa", "other", "other_rsa", "ca", "certified")
    }
    return variables | {"inner": inner, "blob": variables["host"].split()[1], "address": node1.address}


def _await_port(node: LabHost, wanted: int) -> None:
    node.wait_until(lambda: any(port == wanted for _, port in node.listeners()), f"sshd on port {wanted}")


def test_there_are_enough_cases() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 40


def test_the_same_verdict_and_key(answers: dict[str, Any]) -> None:
    """One test, so that one worker prepares it; mostly it is our own path that decides, not the program."""

    @each([case.name for case in CASES], str)
    def same(name: str) -> None:
        answer = answers[name]
        assert (answer["ssh"], answer["ours"]) == (answer["wanted"], answer["wanted"]), answer["words"]
        assert answer["same_key"], answer["words"]
        assert answer["unwritten"], "known_hosts is never written"

    same()
    assert sum(not answer["by_program"] for answer in answers.values()) > len(CASES) / 2
