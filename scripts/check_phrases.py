"""Refuses our own texts as an interface: ``python scripts/check_phrases.py``, which ``scripts/check`` runs.

What a room needs to know of another's result is a field of its type. So the rooms that judge, act and print don't look
into texts that were made for a reader (a reason, a message, a command), nor start this program by ``python -m``, which
would run files of the current folder. Texts of others, such as a line of a log or of srun, are read as they have to be.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1] / "nccl_doctor"
ROOMS = ("act", "checks", "cli", "judge", "report")
FOR_READERS = frozenset({"advice", "command", "detail", "hint", "message", "note", "reason", "summary", "verdict"})
"""Attributes that hold a text of ours for a reader."""
OF_OTHERS = frozenset({"event", "first", "holder"})
"""Names of log events, whose ``message`` is the log's, and of processes, whose ``command`` is their own."""
LOOKS = frozenset(
    {"endswith", "find", "index", "partition", "removeprefix", "removesuffix", "rpartition", "split", "startswith"}
)
"""Methods of str that look for a phrase, or take a text apart."""


def faults(path: Path, text: str) -> Iterator[str]:
    """Yield a line for each place of a module that takes a text of ours apart, or starts ``python -m nccl_doctor``."""
    for node in ast.walk(ast.parse(text)):
        receiver: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS:
            receiver = node.func.value
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            literal = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
            receiver = node.comparators[0] if literal else None
        if isinstance(receiver, ast.Attribute) and receiver.attr in FOR_READERS and not _is_of_others(receiver.value):
            yield f"{path}:{node.lineno}: {ast.unparse(receiver)} is for a reader; what it says belongs in a field"
        if isinstance(node, ast.List | ast.Tuple):
            words = [word.value if isinstance(word, ast.Constant) else None for word in node.elts]
            if any(pair == ("-m", "nccl_doctor") for pair in pairwise(words)):
                yield f"{path}:{node.lineno}: python -m runs files of the current folder"


def _is_of_others(value: ast.expr) -> bool:
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return name in OF_OTHERS


def main() -> int:
    """Print every fault; return 1 if there is one."""
    found = [
        fault
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for fault in faults(path.relative_to(ROOT.parent), path.read_text(encoding="utf-8"))
    ]
    sys.stdout.write("".join(f"{fault}\n" for fault in found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
