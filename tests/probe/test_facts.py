from __future__ import annotations

import json
import os
import resource
import threading
import time
from typing import Any

import pytest

from nccl_doctor.collect.facts.host_facts import _packed
from nccl_doctor.model.base import Skipped, Unknown
from nccl_doctor.probe import facts
from nccl_doctor.probe.ports import requests
from nccl_doctor.probe.tools import COLLECTORS, Unavailable
from nccl_doctor.snapshot.hosts import HostFacts
from tests.patience import crowd

REQUEST: dict[str, Any] = {"names": _packed({"localhost": None}), "trial_port": None, "deadline_s": 20.0, "env": {}}


def collected(**changes: object) -> dict[str, Any]:
    """The answer as the snapshot reads it; the clock, which it must have, is added elsewhere."""
    answer = json.loads(json.dumps(facts.collect({**REQUEST, **changes})))
    read = HostFacts.model_validate({**answer, "clock": {"offset_s": 0.0, "error_s": 0.0}})
    return {name: fact for name, fact in read if name in answer}


def unknown(found: dict[str, Any]) -> dict[str, str]:
    return {name: fact.reason for name, fact in found.items() if isinstance(fact, Unknown)}


def test_the_answer_is_all_of_a_hosts_facts_and_all_are_known() -> None:
    found = collected(trial_port=29517)
    assert unknown(found) == {}
    assert found["master_port"].port == 29517


def test_the_trial_is_over_before_the_sockets_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    monkeypatch.setattr(requests, "bind_error", lambda port: order.append(f"trial {port}"))
    facts.import_collectors()
    monkeypatch.setitem(COLLECTORS, "sockets", lambda ports: order.append(f"list {sorted(ports)}"))
    facts.collect({**REQUEST, "trial_port": 29517, "master_port": 29500})
    assert order == ["trial 29517", "list [29500, 29517]"]


def test_the_port_is_tried_on_the_master_alone() -> None:
    assert isinstance(collected()["master_port"], Skipped)


def test_a_crash_costs_its_own_fact_and_shows_where() -> None:
    def crash() -> object:
        return dict[str, int]()["shm"]

    found = facts.run({"shm": crash, "limits": lambda: {"nofile_soft": 1}}, 5)
    assert found["limits"] == {"nofile_soft": 1}
    shm = Unknown.model_validate(found["shm"])
    assert shm.reason == "KeyError: 'shm'"
    assert shm.traceback is not None
    assert "in crash" in shm.traceback


def test_could_not_look_is_a_phrase_without_traceback() -> None:
    def refused() -> object:
        raise Unavailable("nvidia-smi gave no answer")

    def forbidden() -> object:
        raise PermissionError(13, "Permission denied", "/proc/net/route")

    found = facts.run({"gpus": refused, "routes": forbidden}, 5)
    assert found == {
        "gpus": {"$unknown": "nvidia-smi gave no answer", "traceback": None},
        "routes": {"$unknown": "Permission denied: /proc/net/route", "traceback": None},
    }


def test_what_hangs_is_left_behind_at_the_deadline() -> None:
    never = threading.Event()
    began = time.monotonic()
    try:
        found = facts.run({"gpus": never.wait, "python": lambda: "here"}, 0.2)
    finally:
        never.set()
    assert time.monotonic() - began < 2 * crowd()
    assert found == {"gpus": {"$unknown": "no answer in 0.2 s", "traceback": None}, "python": "here"}


def test_bytes_that_are_no_utf8_survive_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, b"NCCL_DEBUG_FILE", b"/tmp/\xff.log")
    assert collected()["env"]["NCCL_DEBUG_FILE"] == "/tmp/\\udcff.log"


def test_a_thread_that_can_not_start_is_an_unknown_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for space, words in (
        (resource.RLIM_INFINITY, "ulimit -u is 64"),
        (3 << 20, "ulimit -v is 3072 KiB, ulimit -u is 64"),
    ):
        soft = {resource.RLIMIT_AS: space, resource.RLIMIT_NPROC: 64}
        monkeypatch.setattr(resource, "getrlimit", lambda one, soft=soft: (soft[one], soft[one]))
        unknown = {"$unknown": f"can't start new thread ({words})", "traceback": None}
        assert facts.run({"shm": dict}, 5) == {"shm": unknown}


def test_every_fact_that_a_host_collects_is_a_field_of_the_snapshot() -> None:
    facts.import_collectors()
    assert (
        COLLECTORS.keys() | {"clock", "login_shell", "outside", "firewall_after", "ways", "misfits"}
        == HostFacts.model_fields.keys()
    )
