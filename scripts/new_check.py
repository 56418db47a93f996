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

from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Finding, Fix, Severity


@check("NCD{code}", severity=Severity.ERROR, needs=())
def {function}(view: View) -> Findings:
    """Fires where …"""
    raise NotImplementedError
'''

IN_LOGS = '''"""One sentence: the fault.

What it means: what the user sees when the job starts.

How we know: which lines show it.

Fix: what to do.

References: where the wording stands in the program's source.
"""

from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD{code}", explains=("peer-died", "killed", "script-failed"))

ADVICE = make_advice("What is wrong on {{who}}.", "What to do there.")

RULES = (root(r"the wording: {name}", "n1:1:2 [0] the wording: {name}, in a line that holds it"),)

SIGNS = LogSigns(RULES, ADVICE)
'''


def main(category: str, name: str) -> None:
    """Write the file, and print what is left to do."""
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
    of_logs = category == "seen-in-logs"
    target.write_text((IN_LOGS if of_logs else SKELETON).format(code=code, function=stem, name=name))
    print(f"{target.relative_to(root)} is NCD{code}.")
    if of_logs:
        print(f"Its cases go to tests/logs/cases/{name}.log, and {name}-*.log beside it.")
    else:
        print(f"You write its fixtures: fires.json, quiet.json and unknown.json in tests/checks/{category}/{stem}.")


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) == 3 else main("", "")
