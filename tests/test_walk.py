"""The walk through the code, in the package's docstring, leads somewhere at each step."""

from __future__ import annotations

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


def test_the_glossary_is_short() -> None:
    words = re.findall(r"(?:^- |[;.] )([a-z]+(?:, [a-z]+)?): ", GLOSSARY, flags=re.MULTILINE)
    assert 15 < len(words) <= 25
