"""The handshake of ``check --join``, and node 0's side of it."""

from __future__ import annotations

import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.collect.smoke.plan import environment, order_of
from nccl_doctor.crew import follow
from nccl_doctor.errors import NotJoinedError
from nccl_doctor.model.cluster import Node
from nccl_doctor.transport.joined import handshake, meeting
from nccl_doctor.transport.joined.handshake import HandshakeError, Introduction
from nccl_doctor.transport.joined.meeting import Meeting
from tests.patience import LONG_S

TOKEN = b"0123456789abcdef"
NONCES = "0" * 32, "1" * 32
SURROGATES = st.text(st.characters(categories=["Cs"]), min_size=1, max_size=3)  # which JSON can have, and UTF-8 can't
RELEASE = "0.1.0 (probe 01234567)"
WHO = Introduction(1, 2, "node2", "python3", RELEASE)


def test_both_sides_prove_that_they_have_the_token() -> None:
    release, nonce = handshake.read_greeting(handshake.greeting(RELEASE, NONCES[0]))
    assert (release, nonce) == (RELEASE, NONCES[0])
    line = handshake.introduce(TOKEN, WHO, NONCES)
    assert handshake.read_introduction(line, TOKEN, NONCES[0]) == (WHO, NONCES[1])
    assert handshake.read_answer(handshake.accept(TOKEN, NONCES), TOKEN, NONCES) is None
    assert handshake.read_answer(handshake.refuse("no\n\x1b[1m"), TOKEN, NONCES) == "no  [1m"
    assert TOKEN not in line


@pytest.mark.parametrize("change", ["token", "nonce", "statement", "side"])
def test_no_other_line_is_accepted(change: str) -> None:
    line = handshake.introduce(TOKEN, WHO, NONCES)
    told = json.loads(line)
    if change == "statement":
        told["statement"] = told["statement"].replace('"rank": 1', '"rank": 0')
    if change == "side":
        told["proof"] = json.loads(handshake.accept(TOKEN, NONCES))["proof"]
    with pytest.raises(HandshakeError, match="wrong token"):
        handshake.read_introduction(
            json.dumps(told).encode(),
            b"another token of 16" if change == "token" else TOKEN,
            "2" * 32 if change == "nonce" else NONCES[0],
        )


@given(st.binary(max_size=300) | st.recursive(st.none() | st.integers() | st.text() | SURROGATES, st.lists).map(
    lambda value: json.dumps({"statement": value, "nonce": value, "proof": value}).encode()
))  # fmt: skip
def test_whatever_a_stranger_sends_is_refused(line: bytes) -> None:
    for read in (
        lambda: handshake.read_introduction(line, TOKEN, NONCES[0]),
        lambda: handshake.read_answer(line, TOKEN, NONCES),
        lambda: handshake.read_greeting(line),
    ):
        with pytest.raises(HandshakeError):
            read()


@given(
    rank=st.integers(-2, 3), nodes=st.integers(-1, 3), host=st.text(max_size=5), python=st.text(max_size=5)
)  # a node that has the token may be broken, too
def test_a_statement_is_typed_and_bounded(rank: int, nodes: int, host: str, python: str) -> None:
    line = handshake.introduce(TOKEN, Introduction(rank, nodes, host, python, RELEASE), NONCES)
    try:
        found, _ = handshake.read_introduction(line, TOKEN, NONCES[0])
    except HandshakeError:
        return
    assert 0 <= found.rank < found.nodes
    assert found.host.isascii()
    assert found.python.isprintable()


@pytest.mark.parametrize("key", ["statement", "nonce", "proof"])
def test_lone_surrogates_are_malformed(key: str) -> None:
    told = {"statement": "x", "nonce": "0" * 32, "proof": "0" * 64, key: "\ud800"}
    with pytest.raises(HandshakeError):
        handshake.read_introduction(json.dumps(told).encode(), TOKEN, NONCES[0])
    with pytest.raises(HandshakeError):
        handshake.read_answer(json.dumps({"proof": "\ud800"}).encode(), TOKEN, NONCES)


@pytest.fixture
def node_0() -> Iterator[Meeting]:
    listener = meeting.listen("127.0.0.1", 0, 0.0, lambda: None)
    held = Meeting(listener, TOKEN, 3, RELEASE)
    yield held
    if listener.fileno() >= 0:
        held.end(0, {}, "")


def attempt(node_0: Meeting, who: Introduction, token: bytes = TOKEN) -> socket.socket:
    return follow.join(who, token, ("127.0.0.1", node_0.port), time.monotonic(), lambda _words: None)


def test_a_rank_that_is_there_is_refused_and_one_that_went_away_is_replaced(node_0: Meeting) -> None:
    who = Introduction(1, 3, "node2", "python3", RELEASE)
    first = attempt(node_0, who)
    with pytest.raises(NotJoinedError, match="node2 has node rank 1, as node2 at 127"):
        attempt(node_0, who)
    first.close()
    second = attempt(node_0, who)
    present: list[int] = []
    node_0.gather(time.monotonic(), present.append)
    assert present == [2]
    with pytest.raises(NotJoinedError, match="came after the check had begun"):
        attempt(node_0, Introduction(2, 3, "node3", "python3", RELEASE))
    second.close()


def test_a_process_that_starts_late_gets_the_result_too(node_0: Meeting) -> None:
    first = attempt(node_0, Introduction(1, 3, "node2", "python3", RELEASE, processes=2))
    node_0.gather(time.monotonic(), lambda _present: None)
    ending = threading.Thread(target=node_0.end, args=(1, {}, "the end"))
    ending.start()
    lines = first.makefile("rb").read().splitlines()
    assert [handshake.read_control(line)["code"] for line in lines if line] == [1]
    late = attempt(node_0, Introduction(1, 3, "node2", "python3", RELEASE, waits=True))
    lines = late.makefile("rb").read().splitlines()
    assert [handshake.read_control(line)["code"] for line in lines if line] == [1]
    late.close()
    first.close()
    ending.join(LONG_S)
    assert not ending.is_alive()


@pytest.mark.parametrize(
    ("who", "token", "words"),
    [
        (Introduction(1, 3, "node2", "python3", RELEASE), b"another token of 16", "wrong token"),
        (Introduction(1, 4, "node2", "python3", RELEASE), TOKEN, "started with 4 nodes, and node 0 with 3"),
        (Introduction(0, 3, "node2", "python3", RELEASE), TOKEN, "node rank 0, as this one does"),
        (Introduction(1, 3, "node2", "python3", RELEASE, master_port=9), TOKEN, "a job with master port 9"),
    ],
)
def test_who_is_refused_and_why(node_0: Meeting, who: Introduction, token: bytes, words: str) -> None:
    with pytest.raises(NotJoinedError, match=words):
        attempt(node_0, who, token)
    assert [count for phrase, count in node_0.refused.items() if words in phrase] == [1]


def test_no_more_processes_wait_than_there_are_files_for(node_0: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (4, 4))
    who = Introduction(1, 3, "node2", "python3", RELEASE, waits=True)
    held = [attempt(node_0, who) for _ in range(2)]
    with pytest.raises(NotJoinedError, match="too many processes wait already"):
        attempt(node_0, who)
    held.pop().close()
    held.append(attempt(node_0, who))
    for one in held:
        one.close()


def test_silent_strangers_are_dropped_and_keep_nobody_out(node_0: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "MOST_PENDING", 10)
    strangers = [socket.create_connection(("127.0.0.1", node_0.port)) for _ in range(50)]
    attempt(node_0, Introduction(1, 3, "node2", "python3", RELEASE)).close()
    for stranger in strangers:
        stranger.settimeout(LONG_S)
        assert b"refused" in stranger.makefile("rb").read()
        stranger.close()
    assert sum(node_0.refused.values()) == 50
    assert set(node_0.refused) == {"127.0.0.1: said nothing", "127.0.0.1: too many connections at once"}


@pytest.mark.parametrize(
    "request_line",
    [
        {"do": "signal"},
        {"do": "facts", "python": "/tmp/evil"},
        {"do": "facts", "env": {"LD_PRELOAD": "/tmp/evil.so"}},
        {"do": "smoke", "env": {}, "order": {"variables": {"NCCL_NET_PLUGIN": "/tmp/evil.so"}}},
        {"do": "smoke", "env": {"NCCL_DEBUG_FILE": "/root/.ssh/authorized_keys"}},
        {"do": "smoke", "env": {"NCCL_IB_HCA": "mlx5_1"}},
        {"do": "smoke", "env": {"OMP_NUM_THREADS": 1}},
        {},
        [],
    ],
)
def test_a_node_passes_on_no_request_that_is_not_of_a_check(request_line: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        follow.Vetting("python3", {"NCCL_IB_HCA": "mlx5_0"}).allowed(request_line)


def test_what_a_check_asks_is_passed_on() -> None:
    vetting = follow.Vetting("python3", {"NCCL_IB_HCA": "mlx5_0"})
    for request in (
        {"do": "facts", "python": "python3", "env": {"NCCL_IB_HCA": "mlx5_0"}},
        {
            "do": "smoke",
            "env": environment(Node(name="a", address="a", node_rank=0)),
            "order": order_of([1], 0, "a", 1),
        },
    ):
        assert vetting.allowed(request) == request
