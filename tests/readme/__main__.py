"""``scripts/readme``: runs README's blocks, says which of them are so, and with --write puts down what they print."""

from __future__ import annotations

import sys
import time

from tests.readme.blocks import README, blocks, rewritten
from tests.readme.run import groups, run


def main(words: list[str]) -> int:
    """Other words than --write are situations, of whose blocks alone is spoken."""
    write = "--write" in words
    wanted = [word for word in words if word != "--write"]
    found = blocks(README.read_text())
    wrong, printed = 0, {}
    for group in groups(found):
        if wanted and group[0].detail not in wanted:
            continue
        began = time.monotonic()
        for outcome in run(group, found):
            wrong += not outcome.so
            print(f"README.md:{outcome.block.line}: {outcome}", flush=True)
            if not outcome.so and outcome.expected is not None:
                printed[outcome.block.line] = outcome.printed
        print(f"    {group[0].detail}: {time.monotonic() - began:.1f} s", flush=True)
    if write:
        README.write_text(rewritten(README.read_text(), printed))
    return 1 if wrong and not write else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
