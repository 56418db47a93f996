"""Draw 200 sentences at random for a reader who does not know the project: ``python scripts/sentences.py SEED``.

100 of docstrings, 60 messages of checks, 40 of pages, topics, README and help. Mark each that is unclear or unidiomatic
by itself; more than six are too many.
"""

from __future__ import annotations

import ast
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "nccl_doctor"
NUMBERS = {"docstrings": 100, "messages": 60, "pages": 40}
LEAST_WORDS = 4
COMMANDS = "check fix hang logs smoke ifname launch fix-port hosts diff explain codes mcp schema"


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, without those of a few words; each attribute or list item starts one."""
    blocks = re.split(
        r"\n\s*\n|\n\s*(?=[-*] |\d+\. |\w+: )",
        re.sub(r"^ *(Attributes|Returns|Raises|Yields):$", "", text, flags=re.MULTILINE),
    )
    parts = (
        part
        for block in blocks
        for part in re.split(r"(?<=[.!?:;])\s+(?=[A-Z`\"])", re.sub(r"\s+", " ", block).strip())
    )
    return [part for part in parts if len(part.split()) >= LEAST_WORDS]


def docstrings(path: Path) -> Iterator[tuple[int, bool, str]]:
    """Yield the line of each docstring of a module, whether it is the module's, and its text."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    yield statement.lineno, node is tree and statement is tree.body[0], text


def helps() -> Iterator[tuple[str, str]]:
    """Yield each line of every command's help."""
    environment = {**os.environ, "COLUMNS": "300"}
    for command in COMMANDS.split():
        call = [sys.executable, "-m", "nccl_doctor", command, "--help"]
        shown = subprocess.run(call, env=environment, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        yield from ((f"{command} --help", re.sub(r"\s+", " ", line)) for line in shown.splitlines())


def pools() -> dict[str, list[tuple[str, str]]]:
    """Return all sentences with their places, by kind."""
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in NUMBERS}
    for path in sorted(PACKAGE.rglob("*.py")):
        is_check = path.parts[len(PACKAGE.parts)] == "checks" and path.parent.name != "checks"
        for line, is_module, text in docstrings(path):
            kind = "pages" if is_check and is_module else "docstrings"
            found[kind] += [(f"{path.relative_to(ROOT)}:{line}", sentence) for sentence in sentences(text)]
    register = (ROOT / "tests/checks/messages.txt").read_text()
    said = dict.fromkeys(line.strip() for line in register.splitlines() if line.startswith("    "))
    found["messages"] = [("messages.txt", line) for line in said]
    for path in (*sorted(PACKAGE.rglob("topics/*.md")), ROOT / "README.md"):
        prose = re.sub(r"```.*?```|^\|.*?$|^#.*?$|<!--.*?-->", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        found["pages"] += [(str(path.relative_to(ROOT)), sentence) for sentence in sentences(prose)]
    found["pages"] += [(place, line) for place, line in helps() if len(line.split()) > LEAST_WORDS]
    return found


if __name__ == "__main__":
    drawn = random.Random(sys.argv[1])  # noqa: S311 - a sample, no secret
    for kind, pool in pools().items():
        for number, (place, sentence) in enumerate(drawn.sample(pool, NUMBERS[kind]), 1):
            print(f"{kind} {number} ({place}): {sentence}")
