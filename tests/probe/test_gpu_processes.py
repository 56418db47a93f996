from __future__ import annotations

import pytest

from nccl_doctor.probe import gpus
from nccl_doctor.probe.gpus import parse_gpu_processes
from nccl_doctor.probe.tools import Unavailable


def test_rows_are_read_with_the_index_of_each_gpu() -> None:
    text = "GPU-aa, 48112, 21074\nGPU-bb, 48113, [N/A]\nGPU-cc, 48114, 12\n"
    numbers = "0, GPU-aa\n1, GPU-bb\n"
    assert parse_gpu_processes(text, numbers) == [
        {"pid": 48112, "gpu": 0, "uuid": "GPU-aa", "memory_mib": 21074},
        {"pid": 48113, "gpu": 1, "uuid": "GPU-bb", "memory_mib": None},
        {"pid": 48114, "gpu": None, "uuid": "GPU-cc", "memory_mib": 12},
    ]


@pytest.mark.parametrize("text", ["", "\n", "No running processes found\n", "No devices were found\n"])
def test_no_processes_are_none(text: str) -> None:
    assert parse_gpu_processes(text) == []


def test_what_is_no_row_is_said() -> None:
    with pytest.raises(Unavailable, match="Failed to initialize NVML"):
        parse_gpu_processes("Failed to initialize NVML: Driver/library version mismatch\n")


def test_work_and_power_are_read_where_a_gpu_tells_both(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "NVIDIA GB10, 96, 12.34, [N/A]\nNVIDIA L4, PCIe, 100, 31.50, 72.00\nNo devices were found\n"
    monkeypatch.setattr(gpus, "query", lambda *_: text)
    assert gpus.work(0.0) == [{"name": "NVIDIA L4, PCIe", "busy": 100.0, "power_w": 31.5, "limit_w": 72.0}]
