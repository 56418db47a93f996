"""What three generations of machines tell, in the form of nvidia-smi, /sys and lspci; numbers and names are invented."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.probe import gpus, tools
from nccl_doctor.probe.facts import hardware
from nccl_doctor.probe.facts.rdma import parse_rate, parse_state, read_rdma
from tests.patience import LONG_S
from tests.probe.machine import build

GENERATIONS = Path(__file__).parent / "generations"
WITH_RDMA = ("a100", "h100", "gb200")
ALL = (*WITH_RDMA, "mig", "no_devices")
OLD_DRIVER = ("a100", "mig", "no_devices")
"""Drivers before 545 know no fabric.state."""


def text(generation: str, name: str) -> str:
    return (GENERATIONS / generation / name).read_text()


def install(generation: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvidia-smi that answers as that machine's did."""
    here = GENERATIONS / generation
    old = 'case "$*" in *fabric*) echo \'Field "fabric.state" is not a valid field to query.\'; exit 2;; esac'
    status = "exit 6" if generation == "no_devices" else "exit 0"
    program = folder / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        + (f"{old}\n" if generation in OLD_DRIVER else "")
        + f'case "$*" in *query-remapped*) cat {here}/rows.csv;; *driver_version*) cat {here}/gpus.csv; {status};;\n'
        + f"*) cat {here}/health.csv; {status};; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.fixture
def tree(root: Path) -> Callable[[str], None]:
    def make(generation: str) -> None:
        build(root / "sys/class/infiniband", json.loads(text(generation, "infiniband.json")))

    return make


EXPECTED = {
    "a100": (8, "NVIDIA A100-SXM4-80GB", "535.183.06"),
    "h100": (8, "NVIDIA H100 80GB HBM3", "570.124.06"),
    "gb200": (4, "NVIDIA GB200", "580.82.07"),
    "mig": (2, "NVIDIA A100-PCIE-40GB", "535.183.06"),
}


@pytest.mark.parametrize("generation", ALL)
def test_gpus_and_their_health(generation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(generation, tmp_path, monkeypatch)
    found = gpus.list_gpus(time.monotonic() + LONG_S)
    health = hardware.read_gpu_health(time.monotonic() + LONG_S)
    assert [gpu["index"] for gpu in found] == [gpu["index"] for gpu in health]
    if generation != "no_devices":
        count, name, driver = EXPECTED[generation]
        assert len(found) == count
        assert {(gpu["name"], gpu["driver"]) for gpu in found} == {(name, driver)}
        fabric = None if generation in OLD_DRIVER else "Completed"
        assert {gpu["fabric"] for gpu in health} == {fabric}


def test_errors_are_told_by_the_gpu_that_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("a100", tmp_path, monkeypatch)
    bad = [
        gpu
        for gpu in hardware.read_gpu_health(time.monotonic() + LONG_S)
        if gpu["ecc_uncorrected"] or gpu["remap_pending"]
    ]
    assert [(gpu["index"], gpu["ecc_uncorrected"], gpu["remap_pending"], gpu["remap_failed"]) for gpu in bad] == [
        (3, 2, True, False)
    ]


def test_what_is_not_told_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("mig", tmp_path, monkeypatch)
    first, second = hardware.read_gpu_health(time.monotonic() + LONG_S)
    assert (first["mig"], first["ecc_uncorrected"], first["remap_pending"]) == (True, None, None)
    assert (second["mig"], second["ecc_uncorrected"], second["remap_pending"]) == (True, 0, False)


def test_without_a_driver_there_is_nothing(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(tools, "SYSTEM", (str(tmp_path),))
    monkeypatch.setattr(tools, "MORE", ())
    monkeypatch.setattr(gpus, "DEVICES", (str(tmp_path / "nvidia0"),))
    assert gpus.list_gpus(time.monotonic() + LONG_S) == []
    assert hardware.read_gpu_health(time.monotonic() + LONG_S) == []
    assert hardware.xids() == []
    assert read_rdma() == []


PORTS = {
    "a100": {("MT4123", "ACTIVE", 200.0, "InfiniBand"), ("MT4123", "DOWN", 40.0, "Ethernet")},
    "h100": {("MT4129", "ACTIVE", 400.0, "Ethernet")},
    "gb200": {("MT4129", "ACTIVE", 400.0, "InfiniBand"), ("MT41692", "ACTIVE", 200.0, "Ethernet")},
}


@pytest.mark.parametrize("generation", WITH_RDMA)
def test_rdma_devices(generation: str, tree: Callable[[str], None]) -> None:
    tree(generation)
    found = read_rdma()
    seen = {
        (device["model"], port["state"], port["rate_gbps"], port["link_layer"])
        for device in found
        for port in device["ports"]
    }
    assert seen == PORTS[generation]
    names = [device["name"] for device in found]
    assert names == sorted(names, key=lambda name: int(name.removeprefix("mlx5_")))


def test_gids_of_roce_keep_their_index_type_and_interface(tree: Callable[[str], None]) -> None:
    tree("h100")
    (port,) = read_rdma()[0]["ports"]
    kinds = {gid["index"]: (gid["type"], gid["interface"]) for gid in port["gids"]}
    assert kinds == {
        0: ("IB/RoCE v1", "rdma0"),
        1: ("RoCE v2", "rdma0"),
        2: ("IB/RoCE v1", "rdma0"),
        3: ("RoCE v2", "rdma0"),
    }


def test_a_device_of_two_ports(tree: Callable[[str], None]) -> None:
    tree("gb200")
    device = next(one for one in read_rdma() if one["name"] == "mlx5_2")
    assert [port["number"] for port in device["ports"]] == [1, 2]


@pytest.mark.parametrize(
    ("generation", "acs"), [("a100", ["0000:01:00.0", "0000:02:04.0"]), ("h100", []), ("gb200", None)]
)
def test_acs_counts_on_bridges_alone_and_needs_root(generation: str, acs: list[str] | None) -> None:
    assert hardware.parse_acs(text(generation, "lspci.txt")) == acs


def test_the_fabric_manager_is_asked_for_before_a_bus_that_may_hang(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def output(argv: list[str], _deadline: float) -> str:
        asked.append(argv[0])
        return "LoadState=loaded\nActiveState=failed\n"

    asked: list[str] = []
    monkeypatch.setattr(hardware, "output", output)
    for address, kind in (("0000:07:00.0", "0x030200"), ("0000:c4:00.0", "0x068000")):
        build(root / "sys/bus/pci/devices" / address, {"vendor": "0x10de", "class": kind})
    build(root, {"sys/class/infiniband/mlx5_0": None})
    assert hardware.read_pci(time.monotonic() + LONG_S)["fabric_manager"] == "failed"
    assert asked == ["systemctl", "nv-fabricmanager", "lspci"]


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ("LoadState=loaded\nActiveState=active\n", "active"),
        ("LoadState=loaded\nActiveState=failed\n", "failed"),
        ("LoadState=not-found\nActiveState=inactive\n", "missing"),
        ("System has not been booted with systemd as init system (PID 1). Can't operate.\n", None),
        ("", None),
    ],
)
def test_state_of_the_fabric_manager(told: str, state: str | None) -> None:
    assert hardware.parse_service(told) == state


OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 06:46:07 UTC 2024\n"


@pytest.mark.parametrize(
    ("version", "kernel", "possible"),
    [
        (OPEN, "6.8.0-60-generic", True),
        (OPEN, "5.4.0", False),
        (CLOSED, "6.8.0", False),
        (None, "6.8.0", None),
        (OPEN, "?", None),
    ],
)
def test_dmabuf_needs_the_open_modules_and_a_kernel(version: str | None, kernel: str, possible: bool | None) -> None:
    assert hardware.dmabuf(version, kernel) is possible


@pytest.mark.parametrize(
    ("line", "built"),
    [
        ("updates/dkms/nvidia-peermem.ko.zst: updates/dkms/nvidia.ko.zst kernel/drivers/infiniband/core/ib_core.ko.zst", True),
        ("extra/nvidia-peermem.ko.xz: extra/mlnx-ofa_kernel/drivers/infiniband/core/ib_core.ko extra/nvidia.ko.xz", True),
        ("updates/dkms/nvidia-peermem.ko.zst:", False),
        ("kernel/drivers/infiniband/core/rdma_cm.ko: kernel/drivers/infiniband/core/ib_core.ko", False),
    ],
)  # fmt: skip
def test_an_nvidia_peermem_that_does_not_use_ib_core_is_a_stub(line: str, built: bool) -> None:
    """It depends on nothing then, and can't be loaded (nvidia-peermem.c)."""
    text = f"kernel/net/ipv6/ipv6.ko:\n{line}\nkernel/net/9p/9pnet.ko:"
    assert (hardware.RDMA_PEERMEM.search(text) is not None) is built


@pytest.mark.parametrize(
    ("path", "main"),
    [
        ("updates/dkms/nvidia.ko.zst", True),
        ("updates/dkms/nvidia-current.ko", True),
        ("updates/dkms/nvidia-tesla-535-open.ko.xz", True),
        ("updates/dkms/nvidia-legacy-390xx.ko", True),
        ("updates/dkms/nvidia-current-open-drm.ko.xz", False),
        ("updates/dkms/nvidia-fs.ko", False),
        ("kernel/drivers/i2c/busses/i2c-nvidia-gpu.ko", False),
    ],
)
def test_the_drivers_main_module_and_debians_names_of_it(path: str, main: bool) -> None:
    assert (hardware.MODULE.search(f"{path}:") is not None) is main


def record(text: str, seconds: float) -> str:
    return f"4,1234,{int(seconds * 1e6)},-;{text}\n SUBSYSTEM=pci\n"


def test_xids_of_the_last_day() -> None:
    now = 200_000.0
    records = [
        record("NVRM: Xid (PCI:0000:65:00): 48, pid=1, name=python, Double Bit ECC Error", now - 90_000),
        record(
            "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", now - 60
        ),
        record("nvidia 0000:65:00.0: enabling device", now - 50),
        record("NVRM: Xid (0000:C1:00): 31, Ch 00000010, MMU Fault", now - 40),
        record("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: SM (0x1).", now - 30),
        record("NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 43, pid=7194, Ch 00000018", now - 20),
    ]
    assert [(x["number"], x["bus_id"], x["age_s"]) for x in hardware.parse_xids(records, now)] == [
        (79, "0000:65:00", 60.0),
        (31, "0000:c1:00", 40.0),
        (94, "0000:01:00", 30.0),
        (43, "0000:01:00", 20.0),
    ]


def damaged(source: str) -> st.SearchStrategy[str]:
    """The text cut short, with a piece of it replaced, or in another script."""
    cut = st.integers(0, len(source)).map(lambda end: source[:end])
    swapped = st.tuples(st.integers(0, len(source)), st.text(max_size=20)).map(
        lambda pair: source[: pair[0]] + pair[1] + source[pair[0] + len(pair[1]) :]
    )
    translated = st.sampled_from(["Aktiviert", "有効", "không áp dụng", "²", "٣"]).map(
        lambda word: source.replace("Enabled", word).replace("Completed", word).replace("0", word)
    )
    return cut | swapped | translated


@pytest.mark.parametrize("generation", ALL)
@given(data=st.data())
def test_no_damage_breaks_the_parsers_of_health(generation: str, data: st.DataObject) -> None:
    fields = tuple(name for name in hardware.HEALTH_FIELDS if generation not in OLD_DRIVER or name != "fabric.state")
    found = hardware.parse_gpu_health(data.draw(damaged(text(generation, "health.csv"))), fields)
    assert all(isinstance(gpu["index"], int) for gpu in found)
    hardware.parse_rows(data.draw(damaged(text(generation, "rows.csv"))))


@pytest.mark.parametrize("generation", WITH_RDMA)
@given(data=st.data())
def test_no_damage_breaks_the_parser_of_lspci(generation: str, data: st.DataObject) -> None:
    found = hardware.parse_acs(data.draw(damaged(text(generation, "lspci.txt"))))
    assert found is None or all(":" in address for address in found)


@given(st.text())
def test_no_text_breaks_the_small_parsers(said: str) -> None:
    state, rate = parse_state(said), parse_rate(said)
    assert state is None or state in said
    assert rate is None or rate >= 0
    hardware.parse_service(said)
    hardware.dmabuf(said, said)
    assert hardware.parse_xids([said, record(said, 1.0)], 2.0) == [] or "Xid" in said


@given(st.dictionaries(st.sampled_from(["state", "phys_state", "rate", "link_layer", "gids/0", "gids/x"]), st.text()))
def test_no_content_of_sys_breaks_the_devices(files: dict[str, str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(tools, "ROOT", folder):
        port = Path(folder) / "sys/class/infiniband/mlx5_0/ports/1"
        (port / "gids").mkdir(parents=True)
        for name, content in files.items():
            (port / name).write_text(content, encoding="utf-8", errors="replace")
        (device,) = read_rdma()
        assert [one["number"] for one in device["ports"]] == [1]
