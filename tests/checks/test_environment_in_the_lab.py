"""Faults of NCCL's variables, from every place where they can stand: each is one diagnosis of the right host."""

from __future__ import annotations

import pytest

from tests.checks.in_the_lab import ALL, Env, check, everywhere, is_healthy, only
from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab

TEAM_FILE = "/opt/team.conf"


def merged(*layers: Env) -> Env:
    return {name: {key: value for layer in layers for key, value in layer.get(name, {}).items()} for name in ALL}


def test_variables_that_serve(fresh_lab: Lab) -> None:
    good = "NCCL_ALGO=Ring\nNCCL_IB_TIMEOUT=0x16\n"
    fresh_lab.host("node1").write("/etc/nccl.conf", good)
    fresh_lab.host("node2").write("/etc/nccl.conf", "NCCL_ALGO=Tree\n")
    fresh_lab.host("node2").write("/root/.nccl.conf", good)  # comes before /etc/nccl.conf
    fresh_lab.host("node3").write("/root/.nccl.conf", "NCCL_ALGO=Tree\n")
    fresh_lab.host("node3").write(TEAM_FILE, good)  # takes the place of ~/.nccl.conf
    may_differ = {
        "node1": {"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "mlx5_0"},
        "node3": {"NCCL_CONF_FILE": TEAM_FILE, "NCCL_SOCKET_IFNAME": "=eth0"},
    }
    is_healthy(check(fresh_lab, merged(everywhere(NCCL_OFI_NUM_RAILS="4"), may_differ)))  # a plugin's, by its prefix


def test_a_name_that_nobody_knows(fresh_lab: Lab) -> None:
    host = fresh_lab.host("node2")
    host.write("/etc/nccl.conf", "# ours\nNCCL_SOCKET_IFNAMES=eth0\n")
    found = only(check(fresh_lab), "env-unknown-variable", ["node2"])
    assert found["severity"] == "warning"
    assert found["facts"]["nearest"] == "NCCL_SOCKET_IFNAME"
    assert "node2: /etc/nccl.conf:2" in found["fix"]["summary"]
    host.write("/etc/nccl.conf", "# ours\nNCCL_SOCKET_IFNAME=eth0\n")
    is_healthy(check(fresh_lab))


def test_a_value_that_is_read_as_another(fresh_lab: Lab) -> None:
    fresh_lab.host("node3").write(TEAM_FILE, "NCCL_IB_DISABLE=true\n")
    by_file: Env = {"node3": {"NCCL_CONF_FILE": TEAM_FILE}}
    env = merged(everywhere(NCCL_IB_DISABLE="0"), by_file)
    del env["node3"]["NCCL_IB_DISABLE"]
    run = check(fresh_lab, env)
    # NCCL reads 0 as everywhere else, but nobody who wrote "true" meant that: the hosts do differ
    assert sorted(run.names) == ["env-bad-value", "env-mismatch"]
    assert all(diagnosis["hosts"] == ["node3"] for diagnosis in run.report["diagnoses"])
    bad = next(diagnosis for diagnosis in run.report["diagnoses"] if diagnosis["name"] == "env-bad-value")
    assert bad["facts"]["origins"] == {"node3": f"{TEAM_FILE}:1"}
    assert bad["message"].endswith("NCCL reads this value as 0.")
    is_healthy(check(fresh_lab, merged(env, everywhere(NCCL_IB_DISABLE="1"))))


def test_a_value_of_one_host_alone(fresh_lab: Lab) -> None:
    fresh_lab.host("node3").write("/root/.nccl.conf", "NCCL_ALGO=Ring\n")
    found = only(check(fresh_lab), "env-mismatch", ["node3"])
    assert found["severity"] == "error"
    assert 'node3: NCCL_ALGO is "Ring" (/root/.nccl.conf:1)' in found["evidence"]
    is_healthy(check(fresh_lab, everywhere(NCCL_ALGO="Tree")))  # the hosts file wins
