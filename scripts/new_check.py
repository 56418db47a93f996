"""Writes the skeleton of a check: ``new_check.py CATEGORY NAME``, the name in kebab-case."""

import re
import sys
from pathlib import Path

FIRST = {
    "access": 101,
    "interfaces": 201,
    "ports": 301,
    "rdma": 401,
    "software": 501,
    "processes": 601,
    "allreduce": 701,
    "environment": 801,
    "seen-in-logs": 901,
}

SKELETON = '''"""One sentence: the fault.

What it means: what the user sees when the job starts.

How we know: which facts show it.

Fix: what to do.
"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.registry import Unjudged, View, check
from nccl_doctor.model import Finding, Fix, Severity


@check("NCD{code}", severity=Severity.ERROR, needs=())
def {function}(view: View) -> Iterator[Finding | Unjudged]:
    """When it fires."""
    raise NotImplementedError
'''


def main(category: str, name: str) -> None:
    """Writes the file, and says what is left to do."""
    if category not in FIRST or not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        sys.exit(f"usage: scripts/new-check {{{','.join(FIRST)}}} NAME-IN-KEBAB-CASE")
    root = Path(__file__).parents[1]
    package = root / "nccl_doctor" / "checks"
    taken = {int(code) for file in package.rglob("*.py") for code in re.findall(r'"NCD(\d{3})"', file.read_text())}
    code = next(code for code in range(FIRST[category], FIRST[category] + 99) if code not in taken)
    stem = name.replace("-", "_")
    target = package / category.replace("-", "_") / f"{stem}.py"
    if target.exists():
        sys.exit(f"{target.relative_to(root)} is there already")
    target.write_text(SKELETON.format(code=code, function=stem))
    fixtures = root / "tests" / "checks" / category.replace("-", "_") / stem
    fixtures.mkdir(parents=True, exist_ok=True)
    print(f"{target.relative_to(root)} is NCD{code}.")
    print(f"Its fixtures go to {fixtures.relative_to(root)}: fires.json, quiet.json, unknown.json.")


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) == 3 else main("", "")
