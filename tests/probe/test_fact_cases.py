"""Facts of made-up machines: ``facts/FACT/CASE.json`` has files below the root, programs' output, and the fact's JSON.

A file's text is a string; ``null`` stands for a folder, and ``{"link": …}`` for a symbolic link. Of a JSON object, only
the named keys are compared; ``unavailable`` is a pattern of the reason if the fact can't be determined.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.probe import facts, tools
from tests.patience import LONG_S
from tests.probe.machine import build

CASES = sorted((Path(__file__).parent / "facts").glob("*/*.json"))


def install(folder: Path, programs: dict[str, str]) -> None:
    for name, printed in programs.items():
        (folder / name).write_text(f"#!/bin/sh\nprintf %s {shlex.quote(printed)}\n")
        (folder / name).chmod(0o755)


def part_of(expected: Any, found: Any) -> Any:
    """Return ``found`` without the keys that ``expected`` leaves out."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return {name: part_of(value, found.get(name, "missing")) for name, value in expected.items()}
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [part_of(*pair) for pair in zip(expected, found, strict=True)]
    return found


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_fact_of_a_made_up_machine(
    path: Path, root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert facts, "importing the package registers the collectors"
    case = json.loads(path.read_text())
    build(root, case.get("root", {}))
    programs = tmp_path_factory.mktemp("programs")
    install(programs, case.get("programs", {}))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for name, value in case.get("environ", {}).items():
        monkeypatch.setenv(name, value)
    collector = tools.COLLECTORS[path.parent.name]
    arguments = {"deadline": time.monotonic() + LONG_S} if "deadline" in inspect.signature(collector).parameters else {}
    if "unavailable" in case:
        with pytest.raises(tools.Unavailable) as error:
            collector(**arguments)
        assert re.search(case["unavailable"], str(error.value))
        return
    found = json.loads(json.dumps(collector(**arguments)))
    assert part_of(case["expected"], found) == case["expected"]
