"""RDMA devices as /sys and /dev show them: their place on the PCI bus, their nodes, their tables, and what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from nccl_doctor.model.report import COUNTERS
from nccl_doctor.probe import tools
from nccl_doctor.probe.facts import rdma
from nccl_doctor.probe.facts.rdma import COUNTED, MOST_FREE, count_rdma, grown, parse_speed, read_rdma
from nccl_doctor.snapshot.system import RdmaDevice

EMPTY = ":".join(["0000"] * 8)
GID = "0000:0000:0000:0000:0000:ffff:0a00:0001"


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")


def device(root: Path, name: str, bus: str, number: int | None = None, gids: int = 16) -> None:
    """A device below a bridge, with its first GIDs in use."""
    port, pci = f"class/infiniband/{name}/ports/1", f"devices/pci0000:00/0000:00:01.0/{bus}"
    write(root, {f"{port}/state": "4: ACTIVE", f"{port}/link_layer": "Ethernet", f"{port}/rate": "200 Gb/sec (4X HDR)"})
    write(root, {f"{port}/gids/{index}": GID if index < 2 else EMPTY for index in range(gids)})
    write(root, {f"{port}/pkeys/{index}": "0xffff" if index in (0, 3) else "0x0000" for index in range(128)})
    write(root, {f"{pci}/{name}": text for name, text in LINK.items()} | {f"{pci}/../max_link_width": "8"})
    (root / f"class/infiniband/{name}/device").symlink_to(root / pci)
    if number is not None:
        write(root, {f"class/infiniband_verbs/uverbs{number}/ibdev": name})


LINK = {
    "current_link_width": "4",
    "max_link_width": "16",
    "current_link_speed": "16.0 GT/s PCIe",
    "max_link_speed": "32.0 GT/s PCIe",
    "numa_node": "1",
}


def found(root: Path) -> list[dict[str, Any]]:
    return read_rdma(str(root / "class/infiniband"), str(root / "dev"))


def test_a_device_s_place_and_its_link_s_ends(tmp_path: Path) -> None:
    device(tmp_path, "mlx5_0", "0000:81:00.1")
    (told,) = found(tmp_path)
    assert (told["pci"], told["numa"]) == (["0000:00:01.0", "0000:81:00.1"], 1)
    assert told["link"] == {"speed": 16.0, "width": 4, "max_speed": 32.0, "max_width": 8}, "the bridge has eight lanes"
    (typed,) = TypeAdapter(tuple[RdmaDevice, ...]).validate_python([told])
    assert typed.ports[0].pkeys == ((0, "0xffff"), (3, "0xffff"))


@pytest.mark.parametrize("key", ["a\ntouch /tmp/x", "", "0x", "0x12345", "65535", "0xffff\n"])
def test_a_partition_key_that_is_none_is_no_fact(key: str) -> None:
    device = {"name": "mlx5_0", "ports": [{"number": 1, "state": "ACTIVE", "pkeys": [[0, key]]}]}
    with pytest.raises(ValueError, match="pkeys"):
        RdmaDevice.model_validate(device)


def test_a_link_that_does_not_tell(tmp_path: Path) -> None:
    device(tmp_path, "mlx5_0", "0000:81:00.2")
    place = tmp_path / "devices/pci0000:00/0000:00:01.0/0000:81:00.2"
    write(place, {"current_link_speed": "Unknown", "numa_node": "-1"})
    (told,) = found(tmp_path)
    assert (told["link"], told["numa"]) == (None, None)


def test_nodes_are_opened_and_their_numbers_are_the_kernels(tmp_path: Path) -> None:
    for number, name in ((1, "mlx5_0"), (0, "mlx5_1"), (None, "mlx5_2")):
        device(tmp_path, name, f"0000:8{name[-1]}:00.0", number)
    write(tmp_path, {"dev/uverbs1": ""})
    assert [(one["name"], one["verbs"], one["problem"]) for one in found(tmp_path)] == [
        ("mlx5_0", 1, None),
        ("mlx5_1", 0, "ENOENT"),
        ("mlx5_2", None, "no ib_uverbs"),
    ]


def test_eight_devices_cost_a_few_hundred_files_and_none_costs_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        device(tmp_path, f"mlx5_{number}", f"0000:8{number}:00.0", number, gids=256)
    opened: list[str] = []
    quick, slow = rdma._line, tools.read

    def count(look: Any) -> Any:
        def counted(path: str) -> Any:
            opened.append(path)
            return look(path)

        return counted

    monkeypatch.setattr(rdma, "_line", count(quick))
    monkeypatch.setattr("nccl_doctor.probe.facts.rdma.read", count(slow))
    found(tmp_path)
    assert len(opened) < 8 * (2 * MOST_FREE + 30), "a table of 256 is not read to its end"
    opened.clear()
    assert found(tmp_path / "nothing") == []
    assert opened == []


def test_what_grew_is_told_of_the_ports_that_were_there(tmp_path: Path) -> None:
    folder = tmp_path / "class/infiniband"
    for name in ("mlx5_0", "mlx5_1"):
        device(tmp_path, name, f"0000:8{name[-1]}:00.0")
        port = f"class/infiniband/{name}/ports/1"
        write(tmp_path, {f"{port}/hw_counters/out_of_sequence": "7", f"{port}/hw_counters/np_cnp_sent": "5"})
        write(tmp_path, {f"{port}/counters/symbol_error": "0", f"{port}/counters/port_xmit_data": "1"})
    before = count_rdma(str(folder))
    assert before["mlx5_0:1"] == {"symbol_error": 0, "np_cnp_sent": 5, "out_of_sequence": 7}
    hw = "class/infiniband/mlx5_0/ports/1/hw_counters"
    write(tmp_path, {f"{hw}/out_of_sequence": "19", f"{hw}/np_cnp_sent": "2", f"{hw}/rnr_nak_retry_err": "3"})
    write(tmp_path, {"class/infiniband/mlx5_0/ports/1/counters/symbol_error": "N/A"})
    device(tmp_path, "mlx5_2", "0000:82:00.0")
    assert grown(before, count_rdma(str(folder))) == {"mlx5_0:1": {"out_of_sequence": 12}, "mlx5_1:1": {}}
    assert count_rdma(str(tmp_path / "nothing")) == {}


def test_the_counters_that_are_read_are_those_that_have_words() -> None:
    assert {name for names in COUNTED.values() for name in names} == COUNTERS.keys()


@pytest.mark.parametrize(
    ("text", "speed"), [("32.0 GT/s PCIe", 32.0), ("16 GT/s", 16.0), ("Unknown", None), (None, None)]
)
def test_speeds(text: str | None, speed: float | None) -> None:
    assert parse_speed(text) == speed
