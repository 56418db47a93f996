"""Where nothing but the master's address fails, the remedy is another one, and no talk with whoever runs the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.snapshot.hosts import Snapshot
from tests.checks.snapshots import load

SEEN = load(Path(__file__).parent / "port_unreachable/fires-another-master-address.json")
LOST = {"src": "node2", "dst": "node1", "address": "10.0.0.1", "port": 29500, "outcome": "timed-out"}


def remedy(seen: Snapshot) -> str:
    (found,) = judge(seen, "check", lambda check: check.name == "port-unreachable").diagnoses
    return found.fix.summary


def test_the_address_that_all_reach_is_named() -> None:
    assert remedy(SEEN) == "Set master_addr: 10.0.0.1 in the hosts file (--master-addr): there they all reach node1."


@pytest.mark.parametrize(
    "mesh",
    [
        {"answered": {"node1": {"10.0.0.1": ["node3"]}}},
        {"failed": [*SEEN.model_dump(mode="json", by_alias=True)["mesh"]["failed"], LOST]},
    ],
    ids=["one did not meet it", "one lost that port there, too"],
)
def test_an_address_that_some_do_not_reach_is_no_remedy(mesh: dict[str, Any]) -> None:
    document = SEEN.model_dump(mode="json", by_alias=True)
    document["mesh"] |= mesh
    assert "master_addr" not in remedy(Snapshot.model_validate(document))
