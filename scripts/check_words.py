"""Words that ``scripts/check`` refuses in names and docstrings: ``python scripts/check_words.py [PATH…]``.

In names of functions, classes, parameters and attributes: participles and pronouns, which don't say what a thing is.
In docstrings' first lines, those of fields and constants included: openings that are not a verb in the imperative or a
noun phrase. Local variables and parameters have no pronoun or participle as their whole name.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "nccl_doctor"
WORDS = frozenset({"told", "seen", "met", "said", "one", "nobody", "taken", "odd"})
LOCALS = WORDS | {"found", "own", "given", "its"}
PROMISED = frozenset({"seen", "not_seen", "taken_at", "told"})
"""Fields that JSON and snapshots promise to scripts: facts of hosts, what a look at a job missed, the time of a run,
what a rank's variables say."""
SCHEMA = json.loads((ROOT.parent / "tests" / "report" / "schema.json").read_text(encoding="utf-8"))
PUBLISHED = frozenset(SCHEMA["$defs"])
"""Classes whose docstrings are the descriptions of the JSON's schema, which is a promise."""
OPENINGS = ("What", "Why", "Where", "Whether", "Whom", "Who", "Which", "Of", "One", "All that", "The words", "The same")
OPENINGS_OF_FIELDS = (*OPENINGS, "How", "By", "So", "As", "From here", "Less than", "More than", "None", "Whose")


SPELLINGS = re.compile(r"[“”]|\b\w*(?:initial|util|recogn|summar|organ|synchron|normal|optim)is(?:e[sd]?|ing|ation)\b")
"""Spellings of which the text has another form everywhere: straight quotation marks, and -ize."""


def faults(path: Path, text: str) -> Iterator[str]:
    """Yield a line for each refused name, docstring opening and spelling in a module."""
    yield from _spellings(path, text)
    for node in ast.walk(ast.parse(text)):
        for name, line in _names(node):
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")
            for word in WORDS.intersection(words):
                yield f"{path}:{line}: {name}: a name says what a thing is or does; not “{word}”"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from (f"{path}:{line}: {name}: a variable's name is a noun" for name, line in _locals(node))
        if isinstance(node, ast.Module | ast.ClassDef):
            for docstring in _docstrings_of_fields(node):
                refused = [words for words in OPENINGS_OF_FIELDS if docstring.value.startswith(f"{words} ")]
                if refused:
                    yield f"{path}:{docstring.lineno}: a field's docstring names what it holds; not “{refused[0]} …”"
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            opening = " ".join((ast.get_docstring(node) or "").split(maxsplit=2)[:2])
            refused = [words for words in OPENINGS if f"{opening} ".startswith(f"{words} ")]
            if refused and not _is_for_users(node, path):
                line = getattr(node, "lineno", 1)
                yield f"{path}:{line}: a docstring says what is returned or done; not “{refused[0]} …”"


def _spellings(path: Path, text: str) -> Iterator[str]:
    """Yield a line for each spelling in a string that has another form everywhere else."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (match := SPELLINGS.search(node.value)):
            yield f"{path}:{node.lineno}: “{match[0]}”: write straight quotation marks, and -ize"


def _locals(function: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the refused names of variables and parameters in a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in LOCALS:
            yield node.id, node.lineno
        elif isinstance(node, ast.arg) and node.arg in LOCALS:
            yield node.arg, node.lineno


def _docstrings_of_fields(node: ast.Module | ast.ClassDef) -> Iterator[ast.Constant]:
    """Yield the strings that stand behind assignments in a module or class."""
    for assignment, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(assignment, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
            value = after.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def _is_for_users(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, path: Path) -> bool:
    """Tell whether a docstring is a page of ``explain``, a description in the JSON's schema, or a command's help."""
    if isinstance(node, ast.Module):
        return "checks" in path.parts
    is_command = any(ast.unparse(decorator) == "flattened" for decorator in node.decorator_list)
    return is_command or node.name in PUBLISHED


def _names(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Names that a node gives to a function, a class, its parameters and its attributes."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name, node.lineno
        given = node.args
        named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        for argument in named:
            if argument is not None:
                yield argument.arg, argument.lineno
    elif isinstance(node, ast.ClassDef):
        yield node.name, node.lineno
        for statement in node.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            named = (target for target in targets if isinstance(target, ast.Name) and target.id not in PROMISED)
            yield from ((target.id, target.lineno) for target in named)
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr, node.lineno


def main() -> None:
    """Print what is refused, and exit 1 if there is any."""
    roots = [Path(argument) for argument in sys.argv[1:]] or [ROOT]
    files = sorted(file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py")))
    found = [line for file in files for line in faults(file, file.read_text(encoding="utf-8"))]
    sys.stdout.write("".join(f"{line}\n" for line in found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
