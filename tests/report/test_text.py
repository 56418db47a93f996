from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nccl_doctor.report.text import apart, painter, table, wrap
from nccl_doctor.text.hostlist import plural


def test_wrap_hangs_the_lines_that_follow() -> None:
    lines = wrap("zone public, eno1: services ssh; all else rejected", 30, "    rule    ")
    assert lines == ["    rule    zone public, eno1:", " " * 12 + "services ssh; all", " " * 12 + "else rejected"]


def test_wrap_counts_cells_not_characters() -> None:
    assert wrap("日本 日本 日本", 10) == ["日本 日本", "日本"]


def test_wrap_cuts_a_word_that_no_line_holds() -> None:
    assert wrap("x" * 25, 12, "  ") == ["  " + "x" * 10, "  " + "x" * 10, "  " + "x" * 5]


def test_wrap_takes_other_prefixes_for_the_rest() -> None:
    assert wrap("one two three", 9, "- ", "    ") == ["- one", "    two", "    three"]


def test_wrap_of_nothing_is_an_empty_line() -> None:
    assert wrap("", 80, "  ") == [""]


@given(st.text(max_size=200), st.integers(20, 100))
def test_no_wrapped_line_is_too_wide(text: str, width: int) -> None:
    assert all(cell_len(line) <= width for line in wrap(text, width, "  "))


def test_apart_puts_two_texts_at_the_ends() -> None:
    assert apart("left", "日本", 12) == ["left    日本"]
    assert apart("left", "", 12) == ["left"]


def test_apart_breaks_where_both_do_not_fit() -> None:
    assert apart("left", "node[1,3,5,7]", 12) == ["left", "  node[1,3,5", "  ,7]"]


def test_table_aligns_wide_cells_and_keeps_long_ones_in_their_column() -> None:
    assert table(("a", "b"), [("日本", "x"), ("[bold]", "y" * 12)], 18) == [
        "a       b",
        "日本    x",
        "[bold]  yyyyyyyyyy",
        "        yy",
    ]


def test_colour_is_an_escape_sequence_or_nothing() -> None:
    assert painter(color=True)("FAIL", "bold red") == "\x1b[1;31mFAIL\x1b[0m"
    assert painter(color=False)("FAIL", "bold red") == "FAIL"


def test_plural() -> None:
    assert [plural(count, "error") for count in (0, 1, 2)] == ["0 errors", "1 error", "2 errors"]
