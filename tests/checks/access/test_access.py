"""The words and the commands of the access diagnoses."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.finding import Diagnosis
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.text.hostlist import fold
from tests.checks.snapshots import healthy, load, overlaid, patched

HERE = Path(__file__).parent


def diagnoses(fixture: str) -> list[Diagnosis]:
    name = fixture.partition("/")[0].replace("_", "-")
    return [each for each in judge(load(HERE / f"{fixture}.json"), "check").diagnoses if each.name == name]


@pytest.mark.parametrize(
    ("fixture", "messages"),
    [
        ("ssh_unreachable/fires", ["node3 (10.0.0.3:22) did not answer a TCP connection attempt within 10 s."]),
        (
            "ssh_unreachable/fires-refused",
            [
                "node[2-3] refused the TCP connection: no sshd is listening on the SSH port, or a firewall rejects the connections."
            ],
        ),
        (
            "ssh_unreachable/fires-slow-login",
            ["node3 (10.0.0.3:22) answered but did not finish the login within 30 s."],
        ),
        (
            "ssh_unreachable/fires-jump-host",
            ["The jump host bastion (192.0.2.1:22) for node[2-3] answered, but is not an SSH server."],
        ),
        (
            "ssh_host_key_changed/fires",
            [
                "node2 (10.0.0.2:22) presented a different host key from the one in /home/ann/.ssh/known_hosts:7.",
                "node3 (10.0.0.3:22) presented a different host key from the one in /home/ann/.ssh/known_hosts:8.",
            ],
        ),
        ("python_missing/fires", ['node[2-3]: the interpreter "/opt/train/bin/python" does not exist.']),
        (
            "python_missing/fires-environment",
            [
                "/opt/train/bin/python on node2 fails to start in the environment of a training job: No module named 'encodings'."
            ],
        ),
        ("probe_failed/fires", ["node2: the probe returned no data (no answer in time)."]),
    ],
)
def test_messages(fixture: str, messages: list[str]) -> None:
    assert [each.message for each in diagnoses(fixture)] == messages


@pytest.mark.parametrize(
    ("fixture", "commands"),
    [
        ("ssh_unreachable/fires", []),
        (
            "ssh_auth_failed/fires",
            [
                "ssh-copy-id -p 22 -i /home/ann/.ssh/id_ed25519 ubuntu@node2",
                "ssh-copy-id -p 22 -i /home/ann/.ssh/id_ed25519 ubuntu@node3",
            ],
        ),
        ("ssh_auth_failed/fires-no-password", []),
        ("ssh_auth_failed/fires-no-key", []),
        ("ssh_auth_failed/fires-agent-key", []),
        ("ssh_auth_failed/fires-second-factor", []),
        ("ssh_auth_failed/fires-no-keys", []),
        ("ssh_auth_failed/fires-too-many-keys", []),
        ("ssh_auth_failed/fires-exposed", ["chmod 600 /home/ann/.ssh/id_ed25519"]),
        (
            "ssh_auth_failed/fires-no-public-half",
            [
                "ssh-keygen -y -f /home/ann/.ssh/cloud.pem >> /home/ann/.ssh/cloud.pem.pub",
                "ssh-copy-id -p 22 -i /home/ann/.ssh/cloud.pem ubuntu@node2",
            ],
        ),
        ("ssh_auth_failed/fires-passphrase", ['eval "$(ssh-agent -s)"', "ssh-add /home/ann/.ssh/id_ed25519"]),
        (
            "ssh_host_key_unknown/fires",
            [
                "printf '%s\\n' '10.0.0.2 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB' '10.0.0.3 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIC' >> /home/ann/.ssh/known_hosts"
            ],
        ),
        (
            "ssh_host_key_unknown/fires-first-use",
            [
                "install -d -m 700 '/home/ann b/.ssh'",
                "printf '%s\\n' '[10.0.0.2]:2222 ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAgAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=' >> '/home/ann b/.ssh/known_hosts'",
            ],
        ),
        (
            "ssh_host_key_unknown/fires-behind-a-jump-host",
            [
                "printf '%s\\n' '10.0.0.2 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB' >> /home/ann/.ssh/known_hosts"
            ],
        ),
        ("ssh_host_key_unknown/fires-behind-a-jump-host-by-openssh", []),
        ("ssh_host_key_changed/fires", []),
        ("ssh_host_key_changed/fires-revoked", []),
        ("python_missing/fires", []),
        ("probe_failed/fires", []),
    ],
)
def test_commands(fixture: str, commands: list[str]) -> None:
    found = [command for each in diagnoses(fixture) for command in each.fix.commands]
    assert [command.command for command in found] == commands
    assert {command.host for command in found} <= {None}
    assert all(shlex.split(command.command) for command in found)


@pytest.mark.parametrize(
    ("fixture", "methods", "says"),
    [
        ("fires-no-key", ["publickey"], "Make a key with ssh-keygen"),
        (
            "fires-agent-key",
            ["publickey"],
            "(ssh: user, identity_file in the hosts file). The host accepts no password,",
        ),
        ("fires-agent-key", ["publickey", "password"], "(ssh: user, identity_file in the hosts file). Somebody with"),
    ],
)
def test_a_key_is_made_only_if_none_was_offered(fixture: str, methods: list[str], says: str) -> None:
    patch = json.loads((HERE / f"ssh_auth_failed/{fixture}.json").read_text())
    patch["hosts"]["node2"]["failure"]["facts"]["methods"] = methods
    (found,) = judge(patched(patch), "check").diagnoses
    assert says in found.fix.summary
    assert found.fix.commands == ()


EXPIRED = {"out_of_time": ["the certificate /home/ann/.ssh/id_ed25519-cert.pub expired on 2026-01-01 00:00 UTC"]}
EARLY = {"early": ["the certificate /home/ann/.ssh/id_ed25519-cert.pub is not valid before 2027-01-01 00:00 UTC"]}


@pytest.mark.parametrize(
    ("fixture", "certificate", "says", "command"),
    [
        ("fires-exposed", EXPIRED, "Make the key private", "chmod 600"),
        ("fires-passphrase", EXPIRED, "Load the key", "ssh-add"),
        ("fires-passphrase", EARLY, "Load the key", "ssh-add"),
        ("fires", EXPIRED, "Have the certificate renewed", ""),
        ("fires", EARLY, "this machine's clock", ""),
        ("fires-no-password", EXPIRED, "Have the certificate renewed", ""),
        ("fires-no-password", EARLY, "this machine's clock", ""),
    ],
)
def test_a_certificate_out_of_time_has_no_other_key_installed(
    fixture: str, certificate: dict[str, list[str]], says: str, command: str
) -> None:
    document = load(HERE / f"ssh_auth_failed/{fixture}.json").model_dump(mode="json", by_alias=True)
    for host in document["hosts"]:
        if host["failure"]:
            host["failure"]["facts"] |= certificate
    (found,) = judge(Snapshot.model_validate(document), "check").diagnoses
    assert says in found.fix.summary
    assert ("renewed" in found.fix.summary) is (says == "Have the certificate renewed")
    assert [each.command for each in found.fix.commands if each.command.startswith(command)] or not command
    assert bool(found.fix.commands) is bool(command)


def test_a_slow_login_is_no_firewalls_work() -> None:
    (found,) = diagnoses("ssh_unreachable/fires-slow-login")
    assert "firewall" not in found.fix.summary
    assert "try again with --connect-timeout 60" in found.fix.summary


def test_facts_keep_what_differs_by_host() -> None:
    (found,) = diagnoses("ssh_host_key_unknown/fires")
    assert found.facts["key_type"] == "ssh-ed25519"
    assert found.facts["by_host"]["node3"]["address"] == "10.0.0.3"
    assert found.evidence[0].startswith("node2: ssh-ed25519 SHA256:")  # type: ignore[union-attr]  # no log line
    assert "(on its console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub)" in found.fix.summary


def test_one_finding_for_hosts_that_fail_alike() -> None:
    (found,) = diagnoses("ssh_unreachable/fires-refused")
    assert found.hosts == ("node2", "node3")
    assert found.evidence == ("connect: Connection refused",)


@pytest.mark.parametrize(
    ("name", "commands"), [("train", ["podman start train"]), ("6.6.6.6 a.example", []), ("-a", [])]
)
def test_only_what_can_be_a_containers_name_goes_into_a_command(name: str, commands: list[str]) -> None:
    """A snapshot that somebody sent may hold any text there."""
    facts = {"problem": "stopped", "runtime": "podman", "name": name, "late": False}
    failure = {"kind": "container-unreachable", "detail": "does not run", "facts": facts, "remedy": "Start it."}
    snapshot = patched({"hosts": {"node2": {"facts": None, "failure": failure}}})
    found = [each for each in judge(snapshot, "check").diagnoses if each.name == "container-unreachable"]
    assert [[command.command for command in each.fix.commands] for each in found] == [commands]


@pytest.mark.parametrize("lacking", [[], ["node2"], ["node1", "node2"]])
def test_a_name_that_resolves_nowhere_is_one_error(lacking: list[str]) -> None:
    """Of a host that could not be logged in to for that: a typing error, mostly."""
    answer: dict[str, Any] = {"addresses": [], "error": "Name or service not known"}
    target = {"target": "nosuch", "address": "nosuch", "port": 22, "user": "ann", "reason": "name-unresolved"}
    detail = "has a name that does not resolve on this machine"
    document = overlaid(
        healthy(),
        {
            "hosts": {
                "node3": {
                    "node": {"address": "nosuch"},
                    "facts": None,
                    "failure": {"kind": "ssh-unreachable", "detail": detail, "facts": target},
                }
            }
            | {name: {"facts": {"resolution": {"nosuch": answer}}} for name in lacking}
        },
    )
    document["cluster"]["nodes"][2]["address"] = "nosuch"
    report = judge(Snapshot.model_validate(document), "check")
    (found,) = report.diagnoses
    nor = f", nor on {fold(lacking)}" if lacking else ""
    assert (found.name, found.hosts, found.message) == (
        "ssh-unreachable",
        ("node3",),
        f"node3 (nosuch:22) {detail}{nor}.",
    )
    for reason, names in (
        ("refused", {"ssh-unreachable", "hostname-unresolvable"}),
        ("name-unresolved", {"ssh-unreachable"}),
    ):
        target["reason"] = reason
        document["hosts"][2]["failure"]["facts"] = target
        report = judge(Snapshot.model_validate(document), "check")
        assert {each.name for each in report.diagnoses} == (names if lacking else {"ssh-unreachable"})


def test_zeros_that_a_range_writes_in_front_are_spoken_of_where_no_such_name_resolves() -> None:
    def summary(address: str) -> str:
        document = healthy()
        document["cluster"]["nodes"][2]["address"] = document["hosts"][2]["node"]["address"] = address
        facts = {"target": address, "address": address, "port": 22, "user": "ann", "reason": "name-unresolved"}
        failure = {"kind": "ssh-unreachable", "detail": "does not resolve", "facts": facts}
        document["hosts"][2] |= {"facts": None, "failure": failure}
        (found,) = judge(Snapshot.model_validate(document), "check").diagnoses
        return found.fix.summary

    assert summary("gpu-03").endswith(" Leading zeros matter: if the hosts are called gpu-3, write them that way.")
    assert "Zeros" not in summary("gpu-30")
    assert "Zeros" not in summary("gpu0")
