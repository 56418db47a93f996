"""The words that ``scripts/check`` refuses."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_words.py"
SPEC = importlib.util.spec_from_file_location("check_words", SCRIPT)
assert SPEC
assert SPEC.loader
check_words = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_words)


@pytest.mark.parametrize(
    "text",
    [
        "def told(): ...",
        "class WhatWasSeen: ...",
        "def read(one): ...",
        "def read(*, taken_by=None): ...",
        "class Dial:\n    odd_ports: int",
        "class Dial:\n    def reset(self):\n        self.nobody_listens = True",
        'def read():\n    """What the host told."""',
        'class Dial:\n    """One connection."""',
        '"""Whether a port is free."""',
    ],
)
def test_a_word_that_says_nothing_is_refused(text: str) -> None:
    assert len(list(check_words.faults(Path("nccl_doctor/probe/x.py"), text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def read_rules():\n    seen = set()\n    one = 1",
        'def is_free():\n    """Tells whether a port is free."""',
        "def stone(phone): ...",
        "class Facts:\n    taken_at: float",  # JSON promises it
    ],
)
def test_others_are_not(text: str) -> None:
    assert list(check_words.faults(Path("nccl_doctor/probe/x.py"), text)) == []


def test_a_page_of_explain_may_begin_as_its_reader_asks() -> None:
    text = '"""Which host is slow."""'
    assert list(check_words.faults(Path("nccl_doctor/checks/ports/x.py"), text)) == []
    assert list(check_words.faults(Path("nccl_doctor/probe/x.py"), text)) != []
