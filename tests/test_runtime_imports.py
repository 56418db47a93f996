"""Imports at run time, which import-linter does not see: each has its reason, and none leads up a floor but these."""

from __future__ import annotations

import ast
from pathlib import Path

import nccl_doctor

ROOT = Path(nccl_doctor.__file__).parent
REASONS = {
    "__init__.py": "the public functions, which a command line does not load",
    "cli/main.py": "the table of commands",
    "cli/hang.py": "the judge, loaded while hosts are awaited",
    "report/render.py": "the table of forms",
    "model/register.py": "the walk over checks/",
    "logs/signs.py": "the walk over checks/",
    "probe/main.py": "the handlers of requests, of the probe's own package",
    "probe/facts/__init__.py": "the collectors, of the probe's own package",
}


NAMES = ("import_module", "__import__", "spec_from_file_location", "run_module", "run_path")


def imports_at_run_time(path: Path) -> bool:
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return bool(names.union(node.attr for node in nodes if isinstance(node, ast.Attribute)).intersection(NAMES))


def test_each_import_at_run_time_has_a_reason() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if imports_at_run_time(path)}
    assert found == REASONS.keys()
