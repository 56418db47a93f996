"""README's picture of a terminal: ``python -m tests.readme.picture`` makes it of a real check in the lab (needs root).

:func:`text` reads it back.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.text import Text

from tests.readme.blocks import README, blocks
from tests.readme.situations import SITUATIONS

PICTURE = README.parent / ".github" / "terminal.svg"
SITUATION = "stale-listener on node1"
COMMAND = "nccl-doctor check hosts.yaml"
CELL = 12.2
"""Width of a character in rich's SVG."""
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Which would be loaded from elsewhere."""


def main() -> None:
    """A process of an old job on the master port, as a terminal with colours shows it."""
    with SITUATIONS[SITUATION]() as place:
        for block in blocks(README.read_text()):
            if block.wish == "file":
                place.write(block.detail, block.text)
        printed = place.type(f"{COMMAND} --color always", "").stdout
    console = Console(record=True, width=90, file=io.StringIO())
    console.print(Text.from_ansi(f"$ {COMMAND}\n{printed.rstrip()}"))
    PICTURE.write_text(FONTS.sub("", console.export_svg(title="nccl-doctor", unique_id="nccl-doctor")))


def text(path: Path) -> str:
    """What stands in it, by the places of its words."""
    lines: dict[float, str] = {}
    for word in ET.parse(path).iter("{http://www.w3.org/2000/svg}text"):
        if "clip-path" not in word.attrib:  # the window's title
            continue
        y, column = float(word.attrib["y"]), round(float(word.attrib["x"]) / CELL)
        lines[y] = lines.get(y, "").ljust(column) + (word.text or "").replace("\xa0", " ")
    return "\n".join(line.rstrip() for _, line in sorted(lines.items())) + "\n"


if __name__ == "__main__":
    main()
