from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.probe import gpus, tools
from nccl_doctor.probe.facts import hardware
from nccl_doctor.probe.tools import Unavailable
from tests.patience import LONG_S

A100 = "0, NVIDIA A100-SXM4-80GB, GPU-2b5a7c0e-5f0d-0f1c-9d6e-1a2b3c4d5e6f, 81920, 22631, 550.54.15"


def test_a_row_is_a_gpu() -> None:
    (found,) = gpus.parse_gpus(A100 + "\n")
    assert found == {
        "index": 0,
        "name": "NVIDIA A100-SXM4-80GB",
        "uuid": "GPU-2b5a7c0e-5f0d-0f1c-9d6e-1a2b3c4d5e6f",
        "memory_total_mib": 81920,
        "memory_used_mib": 22631,
        "driver": "550.54.15",
        "fault": None,
    }


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("[N/A]", None),
        ("[Not Supported]", None),
        ("[Insufficient Permissions]", None),
        ("[GPU requires reset]", "GPU requires reset"),
        ("[Unknown Error]", "Unknown Error"),
        ("ERR!", "ERR!"),
        ("81920 MiB", None),
    ],
)
def test_memory_that_is_not_told_is_none_and_words_of_the_gpu_are_kept(word: str, fault: str | None) -> None:
    (found,) = gpus.parse_gpus(A100.replace("22631", word))
    assert (found["memory_used_mib"], found["fault"], found["driver"]) == (None, fault, "550.54.15")


@pytest.mark.parametrize("word", ["[GPU is lost]", "[GPU requires reset]"])
def test_a_gpu_that_is_lost_keeps_its_place_among_the_others(word: str) -> None:
    lost = ", ".join([word] * 6)
    first, second = gpus.parse_gpus(f"{A100}\n{lost}\n")
    assert (first["fault"], second["index"], second["fault"]) == (None, 1, word.strip("[]"))
    assert second["driver"] == "550.54.15"


@pytest.mark.parametrize(
    "row",
    [
        "0, Orin (nvgpu), 54d0709b-3d6e-5a1c-8a4e-3f1f6a7f0c11, [N/A], [N/A], 540.4.0",
        "0, NVIDIA Thor, GPU-54d0709b-3d6e-5a1c-8a4e-3f1f6a7f0c11, [N/A], [N/A], 580.00",
        "0, NVIDIA GB10, GPU-2b5a7c0e-5f0d-0f1c-9d6e-1a2b3c4d5e6f, [N/A], [N/A], 580.95.05",
    ],
)
def test_a_gpu_that_shares_the_host_s_memory_is_a_gpu(row: str) -> None:
    (found,) = gpus.parse_gpus(row)
    assert (found["memory_total_mib"], found["fault"]) == (None, None)


def test_what_is_said_behind_the_rows_takes_none_of_them() -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0000:41:00.0"
    assert len(gpus.parse_gpus(f"{A100}\n{warning}\n")) == 1
    health = hardware.parse_gpu_health(
        f"0, 00000000:41:00.0\n{warning.replace('0000:', '00000000:')}\n", ("index", "pci.bus_id")
    )
    assert [gpu["warning"] for gpu in health] == ["inforom is corrupted"]


def test_a_comma_in_the_name_belongs_to_it() -> None:
    assert gpus.parse_gpus(A100.replace("A100-SXM4", "A100, SXM4"))[0]["name"] == "NVIDIA A100, SXM4-80GB"


def test_no_devices_are_no_gpus() -> None:
    assert gpus.parse_gpus("No devices were found\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error",
        A100[:40],
        A100.replace("0, NV", "erste, NV"),
        "index, name, uuid, memory.total [MiB], memory.used [MiB], driver_version",
    ],
)
def test_anything_else_is_told_by_its_line(line: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        gpus.parse_gpus(f"{A100}\n{line}\n")


@given(st.text() | st.text(alphabet="0123, []GPU-NA/\n"))
def test_no_output_breaks_the_parser(text: str) -> None:
    said = ""
    try:
        assert len(gpus.parse_gpus(text)) <= len(text.splitlines())
    except ValueError as error:
        said = str(error)
    assert said in text


def fake(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(tools, "SYSTEM", (str(folder), *tools.SYSTEM))


def soon() -> float:
    return time.monotonic() + LONG_S


def test_the_program_is_asked_where_path_lacks_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(monkeypatch, tmp_path, f'[ "$LC_ALL" = C ] && echo "{A100}"')
    assert [gpu["index"] for gpu in gpus.list_gpus(soon())] == [0]


def test_a_driver_that_answers_no_devices_has_no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(monkeypatch, tmp_path, "echo No devices were found; exit 6")
    assert gpus.list_gpus(soon()) == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
            "nvidia-smi ended with 18: Failed to initialize NVML: Driver/library version mismatch",
        ),
        ("echo ERR!", "nvidia-smi said: ERR!"),
    ],
)
def test_a_failure_is_told_in_its_own_words(
    script: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake(monkeypatch, tmp_path, script)
    with pytest.raises(Unavailable) as told:
        gpus.list_gpus(soon())
    assert str(told.value) == reason


def test_one_that_hangs_is_ended_at_the_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(monkeypatch, tmp_path, "exec sleep 60")
    with pytest.raises(Unavailable, match="gave no answer in time"):
        gpus.list_gpus(time.monotonic() + 0.2)


def test_a_device_without_the_program_is_unknown_and_nothing_at_all_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(tools, "SYSTEM", ())
    monkeypatch.setattr(tools, "MORE", (str(tmp_path),))
    monkeypatch.setattr(gpus, "DEVICES", (str(tmp_path / "nvidia0"),))
    assert gpus.list_gpus(soon()) == []
    (tmp_path / "nvidia0").touch()
    with pytest.raises(Unavailable, match=r"nvidia-smi is not installed, although the host has .*nvidia0$"):
        gpus.list_gpus(soon())
