from __future__ import annotations

import os
from pathlib import Path

import pytest

from nccl_doctor.probe.hang import watch


@pytest.mark.parametrize("how", ["memfd_create", "by number"])
def test_it_holds_what_was_written_and_is_nowhere_on_disk(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "by number":
        monkeypatch.delattr(os, "memfd_create")
    data = os.urandom(100_000)
    file = watch.write_memory_file(data)
    try:
        assert os.pread(file, len(data) + 1, 0) == data
        assert str(Path(f"/proc/self/fd/{file}").readlink()).startswith("/memfd:py-spy")
        assert not os.get_inheritable(file)
    finally:
        os.close(file)


def test_a_refusal_of_the_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(watch, "MEMFD_CREATE", {os.uname().machine: 0xFFFF})
    with pytest.raises(OSError, match="Function not implemented"):
        watch.write_memory_file(b"x")
