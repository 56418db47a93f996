from __future__ import annotations

from pathlib import Path

import pytest

from nccl_doctor.probe.facts import sysctls


def test_this_kernel_tells_of_all_and_of_each_interface() -> None:
    found = sysctls.collect()
    for interface in ("all", "default", "lo"):
        for key in sysctls.KEYS:
            assert found[f"net.ipv4.conf.{interface}.{key}"].isdigit()


def test_an_interface_that_goes_away_meanwhile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("all", "gone"):
        (tmp_path / name).mkdir()
    for key in sysctls.KEYS:
        (tmp_path / "all" / key).write_text("1\n")
    monkeypatch.setattr(sysctls, "ROOT", str(tmp_path))
    monkeypatch.setattr(sysctls, "NEIGHBOURS", str(tmp_path / "none"))
    assert sysctls.collect() == {f"net.ipv4.conf.all.{key}": "1" for key in sysctls.KEYS}
