"""A suggestion makes the diagnosis go away, put where it says: the hosts file's env."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.finding import Outcome, export
from nccl_doctor.nccl.cluster_nccl import cluster_nccl
from nccl_doctor.snapshot.hosts import Snapshot
from tests.checks.snapshots import load, patched

FIXTURES = Path(__file__).parents[1] / "checks" / "interfaces"
SETTABLE = (
    "ifname_no_match",
    "ifname_wrong_interface",
    "ifname_needed",
    "ifname_ambiguous",
    "gloo_ifname_invalid",
    "hostname_loopback",
    "shared_subnet_nics",
)
UNSETTABLE = {"fires-no-ipv6"}
"""What no interface's name mends."""
CASES = [
    path for name in SETTABLE for path in sorted((FIXTURES / name).glob("fires*.json")) if path.stem not in UNSETTABLE
]


def with_env(snapshot: Snapshot, env: dict[str, dict[str, str]]) -> Snapshot:
    document: dict[str, Any] = json.loads(snapshot.model_dump_json(by_alias=True))
    for host in document["hosts"]:
        host["node"]["env"].update(env.get(host["node"]["name"], {}))
        # libnccl would be asked again
        host["facts"]["libnccl"] = None
    return Snapshot.model_validate(document)


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_is_printed_makes_it_go_away(path: Path) -> None:
    name = path.parent.name.replace("_", "-")
    snapshot = load(path)
    finding = next(one for one in judge(snapshot, "check", lambda check: check.name == name).diagnoses)
    assert finding.fix.commands
    env: dict[str, dict[str, str]] = {}
    for command in finding.fix.commands:
        assert command.host is not None
        word, setting = shlex.split(command.command)
        assert word == "export"
        variable, _, value = setting.partition("=")
        env.setdefault(command.host, {})[variable] = value
    after = judge(with_env(snapshot, env), "check", lambda check: check.category == "interfaces")
    assert [diagnosis.name for diagnosis in after.diagnoses if diagnosis.name == name] == []
    outcome = next(result.outcome for result in after.checks if result.name == name)
    assert outcome is Outcome.PASS


def nic(
    name: str, address: str, *, speed: int = 10000, kind: str = "physical"
) -> tuple[dict[str, Any], dict[str, Any]]:
    flags = ["up", "running"]
    return (
        {"name": name, "index": 2, "flags": flags, "mtu": 1500, "speed_mbps": speed, "kind": kind},
        {"interface": name, "family": "inet", "address": address, "netmask": "255.255.255.0"},
    )


def host(*nics: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    lo = {
        "name": "lo",
        "index": 1,
        "flags": ["up", "loopback", "running"],
        "mtu": 65536,
        "speed_mbps": None,
        "kind": "loopback",
    }
    own = {"interface": "lo", "family": "inet", "address": "127.0.0.1", "netmask": "255.0.0.0"}
    routes = [
        {"family": "inet", "destination": f"{address['address'].rpartition('.')[0]}.0/24", "gateway": None, "metric": 0,
         "interface": address["interface"]}
        for _, address in nics
    ]  # fmt: skip
    interfaces = {"links": [lo, *(link for link, _ in nics)], "addresses": [own, *(address for _, address in nics)]}
    return {"facts": {"interfaces": interfaces, "routes": routes}, "node": {"env": {"NCCL_SOCKET_IFNAME": "=nosuch"}}}


def suggested(*hosts: dict[str, Any]) -> dict[str, str] | None:
    snapshot = patched({"hosts": {f"node{number}": one for number, one in enumerate(hosts, start=1)}})
    found = cluster_nccl(snapshot).suggestion
    return found.interfaces if found is not None else None


def test_where_names_differ_each_host_gets_its_own() -> None:
    found = suggested(host(nic("eno1", "10.0.0.1")), host(nic("ens5", "10.0.0.2")), host(nic("eno1", "10.0.0.3")))
    assert found == {"node1": "eno1", "node2": "ens5", "node3": "eno1"}


def test_the_faster_of_two_common_nets() -> None:
    found = suggested(*(host(nic("slow", f"10.0.0.{n}", speed=1000), nic("fast", f"10.1.0.{n}")) for n in (1, 2, 3)))
    assert found == {f"node{n}": "fast" for n in (1, 2, 3)}


def test_a_name_that_is_there_on_all_hosts_but_on_different_nets_is_none() -> None:
    hosts = [host(nic("eno1", f"10.{n}.0.1"), nic("eno2", f"10.9.0.{n}")) for n in (1, 2, 3)]
    assert suggested(*hosts) == {f"node{n}": "eno2" for n in (1, 2, 3)}


def test_nothing_is_suggested_that_does_not_work() -> None:
    assert suggested(*(host(nic("eno1", f"10.{n}.0.1")) for n in (1, 2, 3))) is None


def test_nothing_is_suggested_where_a_host_could_not_be_looked_at() -> None:
    blind = {"facts": {"interfaces": {"$unknown": "no netlink"}}}
    assert suggested(host(nic("eno1", "10.0.0.1")), blind) is None


@pytest.mark.parametrize("value", ["=eno1", "eno1", "a'b", "^docker,lo", "$(touch /x)", "a b"])
def test_a_line_can_be_pasted_whatever_the_value(value: str) -> None:
    line = str(export("NCCL_SOCKET_IFNAME", value))
    shown = subprocess.run(["sh", "-c", f'{line}; printf %s "$NCCL_SOCKET_IFNAME"'], capture_output=True, check=True)
    assert shown.stdout.decode() == value
    assert not value.startswith("=") or "='" in line  # zsh would look for a command called eno1
