from __future__ import annotations

import pytest

from nccl_doctor.nccl.versions import diagnosable, recorder

OLD = {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}
NEW = {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"}
BOTH = {"TORCH_NCCL_DUMP_ON_TIMEOUT"}


@pytest.mark.parametrize(
    ("version", "names"),
    [("2.13.0+cpu", NEW | BOTH), ("2.9.0", NEW | BOTH), ("2.8.0", OLD | BOTH), ("2.2.1", OLD | BOTH), ("2.1.2", set())],
)
def test_the_recorders_names_are_those_of_the_release(version: str, names: set[str]) -> None:
    assert set(recorder(version, "/tmp/x")) == names


def test_an_unknown_release_gets_both() -> None:
    assert set(recorder(None, "/tmp/x")) == OLD | NEW | BOTH


@pytest.mark.slow
def test_the_installed_torch_reads_each_of_them() -> None:
    """Its library holds the names; those of other parts of torch stand in libtorch_cuda, which the CPU build lacks."""
    from pathlib import Path

    import torch

    library = (Path(torch.__file__).parent / "lib" / "libtorch_cpu.so").read_bytes()
    assert all(name.encode() in library for name in set(recorder(torch.__version__, "x")) - BOTH)


def test_each_rank_has_files_of_its_own() -> None:
    made = diagnosable("2.13.0", "/tmp/train-1")
    assert made["TORCH_FR_DUMP_TEMP_FILE"] == "/tmp/train-1.trace_rank_"
    assert made["NCCL_DEBUG_FILE"] == "/tmp/train-1.nccl.%h.%p"
    assert made["NCCL_DEBUG"] == "INFO"
    assert made["PYTHONFAULTHANDLER"] == "1"
