from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.judge.from_file import changes
from nccl_doctor.model.documents import Change
from tests.checks.snapshots import UNREACHABLE, patched


def changed(patch: dict[str, Any]) -> list[Change]:
    return list(changes(patched({}), patched(patch)))


def test_what_fleets_is_no_change() -> None:
    fleeting = {
        "clock": {"offset_s": 0.3, "error_s": 0.01},
        "sockets": [],
        "shm": {"total_bytes": 67_000_000_000, "free_bytes": 1},
        "temporary": [{"path": "/tmp", "free_bytes": 1, "free_files": 2}],
        "tasks": [{"name": "ulimit -u", "most": 30000, "used": 41}],
        "conntrack": {"most": 262144, "used": 301},
    }
    patch = {
        "taken_at": "2026-02-02T00:00:00+00:00",
        "timings": {"total": 9.9},
        "hosts": {"node1": {"facts": fleeting}},
    }
    assert changed(patch) == []


def test_the_same_change_on_several_hosts_is_one() -> None:
    torch = {"version": "2.8.0+cu128"}
    assert changed({"hosts": {"node1": {"facts": {"torch": torch}}, "node3": {"facts": {"torch": torch}}}}) == [
        Change(what="torch.version", before="2.9.1+cu128", after="2.8.0+cu128", hosts=("node1", "node3"))
    ]


def links(*links: tuple[str, int]) -> dict[str, Any]:
    made = [
        {"name": n, "index": i, "flags": ["up"], "mtu": m, "speed_mbps": None, "kind": "physical"}
        for i, (n, m) in enumerate(links)
    ]
    return {"interfaces": {"links": made, "addresses": []}}


def test_entries_of_lists_go_by_their_names() -> None:
    before = patched({"hosts": {"node1": {"facts": links(("eno1", 1500), ("eno2", 1500))}}})
    after = patched({"hosts": {"node1": {"facts": links(("eno1", 9000))}}})
    found = {one.what: (one.before, one.after) for one in changes(before, after)}
    assert found["interfaces.links[eno1].mtu"] == ("1500", "9000")
    assert found["interfaces.links[eno2].mtu"] == ("1500", "nothing")


def test_a_list_that_was_empty_is_told_by_its_entries() -> None:
    holder = {
        "pid": 7,
        "ppid": 1,
        "user": "alice",
        "command": "train",
        "age_s": 3.0,
        "started": 1.0,
        "orphan": False,
        "own": True,
    }
    taken = {"port": 29500, "free": False, "error": "EADDRINUSE", "cause": "listener", "holders": [holder]}
    told = {
        one.what: (one.before, one.after) for one in changed({"hosts": {"node1": {"facts": {"master_port": taken}}}})
    }
    assert "master_port.holders" not in told
    assert told["master_port.holders[#1].user"] == ("nothing", "alice")


def test_a_fact_that_became_unknown_is_one_change() -> None:
    assert changed({"hosts": {"node2": {"facts": {"limits": {"$unknown": "no answer"}}}}})[-1] == Change(
        what="limits", before="nothing", after="unknown: no answer", hosts=("node2",)
    )


@pytest.mark.parametrize(("kind", "facts"), [("ssh-unreachable", UNREACHABLE), ("python-missing", {"python": "p"})])
def test_a_host_that_is_away_is_that_one_change(kind: str, facts: dict[str, Any]) -> None:
    away = {"facts": None, "failure": {"kind": kind, "detail": "x", "facts": facts}}
    change = Change(what="reached", before="yes", after=f"no ({kind})", hosts=("node3",))
    assert changed({"hosts": {"node3": away}}) == [change]


def test_the_cluster_itself_comes_first() -> None:
    first, *_ = changed({"cluster": {"master_port": 29501}, "hosts": {"node1": {"facts": {"torch": None}}}})
    assert first == Change(what="master_port", before="29500", after="29501")
