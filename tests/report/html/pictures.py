"""Small pictures of reports, to compare with those that were looked at: ``python -m tests.report.html.pictures`` keeps them.

One sheet a situation: its first screens at three widths, light above dark.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path
from typing import Literal

from PIL import Image, ImageChops, ImageStat
from playwright.sync_api import BrowserContext, sync_playwright

from tests.report.html.situations import files

KEPT = Path(__file__).with_name("pictures")
SITUATIONS = ("healthy", "firewall", "dead-port", "sampled", "smoke", "rails", "hostile")
WIDTHS = (390, 1024, 1600)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_HEIGHT = 2400
"""CSS pixels of a page that are shown."""
_THUMB = (150, 225)


def sheet(context: BrowserContext, path: Path) -> Image.Image:
    """The sheet of one report."""
    made = Image.new("RGB", (_THUMB[0] * len(WIDTHS), _THUMB[1] * 2), "white")
    page = context.new_page()
    page.goto(path.as_uri())
    for across, width in enumerate(WIDTHS):
        page.set_viewport_size({"width": width, "height": _HEIGHT})
        for down, scheme in enumerate(SCHEMES):
            page.emulate_media(color_scheme=scheme)
            shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            made.paste(shot.resize(_THUMB, Image.Resampling.BOX), (_THUMB[0] * across, _THUMB[1] * down))
    page.close()
    return made


def difference(one: Image.Image, other: Image.Image) -> float:
    """The mean difference of two sheets, 0 to 255; fonts of another machine make about 1."""
    assert one.size == other.size
    return max(ImageStat.Stat(ImageChops.difference(one, other)).mean)


def main() -> None:
    """Keeps the pictures anew."""
    KEPT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context()
        for name, text in files().items():
            if name in SITUATIONS:
                path = Path(folder, f"{name}.html")
                path.write_text(text)
                sheet(context, path).quantize(64).save(KEPT / f"{name}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
