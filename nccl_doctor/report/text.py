"""Formats lines, tables and colours.

Widths are in terminal cells, not characters, because an ideograph occupies two cells. :func:`wrap`, :func:`cut`,
:func:`apart` and :func:`table` clean their text with :mod:`nccl_doctor.text.shell`, so callers need not clean the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from nccl_doctor.model.finding import Severity
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.text.shell import clean

SEVERITY_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold"}
WIDTH = 80  # cells of a line without a terminal
Paint = Callable[[str, str], str]  # text and a style of rich ("bold red") to text that a terminal colours


def painter(color: bool) -> Paint:
    """Return a function that styles text with the terminal's sixteen colours, or leaves the text unchanged."""
    system = ColorSystem.STANDARD if color else None
    return lambda text, style: Style.parse(style).render(text, color_system=system)


def wrap(text: str, width: int = WIDTH, first: str = "", rest: str | None = None) -> list[str]:
    """Return lines of at most ``width`` cells.

    The first line begins with ``first``, and every other line begins with ``rest``.
    """
    first = clean(first)
    rest = " " * cell_len(first) if rest is None else rest
    room = max(width - max(cell_len(first), cell_len(rest)), 2)
    pieces = Text(clean(text)).wrap(_console(room), room, overflow="fold")
    lines = [piece.plain.rstrip() for piece in pieces] or [""]
    return [(prefix + line).rstrip() for prefix, line in zip([first] + [rest] * len(lines), lines, strict=False)]


def cut(line: str, width: int = WIDTH) -> str:
    """Return the line, shortened with an ellipsis if it is too wide."""
    line = clean(line)
    return line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…"


def apart(left: str, right: str, width: int) -> list[str]:
    """Return two strings at opposite ends of one line, or on separate lines if one line is too short for both."""
    left, right = clean(left), clean(right)
    gap = width - cell_len(left) - cell_len(right)
    if gap >= 2:
        return [(left + " " * gap + right).rstrip()]
    return wrap(left, width) + (wrap(right, width, "  ") if right else [])


def table(header: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> list[str]:
    """Return rows with columns that are two spaces apart. Cells are wrapped, except in the first column."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="", show_edge=False)
    for number, title in enumerate(header):
        grid.add_column(Text(clean(title)), no_wrap=number == 0, overflow="fold" if number else "ellipsis")
    for row in rows:
        grid.add_row(*(Text(clean(cell)) for cell in row))
    console = _console(width)
    with console.capture() as capture:
        console.print(grid)
    return [line.rstrip() for line in capture.get().split("\n")][:-1]


def _console(width: int) -> Console:
    return Console(file=StringIO(), width=width, color_system=None, force_jupyter=False, legacy_windows=False)


def joined(blocks: Iterable[Sequence[str]]) -> str:
    """Return the blocks of lines with an empty line between them; empty blocks are left out."""
    return "\n".join("\n".join([*block, ""]) for block in blocks if any(block))


class Screen(NamedTuple):
    """The style and width of a report in the terminal.

    Only lines with commands may be wider than ``width`` cells.
    """

    paint: Paint
    width: int = 80
    verbose: bool = False

    @classmethod
    def of(cls, options: RenderOptions) -> Screen:
        return cls(painter(options.color), max(options.width, 50), options.verbose)

    @property
    def prose(self) -> int:
        """The width of prose in terminal columns.

        This width leaves a right margin as wide as the indent.
        """
        return self.width - 2
