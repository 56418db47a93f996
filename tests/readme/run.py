"""Runs the blocks of README and of the topics: those of one situation in one place, one after the other."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import NamedTuple

from tests.readme.alike import bare
from tests.readme.blocks import Block
from tests.readme.situations import SITUATIONS


class Outcome(NamedTuple):
    """What a block really prints.

    Attributes:
        block: where the page says what it prints.
        printed: to stdout.
        expected: what the page says; None: nothing.
        status: the shell's exit status, and wanted what it has to be; None: any.
    """

    block: Block
    printed: str
    expected: str | None
    status: int
    wanted: int | None

    def __str__(self) -> str:
        if self.so:
            return "as printed"
        differences = difflib.ndiff(bare(self.expected or "").split(), bare(self.printed).split())
        words = " ".join(word for word in differences if word[0] in "+-")
        return f"something else, with exit status {self.status}: {words}\n{self.printed}"

    @property
    def so(self) -> bool:
        """Whether these are the same but for measures."""
        same = self.expected is None or bare(self.printed) == bare(self.expected)
        return same and self.wanted in (None, self.status)


def groups(page: list[Block]) -> list[list[Block]]:
    """The blocks that are run, by situation."""
    by: dict[str, list[Block]] = {}
    for block in page:
        if block.wish == "run":
            by.setdefault(block.detail, []).append(block)
    return list(by.values())


def run(group: list[Block], page: list[Block]) -> Iterator[Outcome]:
    """Runs the blocks of one situation, with the page's files beside them."""
    with SITUATIONS[group[0].detail]() as place:
        for block in page:
            if block.wish == "file":
                place.write(block.detail, block.text)
        for block in group:
            below = page[page.index(block) + 1 :][:1]
            told = next((one for one in below if one.wish == "printed by the block above"), block)
            expected = block.printed if told is block else told.text
            done = place.type(block.typed, block.host)
            assert "Traceback" not in done.stderr, done.stderr
            yield Outcome(told, done.stdout, expected, done.returncode, block.status)
