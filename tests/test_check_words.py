"""The words and the ways with texts that ``scripts/check`` refuses."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "scripts" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_words, check_phrases = script("check_words"), script("check_phrases")


@pytest.mark.parametrize(
    "text",
    [
        "def told(): ...",
        "class WhatWasSeen: ...",
        "def read():\n    one = 1",
        "def read(people): return [own for own in people]",
        "def read(own): ...",
        "def read(*, taken_by=None): ...",
        "class Dial:\n    odd_ports: int",
        "class Dial:\n    def reset(self):\n        self.nobody_listens = True",
        'def read():\n    """What the host told."""',
        'class Dial:\n    """One connection."""',
        '"""Whether a port is free."""',
        'MESSAGE = "NCCL was not initialised."',
        'MESSAGE = "It ended with “No space left”."',
    ],
)
def test_a_word_that_says_nothing_is_refused(text: str) -> None:
    assert len(list(check_words.faults(Path("nccl_doctor/probe/x.py"), text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def read_rules():\n    rules = set()\n    first = 1",
        'def is_free():\n    """Tells whether a port is free."""',
        "def stone(phone): ...",
        "class Facts:\n    taken_at: float",  # JSON promises it
        'MESSAGE = "A precise promise: the exercise of disguising is organized."',
    ],
)
def test_others_are_not(text: str) -> None:
    assert list(check_words.faults(Path("nccl_doctor/probe/x.py"), text)) == []


def test_a_page_of_explain_may_begin_as_its_reader_asks() -> None:
    text = '"""Which host is slow."""'
    assert list(check_words.faults(Path("nccl_doctor/checks/ports/x.py"), text)) == []
    assert list(check_words.faults(Path("nccl_doctor/probe/x.py"), text)) != []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('report.hint.partition(": sudo ")', 1),
        ("any(x.startswith(WORDS) for x in y) or found.message.startswith(WORDS)", 1),
        ('"not tested" in check.reason', 1),
        ('subprocess.run([sys.executable, "-m", "nccl_doctor", "fix-port"])', 1),
        ('event.message.partition(" ")', 0),
        ('"reason" in document', 0),
        ("line.split()", 0),
    ],
)
def test_a_text_for_a_reader_is_no_interface(text: str, count: int) -> None:
    assert len(list(check_phrases.faults(Path("nccl_doctor/act/x.py"), text))) == count
