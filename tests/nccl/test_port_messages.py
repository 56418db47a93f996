"""Every wording of "Address already in use", and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.nccl.messages import find_port_error

OLD = "[W socket.cpp:426] [c10d] The server socket has failed to bind to {} (errno: 98 - Address already in use)."
LISTEN = "RuntimeError: The server socket has failed to listen on any local network address. "
LIBUV = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
IN_USE = "code: -98, name: EADDRINUSE, message: address already in use"

WORDINGS = [
    ("RuntimeError: Address already in use", "in-use", None),
    (OLD.format("[::]:29511"), "in-use", 29511),
    (OLD.format("0.0.0.0:29511"), "in-use", 29511),
    (OLD.format("?UNKNOWN?:29511"), "in-use", 29511),
    (f"{LISTEN}{OLD.format('[::]:29511')} {OLD.format('0.0.0.0:29511')}", "in-use", 29511),
    (f"{LIBUV}useIpv6: 0, {IN_USE}", "in-use", None),
    (f"{LIBUV}useIpv6: 0, code: -48, name: EADDRINUSE, message: address already in use", "in-use", None),
    (f"{LIBUV}port: 29511, useIpv6: false, {IN_USE}", "in-use", 29511),
    (
        "The server socket has failed to bind. port: 22, useIpv6: false, code: -13, name: EACCES, message: permission denied",
        "privileged",
        22,
    ),
    (
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:22 (errno: 13 - Permission denied).",
        "privileged",
        22,
    ),
    ("listen fd 5 is bound to port 29512, expected to be bound to port 29511", "handed-over", 29511),
    (
        "ConnectionError: Tried to launch distributed communication on port `29511`, but another process is utilizing it.",
        "in-use",
        29511,
    ),
    ("OSError: [Errno 98] Address already in use", "in-use", None),
]


@pytest.mark.parametrize(("text", "kind", "port"), WORDINGS)
def test_each_wording_gives_its_port_and_kind(text: str, kind: str, port: int | None) -> None:
    found = find_port_error(f"step 1\n{text}\nTraceback (most recent call last):\n")
    assert found is not None
    assert (found.kind, found.port) == (kind, port)
    assert found.meaning


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize(("text", "kind", "port"), WORDINGS)
def test_a_terminal_may_have_wrapped_it_between_words(text: str, kind: str, port: int | None, width: int) -> None:
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > width:
            lines.append(line)
            line = ""
        line += f"{word} "
    found = find_port_error("\n".join([*lines, line]))
    assert found is not None
    assert (found.kind, found.port) == (kind, port)


NCCL = [
    "node1:312:400 [0] misc/socket.cc:413 NCCL WARN Call to bind failed : Address already in use",
    "node1:312:400 [0] misc/socket.cc:413 NCCL WARN Call to bind failed: Address already in use",
]


@pytest.mark.parametrize("text", NCCL)
def test_nccls_own_bind_is_something_else(text: str) -> None:
    found = find_port_error(text)
    assert found is not None
    assert (found.kind, found.port) == ("ephemeral", None)
    assert "ip_local_port_range" in found.meaning
    both = find_port_error(f"{text}\n{OLD.format('[::]:29511')}")
    assert both is not None
    assert (both.kind, both.port) == ("in-use", 29511)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[W socket.cpp:558] [c10d] The client socket has failed to connect to [head]:29500 (errno: 111 - Connection refused).",
        "loss 0.98 at port 29500",
    ],
)
def test_other_text_says_nothing(text: str) -> None:
    assert find_port_error(text) is None


def test_a_number_that_is_no_port_is_none() -> None:
    found = find_port_error(f"{LIBUV}port: 99999, useIpv6: false, {IN_USE}")
    assert found is not None
    assert found.port is None


@given(st.text(alphabet=" \nEADRINUSEerrno:98port2bindfailed to(),useIpv6", max_size=400))
def test_no_text_is_too_odd(text: str) -> None:
    found = find_port_error(text)
    assert found is None or found.port is None or 0 < found.port <= 65535
