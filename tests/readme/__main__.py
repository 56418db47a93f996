"""``scripts/readme``: runs the blocks of README and of the topics, says which of them are so, and with --write puts down what they print."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.readme.blocks import PAGES, all_blocks, rewritten
from tests.readme.run import groups, run


def main(words: list[str]) -> int:
    """Other words than --write are situations, of whose blocks alone is spoken."""
    write = "--write" in words
    wanted = [word for word in words if word != "--write"]
    found = all_blocks()
    wrong = 0
    printed: dict[Path, dict[int, str]] = {page: {} for page in PAGES}
    for group in groups(found):
        if wanted and group[0].detail not in wanted:
            continue
        began = time.monotonic()
        for outcome in run(group, found):
            wrong += not outcome.so
            print(f"{outcome.block.place}: {outcome}", flush=True)
            if not outcome.so and outcome.expected is not None:
                printed[outcome.block.page][outcome.block.line] = outcome.printed
        print(f"    {group[0].detail}: {time.monotonic() - began:.1f} s", flush=True)
    if write:
        for page, outputs in printed.items():
            page.write_text(rewritten(page.read_text(), outputs))
    return 1 if wrong and not write else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
