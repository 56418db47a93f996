from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nccl_doctor
from nccl_doctor.collect import psutil_bundle
from nccl_doctor.probe import psutil_memory
from nccl_doctor.probe.unavailable import Unavailable

BARE = [sys.executable, "-I", "-S", "-c"]
"""An interpreter that sees the standard library alone, as a host without psutil has it."""
PRELUDE = f"""
import json, os, sys
sys.path.insert(0, {str(Path(nccl_doctor.__file__).parent.parent)!r})
from nccl_doctor.probe import psutil_memory
"""
USE = """
psutil_memory.install(json.load(sys.stdin))
psutil_memory.require()
import psutil
told = [psutil.__version__, sorted(psutil.net_if_addrs()), psutil.Process().ppid()]
assert isinstance(psutil.net_connections(kind="tcp"), list)
assert "loopback" in psutil.net_if_stats()["lo"].flags
print(json.dumps(told))
"""


def run_bare(code: str, bundle: dict[str, Any]) -> str:
    argv = [*BARE, PRELUDE + code]
    done = subprocess.run(argv, input=json.dumps(bundle), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("before", ["", "del os.memfd_create\n"], ids=["memfd_create", "by number"])
def test_an_interpreter_without_psutil_gets_ours_from_memory(before: str) -> None:
    import psutil

    version, interfaces, parent = json.loads(
        run_bare(before + USE, psutil_bundle.pack(os.uname().machine, psutil_memory.libc()))
    )
    assert version == psutil.__version__
    assert interfaces == sorted(psutil.net_if_addrs())
    assert parent == os.getpid()


def test_one_that_is_too_old_is_replaced() -> None:
    old = "import types; sys.modules['psutil'] = types.ModuleType('psutil')\n"
    old += "sys.modules['psutil'].version_info = (5, 8, 0)\n"
    assert json.loads(run_bare(old + USE, psutil_bundle.pack(os.uname().machine, psutil_memory.libc())))


def test_an_extension_that_does_not_load_leaves_the_reason() -> None:
    code = """
bundle = json.load(sys.stdin)
for attempt in (lambda: psutil_memory.install(bundle), psutil_memory.require):
    try:
        attempt()
    except psutil_memory.Unavailable as error:
        print(error)
"""
    bundle = psutil_bundle.pack(os.uname().machine, psutil_memory.libc())
    broken = {**bundle, "files": {**bundle["files"], psutil_bundle.EXTENSION: psutil_bundle._packed(b"no ELF")}}
    first, second = run_bare(code, broken).splitlines()
    assert first.startswith("psutil is not installed on the host, and the one sent along can't be loaded from memory: ")
    assert second == first


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"machine": "s390x"}, f"is for s390x, the host is {os.uname().machine}"),
        ({"libc": "bsd"}, "is for bsd, the host has "),
        (
            {"missing": "there is none"},
            "psutil is not installed on the host, and there is none",
        ),
    ],
)
def test_one_for_another_machine_is_refused_with_the_reason(
    change: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil_memory, "_version", lambda: None)
    monkeypatch.setattr(psutil_memory, "_problem", None)
    with pytest.raises(Unavailable, match="psutil is not installed on the host") as told:
        psutil_memory.install({**psutil_bundle.pack(os.uname().machine, psutil_memory.libc()), **change})
    assert reason in str(told.value)


def test_the_hosts_own_stays_where_it_serves() -> None:
    import psutil

    psutil_memory.install({"missing": "never looked at"})
    psutil_memory.require()
    assert sys.modules["psutil"] is psutil


def test_one_too_old_without_a_bundle_is_told_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil_memory, "_version", lambda: (5, 8, 0))
    with pytest.raises(Unavailable, match=r"the host's psutil 5\.8\.0 is older than 5\.9\.3"):
        psutil_memory.require()


def test_a_refusal_of_the_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil_memory, "MEMFD_CREATE", {os.uname().machine: 0xFFFF})
    with pytest.raises(OSError, match="Function not implemented"):
        psutil_memory._memfd_by_number()
