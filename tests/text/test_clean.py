from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.text.shell import clean, pasteable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, 日本語 and é", "plain, 日本語 and é"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1b]0;a new title\x07rest", "]0;a new titlerest"),
        ("\x1b\x1b[0m[2J", "[2J"),
        ("one\r\ntwo\tthree\u2028four", "one  two three four"),
        ("user\u202etxt.exe\u2069", "usertxt.exe"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("\udce9t\u00e9", "\ufffdté"),
        ("a\u00a0b", "a\u00a0b"),
    ],
)
def test_what_a_terminal_obeys_or_hides_is_gone(text: str, shown: str) -> None:
    assert clean(text) == shown


@given(st.text(st.characters()))
def test_any_text_becomes_one_line_without_controls(text: str) -> None:
    shown = clean(text)
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert clean(shown) == shown
    shown.encode()


@pytest.mark.parametrize("command", ["firewall-cmd --reload", "kill 48112 && echo '日本'"])
def test_plain_commands_can_be_pasted(command: str) -> None:
    assert pasteable(command)


@pytest.mark.parametrize("command", ["", " ", "rm x\nrm y", "echo '\x1b[2J'", "echo '\u202e'", "a\tb", "x\r"])
def test_commands_with_more_than_they_show_can_not(command: str) -> None:
    assert not pasteable(command)
