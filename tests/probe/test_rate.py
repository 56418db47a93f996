"""Streams between real sockets: what is counted arrived, nothing large goes to a stranger, and all has an end."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nccl_doctor.probe import netlink
from nccl_doctor.probe.mesh import rate
from nccl_doctor.probe.mesh.mesh import MeshEnd
from nccl_doctor.snapshot.network import PciLink
from nccl_doctor.snapshot.rate import Figures, RateLink
from tests.patience import joined

NONCE = "n" * 32


@pytest.fixture
def port() -> Iterator[int]:
    """A listener of the mesh, which swallows what comes."""
    end = MeshEnd(NONCE)
    opened = end.listen([{"address": "127.0.0.1", "port": 0, "step": 0, "tries": 1}])
    yield opened["ports"][0]
    end.close()


def request(port: int, **change: Any) -> dict[str, Any]:
    whole = {"address": "127.0.0.1", "port": port, "nonce": NONCE, "source": "127.0.0.1", "streams": 1}
    return {**whole, "window_s": 0.2, "most_bytes": 1 << 40, **change}


def test_figures_are_what_the_controller_takes(port: int) -> None:
    told = Figures.model_validate(rate.send(request(port)))
    assert told.gbps > 0
    assert told.seconds >= 0.2
    assert told.streams in (1, rate.MORE_STREAMS)


def test_more_streams_are_tried_where_one_lacks_a_cpu(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def send(_request: dict[str, Any], count: int) -> dict[str, Any]:
        tried.append(count)
        return {"gbps": float(count), "sender_busy": 0.95}

    monkeypatch.setattr(rate, "_send", send)
    assert rate.send(request(port))["gbps"] == rate.MORE_STREAMS
    assert tried == [1, rate.MORE_STREAMS]


def test_four_streams_together_count_what_all_of_them_sent(port: int) -> None:
    told = Figures.model_validate(rate.send(request(port, streams=4)))
    assert (told.streams, told.gbps > 0) == (4, True)


def test_nothing_large_goes_to_a_stranger() -> None:
    """Somebody who says no nonce, or another one, gets no byte."""
    got: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(ConnectionError):
                connection.sendall(b"m" * 32)
                got.append(len(connection.recv(1 << 20)))

        thread = threading.Thread(target=answer)
        thread.start()
        assert rate.send(request(listener.getsockname()[1])) == {"error": "EPROTO"}
        joined(thread)
    assert sum(got) == 0


def test_a_silent_listener_costs_its_time_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        began = time.monotonic()
        assert rate.send(request(listener.getsockname()[1])) == {"error": "timed out"}
        assert time.monotonic() - began < rate.CONNECT_S + 30


@pytest.mark.parametrize(
    ("change", "error"), [({"port": 1}, "ECONNREFUSED"), ({"source": "192.0.2.1"}, "EADDRNOTAVAIL")]
)
def test_why_there_is_no_rate(port: int, change: dict[str, Any], error: str) -> None:
    assert rate.send({**request(port), **change}) == {"error": error}


def test_bytes_have_a_bound(port: int) -> None:
    told = rate.send(request(port, most_bytes=1 << 20))
    assert told["gbps"] * told["seconds"] * 1e9 / 8 <= (1 << 20) + len(rate.CHUNK)


def test_no_stream_is_left(port: int) -> None:
    before = threading.active_count()
    rate.send(request(port, streams=4))
    assert threading.active_count() == before


def test_links_tell_what_drivers_tell() -> None:
    (told,) = rate.read_links({"interfaces": ["lo"]})
    link = RateLink.model_validate(told)
    assert (link.interface, link.speed_mbps) == ("lo", None)
    assert link.offloads["gso"] is True


@pytest.mark.parametrize(("lanes", "speed", "gbps"), [(8, 16.0, 126), (2, 5.0, 8), (2, 8.0, 16)])
def test_a_slot_gives_what_its_coding_leaves(lanes: int, speed: float, gbps: int) -> None:
    assert round(PciLink(speed=speed, width=lanes).gbps) == gbps


def test_what_the_own_queues_dropped_is_counted() -> None:
    """A struct tcmsg, the kind of queue, and in TCA_STATS2 its counts; a child's are its root's, too."""
    counts = netlink.attribute(rate.TCA_STATS_QUEUE, struct.pack("=5I", 0, 0, 7, 0, 9))
    told = netlink.attribute(1, b"tbf\0") + netlink.attribute(rate.TCA_STATS2, counts)
    assert rate._drops(struct.pack("=BxxxiIII", 0, 2, 0, rate.ROOT, 0) + told) == 7
    assert rate._drops(struct.pack("=BxxxiIII", 0, 2, 0, 0x10000, 0) + told) == 0


STAT = """cpu  10 0 10 80 0 5 5 0 0 0
cpu0 5 0 5 40 0 0 0 0 0 0
cpu1 5 0 5 40 0 5 5 0 0 0
intr 1 2 3
"""


def test_the_busiest_cpu_s_interrupts_count() -> None:
    before = tuple(rate._cpus(STAT))
    after = tuple(rate._cpus(STAT.replace("cpu1 5 0 5 40 0 5 5", "cpu1 5 0 5 50 0 15 85")))
    assert len(before) == 2
    assert rate._shares(before, after) == (0.9, 0.0)
