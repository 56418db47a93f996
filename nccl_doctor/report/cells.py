"""Lines measured in a terminal's cells.

This is done with rich's table of cell widths alone, and only where a character may be wide:
:mod:`nccl_doctor.report.text` imports ten times as long as ``fix-port`` may take.
"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.report.safe import clean

WIDTH = 80
_LABEL = 14
"""Cells before what a label is of."""


def cut(line: str, width: int = WIDTH) -> str:
    """The beginning of a line that is too wide, with an ellipsis."""
    line = clean(line)
    if cells(line) <= width:
        return line
    if line.isascii():
        return line[: width - 1] + "…"
    from rich.cells import set_cell_size

    return set_cell_size(line, width - 1) + "…"


def cells(text: str) -> int:
    """Cells that the text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def labelled(label: str, text: str) -> Iterator[str]:
    """The text behind its label, in lines that hang behind it."""
    for part in wrap(text, WIDTH - _LABEL):
        yield f"    {label}".ljust(_LABEL) + part
        label = ""


def wrap(text: str, width: int = WIDTH) -> Iterator[str]:
    """Lines of whole words."""
    line = ""
    for word in clean(text).split():
        if line and cells(line) + 1 + cells(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line
