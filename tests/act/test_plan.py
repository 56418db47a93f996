from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.act.plan import plan
from nccl_doctor.judge.diagnose import judge
from tests.checks.snapshots import load, patched
from tests.checks.test_register import fixtures

LOOPBACK = Path(__file__).parents[1] / "checks/interfaces/hostname_loopback/fires-two.json"


def planned(patch: dict[str, Any]) -> tuple[list[dict[str, str | None]], list[str]]:
    """Return the variables that would be written, and the diagnoses left by hand."""
    snapshot = patched(patch)
    steps, by_hand = plan(judge(snapshot, "fix"), snapshot)
    return [step.settings for step in steps], [left.name for left in by_hand]


def two_of_three() -> dict[str, Any]:
    patch: dict[str, Any] = json.loads(LOOPBACK.read_text())
    assert len(patch["hosts"]) == 2
    return patch | {"cluster": {"source": "hosts.yaml"}}


def test_a_variable_that_some_hosts_need_is_set_for_all_where_it_changes_nothing_on_the_others() -> None:
    assert planned(two_of_three()) == ([{"GLOO_SOCKET_IFNAME": "eno1"}], [])


def test_a_variable_is_not_set_for_a_host_where_gloo_takes_another_interface() -> None:
    """Only one way to set it for all is known, and there it would name an interface that node1 does not have."""
    patch = two_of_three()
    (other,) = {"node1", "node2", "node3"} - patch["hosts"].keys()
    addresses = deepcopy(patched({}).hosts[0].facts.interfaces.model_dump())  # type: ignore[union-attr]
    for entry in (*addresses["links"], *addresses["addresses"]):
        for key in ("name", "interface"):
            if entry.get(key) == "eno1":
                entry[key] = "eth5"
        if entry.get("interface") == "eth5":
            entry["address"] = f"10.0.0.{other[-1]}"
    patch["hosts"][other] = {"facts": {"interfaces": addresses}}
    assert planned(patch) == ([], ["hostname-loopback"])


def test_a_variable_is_not_set_for_a_host_of_which_too_little_is_known() -> None:
    patch = two_of_three()
    (other,) = {"node1", "node2", "node3"} - patch["hosts"].keys()
    patch["hosts"][other] = {"facts": {"resolution": {"$unknown": "no answer in time"}}}
    assert planned(patch) == ([], ["hostname-loopback"])


@pytest.mark.parametrize(
    "path", [path for _, path in fixtures("fires")], ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_a_plan_has_operations_of_its_diagnoses_alone(path: Path) -> None:
    snapshot = load(path)
    report = judge(snapshot, "check")
    printed = {(one.host, one.command) for found in report.diagnoses for one in found.fix.commands}
    steps, by_hand = plan(report, snapshot)
    assert {(step.host, step.command) for step in steps if not step.settings} <= printed
    assert all(step.settings or step.operation is not None for step in steps)
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert {step.mends for step in steps} | {one.name for one in by_hand} >= {found.name for found in report.diagnoses}


def test_a_variable_that_a_single_host_wants_is_not_set_for_the_others() -> None:
    """A host says of itself on which interface it is; that is no reason to move the others."""
    patch = two_of_three()
    del patch["hosts"][min(patch["hosts"])]
    assert planned(patch) == ([], ["hostname-loopback"])


def test_a_command_with_what_looks_like_a_secret_is_by_hand() -> None:
    snapshot = load(Path(__file__).parents[1] / "checks/ports/port_in_ephemeral_range/fires.json")
    report = judge(snapshot, "check")
    assert plan(report, snapshot)[0]
    steps, by_hand = plan(report, snapshot, lambda text: text.replace("sysctl", "***"))
    assert (steps, [one.name for one in by_hand]) == ((), [found.name for found in report.diagnoses])
