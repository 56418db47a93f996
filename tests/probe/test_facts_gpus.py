from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.probe import gpus, tools
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
    }


@pytest.mark.parametrize("word", ["[N/A]", "[Not Supported]", "[Insufficient Permissions]", "[GPU requires reset]"])
def test_memory_that_is_not_told_is_none(word: str) -> None:
    assert gpus.parse_gpus(A100.replace("22631", word))[0]["memory_used_mib"] is None


def test_a_comma_in_the_name_belongs_to_it() -> None:
    assert gpus.parse_gpus(A100.replace("A100-SXM4", "A100, SXM4"))[0]["name"] == "NVIDIA A100, SXM4-80GB"


def test_no_devices_are_no_gpus() -> None:
    assert gpus.parse_gpus("No devices were found\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error",
        A100[:40],
        A100.replace("81920", "81920 MiB"),
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
    with pytest.raises(Unavailable, match=r"nvidia-smi is not there, though .*nvidia0 is"):
        gpus.list_gpus(soon())
