"""In a large cluster those are asked about an address whose word may differ from the others'."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nccl_doctor.model.base import unknown
from nccl_doctor.nccl.reachability import EVERYBODY_UP_TO, Peers
from nccl_doctor.snapshot.mesh import Mesh

MANY = 1000


def pictures(count: int, **odd: dict[str, Any]) -> dict[str, Any]:
    usual: dict[str, Any] = {"routes": ("default",), "unreachable": {}, "address": None}
    found = {}
    for rank in range(count):
        name = f"n{rank}"
        one = {**usual, **odd.get(name, {})}
        addresses = [SimpleNamespace(address=one["address"] or f"10.0.{rank // 256}.{rank % 256}")]
        found[name] = SimpleNamespace(host=name, interfaces=SimpleNamespace(addresses=addresses), **one)
    return found


def asked(all_: dict[str, Any], host: str, mesh: Mesh | None = None) -> list[str]:
    address = all_[host].interfaces.addresses[0].address
    return [one.host for one in Peers(all_, mesh).of(host, address)]


def test_up_to_128_hosts_everybody_is_asked() -> None:
    assert len(asked(pictures(EVERYBODY_UP_TO), "n5")) == EVERYBODY_UP_TO - 1


def test_of_many_alike_the_master_and_the_neighbours_are_asked() -> None:
    assert set(asked(pictures(MANY), "n500")) == {"n0", "n499", "n501"}
    assert set(asked(pictures(MANY), "n0")) == {"n999", "n1"}


def test_whoever_may_say_otherwise_is_asked_by_all() -> None:
    odd: dict[str, dict[str, Any]] = {
        "n100": {"routes": ("none",)},
        "n200": {"routes": unknown("no permission")},
        "n300": {"unreachable": {"10.0.1.244": "ENETUNREACH"}},
        "n400": {"address": "10.0.1.244"},
    }
    dial = {"src": "n600", "dst": "n500", "address": "10.0.1.244", "port": 29500, "outcome": "timed-out"}
    mesh = Mesh.model_validate({"hosts": MANY, "pairs": MANY * (MANY - 1), "tested": 0, "ports": {}, "failed": [dial]})
    found = set(asked(pictures(MANY, **odd), "n500", mesh))
    assert found == {"n0", "n499", "n501", "n100", "n200", "n300", "n400", "n600"}
