"""The conversation with NCCL's RAS service, in every version's form."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from nccl_doctor.nccl.ras import parse
from nccl_doctor.probe.hang import flows
from nccl_doctor.probe.tools import Unavailable
from tests.ras_server import Service, serving

ANSWERS = Path(__file__).parents[2] / "nccl" / "ras"
OLD, TEXT = (ANSWERS / "old.txt").read_text(), (ANSWERS / "behind.txt").read_text()
COMPARED = (ANSWERS / "diagnostics" / "two-ranks.txt").read_text()
JSON = (ANSWERS / "no-comma.json").read_text()


def test_both_forms_of_a_new_one() -> None:
    service = Service(TEXT, JSON)
    with serving(service) as port:
        told = [flows.ask("127.0.0.1", port, form, time.monotonic() + 5) for form in ("json", "text")]
    assert [(one["form"], one["whole"], one["protocol"]) for one in told] == [("json", True, 2), ("text", True, 2)]
    assert [one["text"] for one in told] == [JSON, TEXT]
    assert [len(parse(one["text"]).communicators) for one in told] == [1, 1]
    assert "TIMEOUT 5" in service.heard


def test_the_comparison_of_the_ranks() -> None:
    service = Service(TEXT, JSON, diagnostics=COMPARED)
    with serving(service) as port:
        told = flows.ask("127.0.0.1", port, "diagnostics", time.monotonic() + 5)
    assert (told["form"], told["whole"], told["text"]) == ("diagnostics", True, COMPARED)
    assert service.heard[-1] == "DIAGNOSTICS"


def test_an_old_one_answers_in_text() -> None:
    with serving(Service(OLD, protocol=1)) as port:
        told = flows.ask("127.0.0.1", port, "json", time.monotonic() + 5)
    assert (told["form"], told["protocol"], told["text"]) == ("text", 1, OLD)


def test_one_that_is_cut_or_never_ends_is_told_as_far_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "MOST_BYTES", 1 << 16)
    with serving(Service(TEXT, endless=True)) as port:
        told = flows.ask("127.0.0.1", port, "text", time.monotonic() + 5)
    assert told["text"].startswith(TEXT)
    assert not told["whole"]
    with serving(Service(TEXT, cut=700)) as port:
        told = flows.ask("127.0.0.1", port, "text", time.monotonic() + 5)
    assert TEXT.startswith(told["text"])
    assert not told["whole"]
    with serving(Service(TEXT, slow_s=0.4)) as port:
        told = flows.ask("127.0.0.1", port, "text", time.monotonic() + 0.6)
    assert TEXT.startswith(told["text"])
    assert not told["whole"]


@pytest.mark.parametrize("greeting", ["HTTP/1.1 400 Bad Request\r\n", "x" * 5000, "SERVER PROTOCOL no\n", "\x1b[2J\n"])
def test_a_stranger_on_the_port(greeting: str) -> None:
    with serving(Service(greeting=greeting)) as port, pytest.raises(Unavailable, match="RAS"):
        flows.ask("127.0.0.1", port, "json", time.monotonic() + 1)


def test_nobody_on_the_port() -> None:
    with pytest.raises(Unavailable, match="refused"):
        flows.ask("127.0.0.1", 1, "json", time.monotonic() + 1)


@pytest.mark.parametrize(
    ("told", "port"),
    [
        ({}, 28028),
        ({"NCCL_RAS_ADDR": "10.0.0.1:99"}, 99),
        ({"NCCL_RAS_ADDR": ":99"}, 99),
        ({"NCCL_RAS_ADDR": "[::1]:99"}, 99),
        ({"NCCL_RAS_ADDR": "nonsense"}, 28028),
        ({"NCCL_RAS_ADDR": "10.0.0.1:" + "9" * 5000}, 28028),
        ({"NCCL_RAS_ENABLE": "0"}, None),
    ],
)
def test_on_which_port_it_listens(told: dict[str, str], port: int | None) -> None:
    assert flows.service_port(told) == port


def test_it_is_dialled_where_a_rank_of_the_job_listens_alone() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        assert flows.listeners([os.getpid()], port) == ["127.0.0.1"]
        assert flows.listeners([1], port) == []
