"""A machine that can't hold a lab is told what it lacks; no test is skipped for it."""

import shutil

import pytest

from tests.lab.cluster import Lab, MakeLab
from tests.lab.errors import LabError
from tests.lab.requirements import PACKAGES, find_tool


def test_lab_without_root_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root"):
        Lab.up()


def test_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    found = shutil.which
    monkeypatch.setattr("shutil.which", lambda tool, path: None if tool == "sshd" else found("sh", path=path))
    with pytest.raises(LabError, match="program 'sshd': install the package 'openssh-server'"):
        Lab.up()


@pytest.mark.parametrize("tool", sorted(PACKAGES))
def test_every_tool_has_a_package(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(LabError, match=f"install the package '{PACKAGES[tool]}'"):
        find_tool(tool)


def test_fixture_fails_in_that_sentence(make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(pytest.fail.Exception, match=r"^The lab needs root for network namespaces"):
        make_lab()
