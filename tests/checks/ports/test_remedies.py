"""What the diagnoses of ports advise: no command that makes it worse, and no cause that nobody has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.finding import Diagnosis
from tests.checks.snapshots import load, patched

HERE = Path(__file__).parent
LOG = "n1:1:2 [0] misc/socket.cc:534 NCCL WARN socketStartConnect: Connect to 10.0.0.2<4242> failed : {error}"


def only(name: str, fixture: str) -> Diagnosis:
    seen = load(HERE / f"{name.replace('-', '_')}/{fixture}.json")
    (found,) = judge(seen, "check", lambda check: check.name == name).diagnoses
    return found


def test_a_range_is_widened_and_never_narrowed() -> None:
    assert only("ephemeral-ports-few", "fires-all-taken").fix.commands
    wide = only("ephemeral-ports-few", "fires-all-taken-of-a-wide-range").fix
    assert (wide.commands, wide.summary) == ((), "Find out who has taken them (`ss -tan`).")


def few(nproc: int, **port_range: Any) -> Diagnosis:
    """The diagnosis of three hosts with so many ranks each."""
    facts = {"port_range": {"low": 32768, "high": 60999, "reserved": "", **port_range}}
    hosts = {f"node{n}": {"node": {"nproc_per_node": nproc}, "facts": facts} for n in (1, 2, 3)}
    nodes = [
        {"name": f"node{n}", "address": f"10.0.0.{n}", "node_rank": n - 1, "nproc_per_node": nproc} for n in (1, 2, 3)
    ]
    seen = patched({"cluster": {"nodes": nodes}, "hosts": hosts})
    (found,) = judge(seen, "check", lambda check: check.name == "ephemeral-ports-few").diagnoses
    return found


def test_what_no_range_has_is_said_of_no_smaller_number() -> None:
    assert few(80).fix.commands  # 38,880 ports
    for nproc, begins in ((100, "A port range of that size would contain"), (110, "No port range is that large")):
        fix = few(nproc).fix
        assert (fix.commands, fix.summary.startswith(begins)) == ((), True)  # 60,600 and 73,260 ports


def test_a_range_of_which_most_is_reserved_is_not_widened_to_itself() -> None:
    for low, high in ((15000, 65000), (1024, 65535)):
        assert few(80, low=low, high=high, reserved="20000-60000").fix.commands == ()


def test_a_port_is_reserved_only_if_the_kernel_gives_it() -> None:
    outgoing, accepted = only("port-in-use", "fires-outbound"), only("port-in-use", "fires-accepted")
    assert ["reserved_ports" in command.command for command in outgoing.fix.commands] == [True]
    assert not any("reserved_ports" in command.command for command in accepted.fix.commands)
    assert "reserve" not in accepted.fix.summary


def test_a_mesh_without_sidecars_is_left_by_its_own_label() -> None:
    assert "istio.io/dataplane-mode: none" in only("proxy-intercepts", "fires-no-sidecar").fix.summary


def test_the_evidence_says_who_could_bind_a_port_below_1024() -> None:
    found = only("port-privileged", "fires-as-root")
    assert [str(line) for line in found.evidence] == ["bind to port 80: worked, as root"]


def advice(text: str) -> Diagnosis:
    (found,) = report(diagnose([LogSource("run.log", [f"{text}\n".encode()])]), 0.0).diagnoses
    return found


@pytest.mark.parametrize(("error", "rule"), [("No route to host", True), ("Network is unreachable", False)])
def test_a_missing_route_is_not_called_a_firewall(error: str, rule: bool) -> None:
    found = advice(LOG.format(error=error))
    assert found.name == "no-route-to-host"
    assert ("firewall" in found.message, '"No route to host"' in found.message) == (rule, rule)


def test_rays_head_that_does_not_answer_is_not_called_silent() -> None:
    found = advice("RuntimeError: Failed to connect to GCS at address=192.168.5.20:6379. rpc_code: 14")
    assert found.name == "connection-refused"
    assert "Ray's head node at 192.168.5.20:6379: Ray is not running there" in found.message
    assert "got no answer" not in found.message
