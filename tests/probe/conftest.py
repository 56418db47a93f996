from __future__ import annotations

from pathlib import Path

import pytest

from nccl_doctor.probe import tools
from nccl_doctor.probe.facts import hardware


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a made-up machine: a new folder."""
    monkeypatch.setattr(tools, "ROOT", str(tmp_path))
    hardware._pci_devices.cache_clear()
    return tmp_path
