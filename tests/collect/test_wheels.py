"""What goes along to hosts from a controller of another kind: a Mac's own psutil and py-spy, and the real wheels."""

from __future__ import annotations

import base64
import inspect
import os
import re
import subprocess
import time
import zipfile
import zlib
from pathlib import Path

import psutil
import pytest

from nccl_doctor.collect import psutil_bundle, py_spy_bundle, wheels
from tests.wheels import PACKAGES, fetch, found


@pytest.fixture(autouse=True)
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A controller with the files of macOS' wheels, and pip's own means of finding others; the folder of what it keeps."""
    here = fetch()
    for name in PACKAGES:
        (wheel,) = found(name, "macosx_11_0_arm64")
        zipfile.ZipFile(wheel).extractall(tmp_path)
    (own,) = tmp_path.glob("py_spy-*/scripts/py-spy")
    monkeypatch.setattr(psutil, "__file__", str(tmp_path / "psutil" / "__init__.py"))
    monkeypatch.setattr(py_spy_bundle, "own_program", lambda: own)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(here))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for module, name in ((psutil_bundle, "pack"), (py_spy_bundle, "pack"), (wheels, "files")):
        monkeypatch.setattr(module, name, inspect.unwrap(getattr(module, name)))  # nothing is known from before
    return tmp_path / "nccl-doctor"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_mac_sends_what_its_hosts_can_load(mac: Path, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        for bundle in (psutil_bundle.pack(machine, "glibc"), py_spy_bundle.pack(machine)):
            assert bundle["machine"] == machine
            data = bundle["data"] if "data" in bundle else bundle["files"][psutil_bundle.EXTENSION]
            assert psutil_bundle.built_for(zlib.decompress(base64.b64decode(data))) == (machine, "glibc")
            assert set(bundle.get("files", psutil_bundle.NAMES)) == set(psutil_bundle.NAMES)
        monkeypatch.setattr(subprocess, "run", None)  # from then on they are here
    assert len(list(mac.iterdir())) == 2


def test_what_pip_does_not_find_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    told = psutil_bundle.pack("aarch64", "glibc")["missing"]
    wanted = f"psutil {psutil.__version__} for Linux on aarch64 (glibc)"
    assert told == f"nccl-doctor's own does not fit aarch64 with glibc, and pip could not fetch {wanted}"
    monkeypatch.setattr(wheels, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", "/none")
    assert f"no pip is here to fetch {wanted}" in psutil_bundle.pack("aarch64", "glibc")["missing"]


def test_no_word_of_a_host_comes_near_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert "no psutil is known for " in psutil_bundle.pack("../../x --index-url=http://a", "glibc")["missing"]


def test_a_wheel_that_was_cut_short_is_told(mac: Path) -> None:
    mac.mkdir()
    (mac / f"psutil-{psutil.__version__}-cp36-abi3-manylinux2014_aarch64.whl").write_bytes(b"PK")
    assert "can't be read: File is not a zip file" in psutil_bundle.pack("aarch64", "glibc")["missing"]


def test_pip_has_half_of_what_is_left_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that never ends, in a run that ends in four seconds."""
    (tmp_path / "pip3").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "pip3").chmod(0o755)
    monkeypatch.setattr(wheels, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    told = psutil_bundle.pack("aarch64", "glibc", latest=time.monotonic() + 4)["missing"]
    assert re.search(r"pip did not fetch psutil \S+ for Linux on aarch64 \(glibc\) in [012] s$", told)
