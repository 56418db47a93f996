from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.text.hostlist import MAX_HOSTS, expand, figure, fold, quoted


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("node1", ["node1"]),
        ("node[01-04,07]", ["node01", "node02", "node03", "node04", "node07"]),
        ("node[8-11]", ["node8", "node9", "node10", "node11"]),
        ("node[08-11]", ["node08", "node09", "node10", "node11"]),
        ("node[000-002]", ["node000", "node001", "node002"]),
        ("node[98-101]", ["node98", "node99", "node100", "node101"]),
        ("r[1-2]n[1-2],login", ["r1n1", "r1n2", "r2n1", "r2n2", "login"]),
        ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
        ("gpu[3,1].example.com", ["gpu3.example.com", "gpu1.example.com"]),
        (" a , b[1, 3] ", ["a", "b1", "b3"]),
        ("a,a", ["a", "a"]),
    ],
)
def test_expands(pattern: str, names: list[str]) -> None:
    assert expand(pattern) == names


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("", '"" has an empty name; separate names by single commas'),
        ("a,,b", '"a,,b" has an empty name; separate names by single commas'),
        ("a[1", '"a[1" has an unmatched "["; write node[01-04,07]'),
        ("a1]", '"a1]" has an unmatched "]"; write node[01-04,07]'),
        ("a[[1]]", '"a[[1]]" has an unmatched "["; write node[01-04,07]'),
        ("a[]", '"a[]": "" is not a range; brackets hold numbers and ranges, as in node[01-04,07]'),
        ("a[1/2]", '"a[1/2]": "1/2" is not a range; brackets hold numbers and ranges, as in node[01-04,07]'),
        ("a[-1]", '"a[-1]": "-1" is not a range; brackets hold numbers and ranges, as in node[01-04,07]'),
        ("a[1-٣]", '"a[1-٣]": "1-٣" is not a range; brackets hold numbers and ranges, as in node[01-04,07]'),
        ("a[4-1]", '"a[4-1]": the range "4-1" runs backwards; write the smaller number first'),
        ("a[1-010]", '"a[1-010]": the ends of "1-010" are padded differently; pad both alike'),
        ("a[001-10]", '"a[001-10]": the ends of "001-10" are padded differently; pad both alike'),
        ("a[1-65537]", '"a[1-65537]" stands for 65537 hosts; at most 65536 are allowed'),
        (
            "a[1-99999][1-99999][1-99999]",
            '"a[1-99999][1-99999][1-99999]" stands for 999970000299999 hosts; at most 65536 are allowed',
        ),
        ("x" * 321, f'"{"x" * 59}…" holds a name that is longer than a host name may be'),
    ],
)
def test_refuses(pattern: str, problem: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared whole
        expand(pattern)
    assert str(caught.value) == problem


def test_the_limit_is_what_may_still_come() -> None:
    assert len(expand(f"a[1-{MAX_HOSTS}]")) == MAX_HOSTS
    with pytest.raises(ValueError, match="stands for 3 hosts; at most 2 more are allowed"):
        expand("a[1-3]", limit=2)


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["node1"], "node1"),
        (["node3", "node1", "big", "node2", "node7"], "node[1-3,7],big"),
        (["node9", "node10"], "node[9-10]"),
        (["node08", "node09", "node10", "node100"], "node[08-10,100]"),
        (["node1", "node01", "node10"], "node1,node[01,10]"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.[1-2]"),
        (["n1.c2.org", "n2.c2.org"], "n[1-2].c2.org"),
        (["r1n1", "r1n2", "r2n1", "r2n2"], "r1n[1-2],r2n[1-2]"),
        (["a1", "a1", "a2"], "a[1-2]"),
        (["a[1]", "a[2]"], "a[1],a[2]"),
        (["n12345678901234567890", "n12345678901234567891"], "n12345678901234567890,n12345678901234567891"),
    ],
)
def test_folds(names: list[str], folded: str) -> None:
    assert fold(names) == folded


NAMES = st.lists(
    st.from_regex(r"[a-z]{0,2}[0-9]{0,3}(-[a-z]?[0-9]{1,2})?(\.[a-z][0-9]?)?", fullmatch=True).filter(bool), min_size=1
)


@given(NAMES)
def test_expanding_undoes_folding(names: list[str]) -> None:
    expanded = expand(fold(names))
    assert sorted(expanded) == sorted(set(names))
    assert fold(expanded) == fold(names)


@given(st.sets(st.integers(0, 1200), min_size=1), st.integers(1, 4))
def test_numbers_in_order_come_back_in_order(numbers: set[int], width: int) -> None:
    names = [f"node{number:0{width}d}.lan" for number in sorted(numbers)]
    assert expand(fold(names)) == names


@given(st.text(alphabet="ab012[]-, \x00"))
def test_any_text_expands_or_is_refused_in_a_sentence(text: str) -> None:
    try:
        names, sentence = expand(text), ""
    except ValueError as error:
        names, sentence = [], str(error)
    assert all(names)
    assert sentence.isprintable()
    assert names or sentence


def test_quoting_is_safe_for_a_terminal() -> None:
    assert quoted("a\x1b[31mb\u202ec\ud800") == '"a?[31mb?c?"'
    assert quoted("x" * 100) == '"' + "x" * 59 + '…"'


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (0.254, 2, "0.25"),
        (9.96, 2, "10"),
        (99.4, 2, "99"),
        (99.6, 2, "100"),
        (150.0, 2, "150"),
        (999.6, 3, "1000"),
        (0, 2, "0"),
    ],
)
def test_a_figure_is_no_power_of_ten(value: float, digits: int, shown: str) -> None:
    assert figure(value, digits) == shown


@given(st.floats(0, 1e6).filter(lambda value: value == 0 or value > 1e-3))
def test_no_figure_is_a_power_of_ten(value: float) -> None:
    assert "e" not in figure(value)
    assert "e" not in figure(value, 3)
