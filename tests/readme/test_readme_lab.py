"""Every block of README and of the topics, run as it is printed; ``scripts/readme --write`` puts down what has changed."""

from __future__ import annotations

import pytest

from tests.readme.blocks import Block, all_blocks
from tests.readme.run import groups, run

pytestmark = pytest.mark.lab

PAGE = all_blocks()


@pytest.mark.parametrize("group", groups(PAGE), ids=lambda group: group[0].detail)
def test_the_page_shows_what_is_printed(group: list[Block]) -> None:
    wrong = {outcome.block.place: str(outcome) for outcome in run(group, PAGE) if not outcome.so}
    assert not wrong
