"""What three generations of machines tell, in the form of nvidia-smi, /sys and lspci; numbers and names are invented."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.probe import gpus, tools
from nccl_doctor.probe.facts import hardware
from nccl_doctor.probe.facts.rdma import parse_rate, parse_state, read_rdma
from tests.patience import LONG_S

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
def tree(tmp_path: Path) -> Any:
    def make(generation: str) -> str:
        for path, content in json.loads(text(generation, "infiniband.json")).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(content)
        return str(tmp_path)

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


def test_without_a_driver_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(tools, "SYSTEM", (str(tmp_path),))
    monkeypatch.setattr(tools, "MORE", ())
    monkeypatch.setattr(gpus, "DEVICES", (str(tmp_path / "nvidia0"),))
    assert gpus.list_gpus(time.monotonic() + LONG_S) == []
    assert hardware.read_gpu_health(time.monotonic() + LONG_S) == []
    assert hardware.xids() == []
    assert read_rdma(str(tmp_path / "infiniband")) == []


PORTS = {
    "a100": {("MT4123", "ACTIVE", 200.0, "InfiniBand"), ("MT4123", "DOWN", 40.0, "Ethernet")},
    "h100": {("MT4129", "ACTIVE", 400.0, "Ethernet")},
    "gb200": {("MT4129", "ACTIVE", 400.0, "InfiniBand"), ("MT41692", "ACTIVE", 200.0, "Ethernet")},
}


@pytest.mark.parametrize("generation", WITH_RDMA)
def test_rdma_devices(generation: str, tree: Any) -> None:
    found = read_rdma(tree(generation))
    seen = {
        (device["model"], port["state"], port["rate_gbps"], port["link_layer"])
        for device in found
        for port in device["ports"]
    }
    assert seen == PORTS[generation]
    names = [device["name"] for device in found]
    assert names == sorted(names, key=lambda name: int(name.removeprefix("mlx5_")))


def test_gids_of_roce_keep_their_index_type_and_interface(tree: Any) -> None:
    (port,) = read_rdma(tree("h100"))[0]["ports"]
    kinds = {gid["index"]: (gid["type"], gid["interface"]) for gid in port["gids"]}
    assert kinds == {
        0: ("IB/RoCE v1", "rdma0"),
        1: ("RoCE v2", "rdma0"),
        2: ("IB/RoCE v1", "rdma0"),
        3: ("RoCE v2", "rdma0"),
    }


def test_gids_that_hold_no_address_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "mlx5_0/ports/1/gids").mkdir(parents=True)
    used = "fe80:0000:0000:0000:ba3f:d2ff:fe00:0001"
    for index, gid in enumerate((f"fe80{':0000' * 7}", ":".join(["0000"] * 8), used)):
        (tmp_path / f"mlx5_0/ports/1/gids/{index}").write_text(f"{gid}\n")
    ((port,),) = (device["ports"] for device in read_rdma(str(tmp_path)))
    assert [(gid["index"], gid["gid"]) for gid in port["gids"]] == [(2, used)]


def test_a_device_of_two_ports(tree: Any) -> None:
    device = next(one for one in read_rdma(tree("gb200")) if one["name"] == "mlx5_2")
    assert [port["number"] for port in device["ports"]] == [1, 2]


@pytest.mark.parametrize(
    ("generation", "acs"), [("a100", ["0000:01:00.0", "0000:02:04.0"]), ("h100", []), ("gb200", None)]
)
def test_acs_counts_on_bridges_alone_and_needs_root(generation: str, acs: list[str] | None) -> None:
    assert hardware.parse_acs(text(generation, "lspci.txt")) == acs


def machine(root: Path, devices: dict[str, tuple[str, str]], iommu: str | None = None) -> str:
    for address, (vendor, kind) in devices.items():
        folder = root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
        if iommu is not None:
            (folder / "iommu_group").mkdir()
            (folder / "iommu_group" / "type").write_text(f"{iommu}\n")
    return str(root)


def test_switches_modules_and_iommu_are_read_from_sys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "parse_service", lambda _told: "active")
    root = machine(
        tmp_path,
        {
            "0000:07:00.0": ("0x10de", "0x030200"),
            "0000:c4:00.0": ("0x10de", "0x068000"),
            "0000:c5:00.0": ("0x10de", "0x068000"),
            "0000:00:01.0": ("0x1022", "0x060400"),
        },
        iommu="DMA-FQ",
    )
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    assert hardware.read_pci(time.monotonic() + LONG_S, root) == {
        "nvswitches": 2,
        "fabric_manager": "active",
        "fabric_manager_version": None,
        "peermem": True,
        "dmabuf": None,
        "iommu": ["DMA-FQ"],
        "acs": None,
        "above": [],
    }


def test_the_bridges_above_gpus_are_told_apart_from_others(tmp_path: Path) -> None:
    root = machine(tmp_path, {"0000:41:00.0": ("0x10de", "0x030000"), "0000:61:00.0": ("0x10de", "0x030000")})
    for address, bridge in (("0000:41:00.0", "0000:40:01.1"), ("0000:61:00.0", "0000:60:01.1")):
        link, folder = (
            tmp_path / "sys/bus/pci/devices" / address,
            tmp_path / "sys/devices/pci0000:40" / bridge / address,
        )
        folder.parent.mkdir(parents=True)
        link.rename(folder)
        link.symlink_to(folder)
    assert hardware.read_pci(time.monotonic() + LONG_S, root)["above"] == ["0000:40:01.1", "0000:60:01.1"]


def test_the_fabric_manager_is_asked_for_before_a_bus_that_may_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def output(argv: list[str], _deadline: float) -> str:
        asked.append(argv[0])
        return "LoadState=loaded\nActiveState=failed\n"

    asked: list[str] = []
    monkeypatch.setattr(hardware, "output", output)
    root = machine(tmp_path, {"0000:07:00.0": ("0x10de", "0x030200"), "0000:c4:00.0": ("0x10de", "0x068000")})
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    assert hardware.read_pci(time.monotonic() + LONG_S, root)["fabric_manager"] == "failed"
    assert asked == ["systemctl", "nv-fabricmanager", "lspci"]


def test_the_fabric_managers_version_is_asked_for_where_it_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {
        "systemctl": "LoadState=loaded\nActiveState=failed\n",
        "nv-fabricmanager": "Fabric Manager version is : 550.54.15\n",
    }
    monkeypatch.setattr(hardware, "output", lambda argv, _deadline: told.get(argv[0], ""))
    root = machine(tmp_path, {"0000:07:00.0": ("0x10de", "0x030200"), "0000:c4:00.0": ("0x10de", "0x068000")})
    assert hardware.read_pci(time.monotonic() + LONG_S, root)["fabric_manager_version"] == "550.54.15"


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
    ]
    assert [(x["number"], x["bus_id"], x["age_s"]) for x in hardware.parse_xids(records, now)] == [
        (79, "0000:65:00", 60.0),
        (31, "0000:c1:00", 40.0),
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

    with tempfile.TemporaryDirectory() as folder:
        port = Path(folder) / "mlx5_0" / "ports" / "1"
        (port / "gids").mkdir(parents=True)
        for name, content in files.items():
            (port / name).write_text(content, encoding="utf-8", errors="replace")
        (device,) = read_rdma(folder)
        assert [one["number"] for one in device["ports"]] == [1]


def test_a_gpu_without_a_driver_is_told_with_what_is_there_for_one(tmp_path: Path) -> None:
    root = machine(tmp_path, {"0000:41:00.0": ("0x10de", "0x030200"), "0000:00:02.0": ("0x1a03", "0x030000")})
    for kernel, listed in (("6.8.0-40", "updates/dkms/nvidia.ko.zst:"), ("6.8.0-41", "kernel/drivers/net/veth.ko:")):
        (tmp_path / "lib/modules" / kernel).mkdir(parents=True)
        (tmp_path / "lib/modules" / kernel / "modules.dep").write_text(f"{listed}\n")
    place = tmp_path / "sys/bus/pci/devices/0000:41:00.0"
    for name, width, gts in (("current", "8", "2.5"), ("max", "16", "16.0")):
        (place / f"{name}_link_width").write_text(f"{width}\n")
        (place / f"{name}_link_speed").write_text(f"{gts} GT/s PCIe\n")
    told = hardware.read_gpu_driver(root)
    assert told is not None
    told.pop("smi")
    link = {"speed": 2.5, "width": 8, "max_speed": 16.0, "max_width": 16}
    assert told == {
        "gpus": [{"address": "0000:41:00.0", "vendor": "nvidia", "driver": None, "link": link}],
        "module": None,
        "built_for": ["6.8.0-40"],
        "nodes": {},
        "amdgpu": None,
    }


def test_a_gpu_with_its_driver_names_it_and_its_nodes(tmp_path: Path) -> None:
    root = machine(tmp_path, {"0000:c1:00.0": ("0x10de", "0x030000"), "0000:c2:00.0": ("0x1002", "0x120000")})
    (tmp_path / "sys/bus/pci/drivers/nvidia").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:c1:00.0/driver").symlink_to("../../drivers/nvidia")
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("570.86.15\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    (tmp_path / "dev/nvidiactl").mkdir()  # what exists and can't be opened for writing
    told = hardware.read_gpu_driver(root)
    assert told is not None
    assert [(gpu["vendor"], gpu["driver"]) for gpu in told["gpus"]] == [("nvidia", "nvidia"), ("amd", None)]
    assert (told["module"], told["built_for"]) == ("570.86.15", [])
    assert told["nodes"] == {"/dev/nvidia0": None, "/dev/nvidiactl": "EISDIR"}


def test_an_amd_gpu_tells_its_model_its_memory_and_its_driver(tmp_path: Path) -> None:
    root = machine(tmp_path, {"0000:05:00.0": ("0x1002", "0x120000"), "0000:15:00.0": ("0x1002", "0x120000")})
    first = tmp_path / "sys/bus/pci/devices/0000:05:00.0"
    for name, text in (
        ("device", "0x74A1"),
        ("product_name", "AMD Instinct MI300X OAM"),
        ("mem_info_vram_total", "206141652992"),
    ):
        (first / name).write_text(f"{text}\n")
    (tmp_path / "sys/bus/pci/devices/0000:15:00.0/device").write_text("?\n")
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    told = hardware.read_gpu_driver(root)
    assert told is not None
    shown = [(gpu["device"], gpu["name"], gpu["memory_mib"]) for gpu in told["gpus"]]
    assert shown == [("74a1", "AMD Instinct MI300X OAM", 196592), (None, None, None)]
    assert told["amdgpu"] == "the kernel's own"
    (tmp_path / "sys/module/amdgpu/version").write_text("6.12.12\n")
    assert (hardware.read_gpu_driver(root) or {})["amdgpu"] == "6.12.12"


def test_a_machine_without_a_gpu_has_no_driver_to_tell_of(tmp_path: Path) -> None:
    assert hardware.read_gpu_driver(machine(tmp_path, {"0000:00:01.0": ("0x1a03", "0x030000")})) is None
