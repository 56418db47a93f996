"""RDMA devices as /sys and /dev show them: their place on the PCI bus, their nodes, their tables, and what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.model.report import COUNTERS
from nccl_doctor.probe import tools
from nccl_doctor.probe.facts import rdma
from nccl_doctor.probe.facts.rdma import COUNTED, MOST_FREE, count_rdma, grown, parse_speed, read_rdma
from nccl_doctor.snapshot.system import RdmaDevice
from tests.probe.machine import build

EMPTY = ":".join(["0000"] * 8)
GID = "0000:0000:0000:0000:0000:ffff:0a00:0001"


def device(root: Path, name: str, bus: str, number: int | None = None, gids: int = 16) -> None:
    """A device below a bridge, with its first GIDs in use."""
    port, pci = f"sys/class/infiniband/{name}/ports/1", f"sys/devices/pci0000:00/0000:00:01.0/{bus}"
    build(root, {f"{port}/state": "4: ACTIVE", f"{port}/link_layer": "Ethernet", f"{port}/rate": "200 Gb/sec (4X HDR)"})
    build(root, {f"{port}/gids/{index}": GID if index < 2 else EMPTY for index in range(gids)})
    build(root, {f"{port}/pkeys/{index}": "0xffff" if index in (0, 3) else "0x0000" for index in range(128)})
    build(root, {f"{pci}/{name}": text for name, text in LINK.items()} | {f"{pci}/../max_link_width": "8"})
    (root / f"sys/class/infiniband/{name}/device").symlink_to(root / pci)
    if number is not None:
        build(root, {f"sys/class/infiniband_verbs/uverbs{number}/ibdev": name})


LINK = {
    "current_link_width": "4",
    "max_link_width": "16",
    "current_link_speed": "16.0 GT/s PCIe",
    "max_link_speed": "32.0 GT/s PCIe",
    "numa_node": "1",
}


@pytest.mark.parametrize("key", ["a\ntouch /tmp/x", "", "0x", "0x12345", "65535", "0xffff\n"])
def test_a_partition_key_that_is_none_is_no_fact(key: str) -> None:
    device = {"name": "mlx5_0", "ports": [{"number": 1, "state": "ACTIVE", "pkeys": [[0, key]]}]}
    with pytest.raises(ValueError, match="pkeys"):
        RdmaDevice.model_validate(device)


def test_eight_devices_cost_a_few_hundred_files_and_none_costs_a_look(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        device(root, f"mlx5_{number}", f"0000:8{number}:00.0", number, gids=256)
    opened: list[str] = []
    quick, slow = rdma._line, tools.read

    def count(look: Any) -> Any:
        def counted(path: str) -> Any:
            opened.append(path)
            return look(path)

        return counted

    monkeypatch.setattr(rdma, "_line", count(quick))
    monkeypatch.setattr("nccl_doctor.probe.facts.rdma.read", count(slow))
    read_rdma()
    assert len(opened) < 8 * (2 * MOST_FREE + 30), "a table of 256 is not read to its end"
    opened.clear()
    monkeypatch.setattr(tools, "ROOT", "/nowhere")
    assert read_rdma() == []
    assert opened == []


def test_what_grew_is_told_of_the_ports_that_were_there(root: Path) -> None:
    for name in ("mlx5_0", "mlx5_1"):
        device(root, name, f"0000:8{name[-1]}:00.0")
        port = f"sys/class/infiniband/{name}/ports/1"
        build(root, {f"{port}/hw_counters/out_of_sequence": "7", f"{port}/hw_counters/np_cnp_sent": "5"})
        build(root, {f"{port}/counters/symbol_error": "0", f"{port}/counters/port_xmit_data": "1"})
    before = count_rdma()
    assert before["mlx5_0:1"] == {"symbol_error": 0, "np_cnp_sent": 5, "out_of_sequence": 7}
    hw = "sys/class/infiniband/mlx5_0/ports/1/hw_counters"
    build(root, {f"{hw}/out_of_sequence": "19", f"{hw}/np_cnp_sent": "2", f"{hw}/rnr_nak_retry_err": "3"})
    build(root, {"sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error": "N/A"})
    device(root, "mlx5_2", "0000:82:00.0")
    assert grown(before, count_rdma()) == {"mlx5_0:1": {"out_of_sequence": 12}, "mlx5_1:1": {}}


def test_the_counters_that_are_read_are_those_that_have_words() -> None:
    assert {name for names in COUNTED.values() for name in names} == COUNTERS.keys()


@pytest.mark.parametrize(
    ("text", "speed"), [("32.0 GT/s PCIe", 32.0), ("16 GT/s", 16.0), ("Unknown", None), (None, None)]
)
def test_speeds(text: str | None, speed: float | None) -> None:
    assert parse_speed(text) == speed
