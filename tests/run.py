"""Starts pytest for ``scripts/test``, and says before what runs and how long that takes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUICK = "not lab and not browser and not slow"
WHOLE_TEXT = (
    "All tests, in {forks} forks: the lab's clusters, Slurm, containers and a browser among them.\n"
    "Ten to fifteen minutes on two quiet cores, more beside other work; scripts/test --quick takes two."
)
QUICK_TEXT = "All tests but those of the lab, the browser and what takes long, in {forks} forks: about two minutes."
SOME_TEXT = "{paths}: as long as these tests take, one after the other; with --forks 4 in four at a time."
OWN_FORKS = ("--forks", "--pdb", "--collect-only", "--co")
"""Arguments of who wants no forks, or as many as these say."""
VALUED = ("-k", "-m", "-p", "-c", "-o", "-W", "--forks", "--durations", "--maxfail")
"""Arguments whose values stand apart, and are no paths."""


def command(words: list[str], folder: Path, cores: int) -> tuple[list[str], str]:
    """pytest's arguments for the words on the command line, and what is said of them.

    Args:
        words: as typed.
        folder: where they were typed, from which paths count; where there is no such path, from the project's root.
        cores: that this process may use.
    """
    quick = words[:1] == ["--quick"]
    words = words[quick:]
    places = [
        number
        for number, word in enumerate(words)
        if not word.startswith("-") and (number == 0 or words[number - 1] not in VALUED)
    ]
    words = [_placed(word, folder) if number in places else word for number, word in enumerate(words)]
    paths = [words[number] for number in places]
    forks = max(4, 4 * cores)  # more than half of what the lab does is waiting
    whole = ["-m", QUICK, *words] if quick else words
    text = SOME_TEXT if paths else QUICK_TEXT if quick else WHOLE_TEXT
    if not paths and not any(word.split("=")[0] in OWN_FORKS for word in words):
        whole = ["--forks", str(forks), *whole]
    return whole, text.format(paths=" ".join(paths), forks=forks)


def _placed(word: str, folder: Path) -> str:
    """A path or node id as it counts from the root; any other word as it is."""
    path, colons, name = word.partition("::")
    there = folder / path
    return word if (ROOT / path).exists() or not there.exists() else f"{there.resolve()}{colons}{name}"


def main() -> None:
    """Says what runs, and becomes pytest."""
    folder, *words = sys.argv[1:]
    arguments, text = command(words, Path(folder), len(os.sched_getaffinity(0)))
    sys.stderr.write(f"{text}\n")
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])


if __name__ == "__main__":
    main()
