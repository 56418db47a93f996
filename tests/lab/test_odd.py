"""The table of odd hosts: each line with what ``ssh HOST true`` does there, beside healthy neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.lab.cluster import MakeLab
from tests.lab.odd import machines, pythons, shells, users, ways
from tests.lab.odd.row import Row, judge

pytestmark = pytest.mark.lab

GROUPS = {
    "users": (users.ROWS, ()),
    "rules": (users.DROPS, ("--sudo",)),
    "shells": (shells.ROWS, ()),
    "machines": (machines.ROWS, ()),
    "ways": (ways.ROWS, ()),
    "pythons": (pythons.ROWS, pythons.OPTIONS),
}


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_in_one_run(make_lab: MakeLab, group: str) -> None:
    rows, options = GROUPS[group]
    _judged(make_lab, rows, *options)


def test_what_only_a_deadline_ends(make_lab: MakeLab) -> None:
    _judged(make_lab, (*shells.SLOW, pythons.HANGS), "--connect-timeout", "2", plain_s=5)


def _judged(make_lab: MakeLab, rows: Sequence[Row], *options: str, **more: int) -> None:
    lab = make_lab(len(rows) + 2)
    lab.controller.write("/root/.ssh/config", "Include of/*\n", 0o600)
    wrong = judge(lab, rows, *options, **more)
    assert not wrong, "\n\n".join(wrong)
