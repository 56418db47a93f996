"""The walk through the code, in the package's docstring, leads somewhere at each step."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nccl_doctor

PACKAGE = Path(nccl_doctor.__file__).parent
WALK, _, GLOSSARY = (nccl_doctor.__doc__ or "").partition("Glossary:")


def test_every_file_of_the_walk_is_there() -> None:
    places = re.findall(r"[a-z_]+(?:/[a-z_]+)*(?:\.py|/(?= ))", WALK)
    assert len(places) > 20
    assert [place for place in places if not (PACKAGE / place).exists()] == []


def test_every_name_of_the_walk_is_defined() -> None:
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    names = re.findall(r"``(\w+)``", WALK)
    assert len(names) > 5
    assert [name for name in names if not re.search(rf"(class|def) {name}\b", sources)] == []


def test_every_word_of_the_glossary_is_one_of_the_code_and_they_are_few() -> None:
    lines = re.findall(r"^- (.*?)(?=^- |\Z)", GLOSSARY, flags=re.MULTILINE | re.DOTALL)
    entries = [re.match(r"[a-z, ]+(?=: )", part) for line in lines for part in re.split(r"[;.] (?=[a-z, ]+: )", line)]
    words = [word for entry in entries for word in (entry.group() if entry else "not an entry").split(", ")]
    sources = [path.read_text() for path in PACKAGE.rglob("*.py")]
    names = {
        name for source in sources for name in re.findall(r"(?:def|class) (\w+)|^    (\w+): ", source, re.MULTILINE)
    }
    used = {part.lower() for pair in names for name in pair for part in re.findall(r"[A-Z]?[a-z]+", name)}
    assert [word for word in words if not used & {word, f"{word}s"}] == []
    assert len(words) <= 25


def types_of(path: Path) -> set[str]:
    """The public classes and aliases of types that a module defines; type variables may be alike."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.add(node.targets[0].id)
    return {name for name in found if re.fullmatch(r"[A-Z][A-Za-z]*[a-z][A-Za-z]*", name)}


def test_a_type_name_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in types_of(path):
            places.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert len(places) > 700
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}
