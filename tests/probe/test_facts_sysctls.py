from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from nccl_doctor.probe.facts import host as neighbours
from nccl_doctor.probe.facts import host as sysctls


def test_this_kernel_tells_of_all_and_of_each_interface() -> None:
    found = sysctls.read_sysctls()
    for interface in ("all", "default", "lo"):
        for key in sysctls.KEYS:
            assert found[f"net.ipv4.conf.{interface}.{key}"].isdigit()


def test_the_limits_of_the_neighbour_table_are_those_of_the_files() -> None:
    """The files are the machine's own; in every other network namespace the kernel tells the same limits."""
    names = [f"net.ipv4.neigh.default.gc_thresh{number}" for number in (1, 2, 3)]
    shown = [Path("/proc/sys", *name.split(".")).read_text().strip() for name in names]
    elsewhere = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", f"from {neighbours.__name__} import *; print(thresholds())"],
        check=True,
        capture_output=True,
        text=True,
    )
    for told in (sysctls.read_sysctls(), ast.literal_eval(elsewhere.stdout)):
        assert [told[name] for name in names] == shown


def test_an_interface_that_goes_away_meanwhile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("all", "gone"):
        (tmp_path / name).mkdir()
    for key in sysctls.KEYS:
        (tmp_path / "all" / key).write_text("1\n")
    monkeypatch.setattr(sysctls, "ROOT", str(tmp_path))
    monkeypatch.setattr(neighbours, "thresholds", dict)
    monkeypatch.setattr(sysctls, "TTL", str(tmp_path / "absent"))
    assert sysctls.read_sysctls() == {f"net.ipv4.conf.all.{key}": "1" for key in sysctls.KEYS}
