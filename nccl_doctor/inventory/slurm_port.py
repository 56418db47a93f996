"""Finds the master port in a Slurm batch script that sets the port to a number or an expression with the job's ID."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

_VALUE = r"""(?P<value>"[^"\n]*"|'[^'\n]*'|\$\(\(.*?\)\)|\$\(.*\)|[^\s;&]+)"""
_SET = re.compile(rf"^[^#\n]*?\bMASTER_PORT={_VALUE}", re.MULTILINE)
_ID = re.compile(r"\$?\{?\bSLURM_JOB_?ID\b\}?")
_TAIL = re.compile(r"\$\(\s*echo\s+(?P<bare>-n\s+)?[\"']?(?P<id>[0-9]+)[\"']?\s*\|\s*tail\s+-c\s*(?P<count>[0-9])\s*\)")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}


def master_port(script: str, job: int) -> int | None:
    """Return the port that the script assigns last, or None if the script and the job's ID do not determine the port.

    Common batch scripts compute the port from the job's ID. Supported expressions include ``$((10000 + SLURM_JOB_ID %
    50000))`` and ``$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))``.
    """
    assigned = [match["value"] for match in _SET.finditer(script)]
    if not assigned:
        return None
    text = _ID.sub(str(job), assigned[-1].strip("\"'"))
    text = _TAIL.sub(_tail, text)
    for opening, closing in (("$((", "))"), ("$(expr ", ")")):
        if text.startswith(opening) and text.endswith(closing):
            text = text[len(opening) : -len(closing)]
    port = _value(text.replace("\\*", "*"))
    return port if port is not None and 1 <= port <= 65535 else None


def _tail(match: re.Match[str]) -> str:
    """Return the number that ``tail -c`` extracts from a job's ID.

    Without ``-n``, ``echo`` appends a newline, which ``tail -c`` also counts.
    """
    digits = int(match["count"]) - (match["bare"] is None)
    return str(int(match["id"][-digits:])) if digits > 0 else "0"


def _value(text: str) -> int | None:
    try:
        return _computed(ast.parse(text.replace("/", "//").strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _computed(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_computed(node.left), _computed(node.right))
    raise ValueError("more than arithmetic")
