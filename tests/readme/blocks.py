"""The fenced blocks of README and of the topics of ``explain``, each with what the comment before it says is to be done with it.

A comment, which no reader of the page sees, stands right before each block, and says one of these:

- ``<!-- run: SITUATION -->``: it is run as it is printed, in a situation of :mod:`tests.readme.situations`. Behind a
  prompt, ``$`` or that of a host, ``node1$``, stands what is typed, and below it what it prints; without one, all of the
  block is typed, and has to end well, or with the status that the comment says: ``<!-- run: SITUATION; exit 1 -->``.
- ``<!-- printed by the block above -->``.
- ``<!-- file: NAME -->``: the file that the blocks behind it read.
- ``<!-- not run: REASON -->``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

PROMPT = re.compile(r"(\w*)\$ (.+)\n")
ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "nccl_doctor/judge/topics").glob("*.md")))
COMMENT = re.compile(r"<!-- (run|file|not run|printed by the block above)(?:: (.+?))?(?:; exit (\d))? -->\n")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: the file that it stands in.
        line: of its first fence, from 1.
        text: what stands between the fences.
        wish: the comment's first word or words, and detail what it says behind the colon; None: there is no comment.
        status: the exit status that is wanted; None: any.
    """

    page: Path
    line: int
    text: str
    wish: str | None
    detail: str
    status: int | None

    @property
    def place(self) -> str:
        """Its file's name and line."""
        return f"{self.page.name}:{self.line}"

    @property
    def host(self) -> str:
        """Of the prompt; "" where it has no name."""
        return self._prompt[1] if self._prompt else ""

    @property
    def typed(self) -> str:
        """The command."""
        return self._prompt[2] if self._prompt else self.text

    @property
    def printed(self) -> str | None:
        """What the page says that it prints; None where it says nothing."""
        return self.text[self._prompt.end() :] if self._prompt else None

    @property
    def _prompt(self) -> re.Match[str] | None:
        return PROMPT.match(self.text)


def all_blocks() -> list[Block]:
    """Those of README, then those of each topic."""
    return [block for page in PAGES for block in blocks(page.read_text(), page)]


def blocks(text: str, page: Path = README) -> list[Block]:
    """All of a page's blocks, in their order."""
    tokens = MarkdownIt().parse(text)
    found = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "fence":
            said = COMMENT.fullmatch(before.content) if before is not None else None
            wish, detail, status = said.groups() if said else (None, None, None)
            typed_alone = wish == "run" and not PROMPT.match(token.content)
            assert token.map is not None
            found.append(
                Block(
                    page=page,
                    line=token.map[0] + 1,
                    text=token.content,
                    wish=wish,
                    detail=detail or "",
                    status=int(status or 0) if status or typed_alone else None,
                )
            )
    return found


def rewritten(text: str, printed: dict[int, str]) -> str:
    """The page with other outputs, by the lines of their blocks."""
    lines = text.splitlines(keepends=True)
    for block in reversed(blocks(text)):
        if block.line in printed:
            first = block.line + (block.printed is not None)
            last = block.line + block.text.count("\n")
            lines[first:last] = [printed[block.line]]
    return "".join(lines)
