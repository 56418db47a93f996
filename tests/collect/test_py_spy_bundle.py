"""The py-spy that goes along to a host: the controller's own where it runs there, and nothing is fetched."""

from __future__ import annotations

import base64
import inspect
import os
import zlib
from pathlib import Path

import pytest

from nccl_doctor.collect.hang import hang


@pytest.fixture(autouse=True)
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a pip.py in it that leaves this file when it runs."""
    (tmp_path / "pip.py").write_text(f"open({os.fspath(tmp_path / 'canary')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hang, "pack", inspect.unwrap(hang.pack))  # nothing is known from before
    return tmp_path / "canary"


def test_a_host_of_the_same_machine_gets_our_own() -> None:
    own = hang.own_program()
    assert own is not None
    bundle = hang.pack(os.uname().machine)
    assert bundle["machine"] == os.uname().machine
    assert zlib.decompress(base64.b64decode(bundle["data"])) == own.read_bytes()


@pytest.mark.parametrize("machine", ["riscv64", "ppc64le", "s390x", "../../x --index-url=http://a"])
def test_no_word_of_a_host_has_anything_fetched_or_run(machine: str, canary: Path) -> None:
    told = hang.pack(machine)
    assert not canary.exists()
    assert told == {
        "missing": f"nccl-doctor's own is for {os.uname().machine}; to have stacks there, install py-spy on that host, "
        "in root's PATH"
    }


def test_that_of_a_mac_serves_no_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "py-spy").write_bytes(b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01" + bytes(100))
    monkeypatch.setattr(hang, "own_program", lambda: tmp_path / "py-spy")
    told = hang.pack(os.uname().machine)["missing"]
    assert told.startswith("nccl-doctor's own is for another system than Linux; to have stacks there, ")


@pytest.mark.parametrize("program", [None, Path("/none/py-spy")])
def test_without_one_of_our_own_there_is_none(program: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang, "own_program", lambda: program)
    assert hang.pack(os.uname().machine) == {"missing": "nccl-doctor's own py-spy has no program to send along"}


@pytest.mark.parametrize(("number", "machine"), [(62, "x86_64"), (183, "aarch64"), (8, "ELF machine 8")])
def test_a_program_tells_its_machine(number: int, machine: str) -> None:
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + number.to_bytes(2, "little")
    assert hang.built_for(header + bytes(44)) == machine


def test_a_program_cut_short_is_for_no_machine() -> None:
    assert hang.built_for(b"\x7fELF") == "ELF machine 0"
