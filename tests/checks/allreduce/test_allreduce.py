"""Whom the all-reduce's diagnoses name, and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nccl_doctor.checks.allreduce.culprits import last_words
from nccl_doctor.checks.allreduce.link import ideal_seconds, link, way
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.finding import Diagnosis
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.snapshot.smoke import Smoke
from tests.checks.snapshots import load, patched

HERE = Path(__file__).parent


def diagnosis(fixture: str) -> Diagnosis:
    (found,) = judge(load(HERE / f"{fixture}.json"), "smoke").diagnoses
    return found


NAMED = [
    ("allreduce_failed/fires-killed", ["node2"], "Rank 1 on node2 was killed by SIGKILL"),
    ("allreduce_failed/fires-killed-and-an-abort", ["node2"], "Rank 1 on node2 was killed by SIGKILL"),
    ("allreduce_failed/fires-an-error-and-an-abort", ["node1"], "Rank 0 on node1 failed: torch.OutOfMemoryError"),
    ("allreduce_failed/fires-an-abort-alone", ["node2"], "Rank 1 on node2 was killed by SIGABRT"),
    (
        "allreduce_failed/fires-without-a-word",
        ["node2"],
        "Rank 1 on node2 exited with status 7 without printing anything",
    ),
    ("allreduce_failed/fires-dead-at-the-deadline", ["node2"], "Rank 1 on node2 exited without printing anything"),
    (
        "allreduce_failed/fires-connection-lost",
        ["node3"],
        "The all-reduce failed on node3: the connection to the host ended",
    ),
    ("allreduce_failed/fires-isolated-pair", ["node1", "node2"], "it failed only between node1 and node2"),
    ("allreduce_timeout/fires-suspended", ["node2"], "rank 1 on node2 was suspended"),
    ("allreduce_timeout/fires-in-the-kernel", ["node3"], "in the kernel (nfs4_wait_clnt_recover)"),
    (
        "allreduce_timeout/fires-elsewhere",
        ["node2"],
        "was executing get (queue.py:171), called by wait_for_disk (hook.py:12)",
    ),
    (
        "allreduce_timeout/fires-everybody",
        ["node1", "node2", "node3"],
        "each of the 3 ranks waited for the others to join",
    ),
    ("allreduce_timeout/fires-isolated-host", ["node3"], "it failed with node3 but worked among the other hosts"),
    ("allreduce_wrong_result/fires-alone", ["node2"], "the error comes from rank 1 on node2"),
    ("allreduce_wrong_result/fires-with-both-neighbours", ["node2"], "the error comes from rank 1 on node2"),
    ("allreduce_wrong_result/fires-between-two", ["node2", "node3"], "from rank 1 on node2 and rank 2 on node3"),
    ("allreduce_slow/fires", ["node1"], "only 0.099 GB/s, 8% of the 1.2 GB/s possible over eno1 on node1"),
    ("allreduce_slow/fires-straggler", ["node2"], "Rank 1 on node2 spent far more time"),
    ("transport_fallback/fires", ["node1", "node2", "node3"], "TCP sockets on node[1-3]"),
    ("transport_fallback/fires-shared-memory", ["node2"], "through shared memory"),
]


@pytest.mark.parametrize(("fixture", "hosts", "words"), NAMED, ids=[fixture for fixture, _, _ in NAMED])
def test_names_the_host_and_says_what_it_did(fixture: str, hosts: list[str], words: str) -> None:
    found = diagnosis(fixture)
    assert list(found.hosts) == hosts
    assert words in found.message


def test_each_rank_of_a_timeout_is_told_once() -> None:
    evidence = map(str, diagnosis("allreduce_timeout/fires-elsewhere").evidence)
    told = [line for line in evidence if line.startswith("rank")]
    assert [line.partition(" (")[0] for line in told] == ["rank 0,2", "rank 1"]


@pytest.mark.parametrize(
    ("fixture", "unexplained"),
    [
        ("allreduce_failed/fires-killed", False),
        ("allreduce_failed/fires", True),
        ("allreduce_timeout/fires", False),
        ("allreduce_timeout/fires-elsewhere", False),
        ("allreduce_timeout/fires-everybody", True),
        ("allreduce_timeout/fires-isolated-host", False),
    ],
)
def test_says_whether_it_is_worth_repeating_over_groups(fixture: str, unexplained: bool) -> None:
    assert diagnosis(fixture).facts["unexplained"] is unexplained


@pytest.mark.parametrize(
    ("fixture", "line", "advice"),
    [
        ("allreduce_slow/fires-packets-lost", "node2: mlx5_0:1: 1204 packets received out of sequence, 31 cong", "PFC"),
        ("allreduce_slow/fires-congestion-alone", "node2: mlx5_0:1: 12 congestion notices sent", "negotiated speed"),
        ("allreduce_timeout/fires-a-link-went-down", "node3: mlx5_0:1: 1 link failures, 7", "cable"),
    ],
)  # fmt: skip
def test_counters_of_rdma_tell_where_nothing_else_does(fixture: str, line: str, advice: str) -> None:
    found = diagnosis(fixture)
    assert any(line in str(each) for each in found.evidence)
    assert advice in found.fix.summary


def test_counters_of_rdma_are_left_aside_where_a_rank_is_late() -> None:
    grown = load(HERE / "allreduce_slow/fires-packets-lost.json").smoke
    late = load(HERE / "allreduce_slow/fires-straggler.json")
    assert isinstance(grown, Smoke)
    assert isinstance(late.smoke, Smoke)
    smoke = late.smoke.model_copy(update={"rdma_grown": grown.rdma_grown})
    (found,) = judge(late.model_copy(update={"smoke": smoke}), "smoke").diagnoses
    assert not [line for line in found.evidence if "mlx5_0" in str(line)]
    assert found.fix.summary == "Find out what else that host is busy with."


def test_where_nothing_tells_the_repetition_is_offered() -> None:
    assert "--isolate" in diagnosis("allreduce_timeout/fires-everybody").fix.summary
    assert "--isolate" not in diagnosis("allreduce_timeout/fires-no-verdict").fix.summary
    assert "--isolate" not in diagnosis("allreduce_timeout/fires-suspended").fix.summary


def test_of_a_traceback_and_torchruns_table_only_what_tells_is_quoted() -> None:
    said = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/opt/train.py", line 3, in main
[rank1]: ImportError: libcudart.so.12: cannot open shared object file
E0101 12:00:00.100 71 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 0 (pid: 9)
Traceback (most recent call last):
    return launch_agent(
           ^^^^^^^^^^^^^
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
/proc/71/fd/7 FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_12:00:00
  error_file: <N/A>
"""
    smoke = patched({"smoke": {"output": {"node2": said.splitlines()}}}).smoke
    assert isinstance(smoke, Smoke)
    first, second = last_words(smoke, ("node2",))
    assert first == "node2 printed: [rank1]: ImportError: libcudart.so.12: cannot open shared object file"
    assert "failed (exitcode: 1)" in second


def test_a_search_without_a_verdict_says_how_far_it_came() -> None:
    evidence = diagnosis("allreduce_timeout/fires-no-verdict").evidence
    assert evidence[:2] == (
        "node[1-2] alone: worked",
        "repeated over groups of hosts, without a verdict: there was no time for more",
    )


def test_a_variable_that_forbids_rdma_is_named() -> None:
    found = diagnosis("transport_fallback/fires-by-a-variable")
    assert "the hosts file sets NCCL_IB_DISABLE=1 for node[1-3]" in found.evidence
    assert "NCCL_IB_DISABLE" in found.fix.summary


TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
TAKEN_BEFORE_2_7 = (
    "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed "
    "to bind to [::]:29500 (errno: 98 - Address already in use)."
)
MESH = "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"


def failed(said: str, **change: object) -> dict[str, object]:
    ranks = [{"rank": r, "host": f"node{r + 1}", "local_rank": 0, "stage": "none", "ok": False} for r in range(3)]
    launchers = {"node1": "the process that starts its ranks ended with status 1"}
    exits = {"node1": 1}
    return {
        "smoke": {
            "outcome": "failed",
            "ranks": ranks,
            "sizes": [],
            "output": {"node1": [said]},
            "launchers": launchers,
            "launcher_exits": exits,
        },
        **change,
    }


@pytest.mark.parametrize("said", [TAKEN, TAKEN_BEFORE_2_7], ids=["torch 2.7", "torch 1.11"])
def test_a_port_that_was_taken_since_the_check_is_the_cause(said: str) -> None:
    (found,) = judge(patched(failed(said)), "check").diagnoses
    assert (found.name, found.hosts) == ("port-in-use", ("node1",))
    assert [effect.name for effect in found.explains] == ["allreduce-failed"]


LOST = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [10.0.0.2]:51022: No route to host"


def test_a_host_that_was_lost_is_why_others_have_no_route_to_it() -> None:
    ranks = [{"rank": r, "host": f"node{r + 1}", "local_rank": 0, "stage": "group", "ok": False} for r in range(3)]
    ranks[2]["error"] = LOST
    smoke = {"outcome": "failed", "ranks": ranks, "sizes": [], "output": {"node3": [f"[rank2]: {LOST}"]}}
    (alone,) = judge(patched({"smoke": smoke}), "check").diagnoses
    assert (alone.name, alone.hosts) == ("no-route-to-host", ("node3",))
    lost = {**smoke, "launchers": {"node2": "the connection stalled"}}
    (found,) = judge(patched({"smoke": lost}), "check").diagnoses
    assert (found.name, found.hosts) == ("allreduce-failed", ("node2",))


def test_a_cause_that_was_seen_before_takes_what_the_output_says() -> None:
    docker = {"facts": {"resolution": {"node1": {"addresses": ["127.0.1.1"], "source": "127.0.0.1"}}}}
    (found,) = judge(patched(failed(MESH, hosts={"node1": docker})), "check").diagnoses
    assert found.name == "hostname-loopback"
    assert "allreduce-failed" in {effect.name for effect in found.explains}


def test_what_a_log_would_guess_gives_way_to_what_was_looked_at() -> None:
    assert [found.name for found in judge(patched(failed(MESH)), "check").diagnoses] == ["allreduce-failed"]


def test_memory_that_cant_be_registered_is_the_limits_fault_only_where_the_limit_says_so() -> None:
    refused = "spark-2:9:9 [0] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
    port = {"number": 1, "state": "ACTIVE", "rate_gbps": 200.0, "link_layer": "Ethernet", "gids": []}
    names = []
    for limit in (None, 8 << 20):
        facts = {"facts": {"rdma": [{"name": "rocep1s0f0", "ports": [port]}], "limits": {"memlock_soft": limit}}}
        report = judge(patched(failed(refused, hosts=dict.fromkeys(("node1", "node2", "node3"), facts))), "check")
        names.append([found.name for found in report.diagnoses])
    assert names == [["pinned-memory-short"], ["memlock-low"]]


def test_an_output_without_a_cause_adds_nothing() -> None:
    assert [found.name for found in judge(patched(failed("nothing to see")), "check").diagnoses] == ["allreduce-failed"]


@pytest.mark.parametrize(
    ("transports", "words"),
    [
        ({"P2P/CUMEM": 12}, "P2P"),
        ({"P2P/CUMEM": 12, "NET/IB/0/GDRDMA": 4}, "NET/IB"),
        ({"NET/Socket/0": 4, "SHM/direct/direct": 2}, "NET/Socket"),
        ({}, ""),
    ],
)
def test_the_way_is_the_network_where_there_is_one(transports: dict[str, int], words: str) -> None:
    rank = {"rank": 0, "host": "node1", "local_rank": 0, "stage": "done", "ok": True, "transports": transports}
    smoke = patched({"smoke": {"backend": "nccl", "ranks": [rank]}}).smoke
    assert isinstance(smoke, Smoke)
    assert way(smoke) == words


def test_the_ideal_time_follows_the_formula() -> None:
    assert ideal_seconds(1_000_000_000, 4, 1.0) == pytest.approx(1.5)


def test_the_slowest_host_is_the_link() -> None:
    slow = {"name": "eno1", "index": 2, "flags": ["up"], "mtu": 1500, "speed_mbps": 1000, "kind": "physical"}
    snapshot = patched({"hosts": {"node3": {"facts": {"interfaces": {"links": [slow]}}}}})
    found = link(snapshot)
    assert found is not None
    assert (found.host, found.name, found.gb_per_s) == ("node3", "eno1", 0.125)


def test_a_narrow_slot_is_the_link() -> None:
    slot = {"speed": 8.0, "width": 1, "max_width": 8}
    narrow = {"name": "eno1", "index": 2, "flags": ["up"], "mtu": 1500, "speed_mbps": 100000, "kind": "physical"}
    snapshot = patched({"hosts": {"node3": {"facts": {"interfaces": {"links": [{**narrow, "pci": slot}]}}}}})
    found = link(snapshot)
    assert found is not None
    assert (found.host, found.links) == ("node3", "one 100 Gb/s link, less by PCIe")
    assert found.gb_per_s == pytest.approx(0.985, abs=0.001)


def test_with_rdma_the_devices_are_the_link() -> None:
    snapshot = load(HERE / "transport_fallback" / "quiet.json")
    assert isinstance(snapshot.smoke, Smoke)
    found = link(snapshot)
    assert found is not None
    assert (found.name, found.gb_per_s) == ("mlx5_0", 25.0)


@pytest.mark.parametrize(
    "ended",
    [
        "the process that starts its ranks was killed by SIGKILL",
        "the process that starts its ranks was killed by signal 9",
        "it is gone",
    ],
)
def test_what_killed_a_launcher_is_known_by_number(ended: str) -> None:
    smoke = {"launchers": {"node3": ended}, "launcher_signals": {"node3": 9}}
    document = load(HERE / "allreduce_failed/fires-connection-lost.json").model_dump(mode="json", by_alias=True)
    (found,) = judge(Snapshot.model_validate({**document, "smoke": {**document["smoke"], **smoke}}), "check").diagnoses
    assert "for want of memory" in found.fix.summary


def test_a_torch_without_nccl_is_the_reason_alone() -> None:
    error = "RuntimeError: torch 2.13.0+cpu was built without NCCL"
    rank = {"local_rank": 0, "stage": "torch", "ok": False, "error": error, "error_kind": "no-nccl"}
    ranks = [{**rank, "rank": number, "host": f"node{number + 1}"} for number in range(3)]
    c10d = "[W socket.cpp:204] [c10d] The client socket has failed to connect to [node1]:29500 (errno: 111)."
    smoke = {"backend": "nccl", "outcome": "failed", "ranks": ranks, "output": {"node2": [c10d] * 10}, "sizes": []}
    (found,) = judge(patched({"smoke": smoke}), "smoke").diagnoses
    assert error in found.message
    assert len(found.evidence) == 3
    assert "install a torch built with CUDA" in found.fix.summary


@pytest.mark.parametrize(("stage", "told"), [("started", True), ("group", False)])
def test_a_limit_on_virtual_memory_is_told_only_of_ranks_that_did_not_import_torch(stage: str, told: bool) -> None:
    path = Path(__file__).parent / "allreduce_failed" / "fires-virtual-memory-limited.json"
    patch = json.loads(path.read_text())
    for rank in patch["smoke"]["ranks"]:
        rank["stage"] = stage if rank["host"] == "node2" else rank["stage"]
    (found,) = judge(patched(patch), "check").diagnoses
    assert ("virtual memory" in found.message) is told
