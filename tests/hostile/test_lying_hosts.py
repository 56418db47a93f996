"""A host that lies gets no step onto another one, and what is shown is what would run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nccl_doctor.act.plan import plan
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.acts import FixReport, Step
from nccl_doctor.report.fix import plan_screen
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.snapshot.hosts import Snapshot
from tests.checks.snapshots import load

FIXTURES = sorted((Path(__file__).parents[1] / "checks").glob("*/*/fires*.json"))
STRANGER, WIDE = "203.0.113.66", "1025-65535"
RUNS = 1000
AT_ONCE = 20


def lies(document: dict[str, Any], liar: int, chance: random.Random) -> None:
    """Make one host lie: about itself, and about the others."""
    if document["hosts"][liar]["facts"] is None:
        return
    for trick in chance.sample([_ports, _address, _names, _mesh], chance.randint(1, 4)):
        trick(document, document["hosts"][liar])


def _ports(_document: dict[str, Any], host: dict[str, Any]) -> None:
    host["facts"]["port_range"] = {"low": 1025, "high": 65535, "reserved": ""}


def _address(_document: dict[str, Any], host: dict[str, Any]) -> None:
    interfaces = host["facts"]["interfaces"]
    for entry in interfaces.get("addresses", ()):
        if entry.get("family") == "inet" and not entry["address"].startswith("127."):
            entry["address"] = STRANGER


def _names(document: dict[str, Any], host: dict[str, Any]) -> None:
    names = host["facts"]["resolution"].get("own", {})
    names.update({node["address"]: {"addresses": [STRANGER], "error": None} for node in document["cluster"]["nodes"]})


def _mesh(document: dict[str, Any], host: dict[str, Any]) -> None:
    mesh, name = document["mesh"], host["node"]["name"]
    others = [node["name"] for node in document["cluster"]["nodes"] if node["name"] != name]
    failure = {"src": name, "address": STRANGER, "port": 29500, "outcome": "timed-out", "error": None, "seconds": 3.0}
    if "failed" in mesh:
        mesh["failed"] += [{**failure, "dst": other} for other in others]
        for other in others:
            mesh.setdefault("answered", {}).setdefault(other, {})[STRANGER] = [name]


def steps_of(document: dict[str, Any]) -> tuple[Step, ...] | None:
    try:
        snapshot = Snapshot.model_validate(document)
    except ValidationError:
        return None
    steps, _ = plan(judge(snapshot, "fix"), snapshot)
    return steps


@pytest.mark.parametrize("seed", range(AT_ONCE))
def test_no_lie_becomes_a_step_on_another_host(seed: int) -> None:
    chance, told = random.Random(seed), 0
    for _ in range(RUNS // AT_ONCE):
        path = chance.choice(FIXTURES)
        document = json.loads(load(path).model_dump_json(by_alias=True))
        liar = chance.randrange(len(document["hosts"]))
        name = document["hosts"][liar]["node"]["name"]
        lies(document, liar, chance)
        steps = steps_of(document)
        if steps is None:
            continue
        told += 1
        for step in steps:
            texts = (step.command, str(step.settings))
            mine = step.host == name or (step.operation is not None and step.operation.ends_process)
            assert mine or not any(lie in text.replace(":", "-") for lie in (STRANGER, WIDE) for text in texts), (
                path,
                step,
            )
            assert step.settings or step.command == str(step.operation and step.operation.line)
        shown = plan_screen(FixReport(plan=steps), RenderOptions(verbose=True))
        assert all(step.command in shown for step in steps)
    assert told > RUNS // AT_ONCE // 2
