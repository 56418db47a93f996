from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import BrowserContext

from tests.report.html.pictures import KEPT, SITUATIONS, difference, sheet

pytestmark = pytest.mark.browser

TOLERATED = 4.0
"""Of 255: what other fonts and another version of the browser may change."""


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_report_looks_as_it_was_looked_at(context: BrowserContext, folder: Path, name: str) -> None:
    kept = Image.open(KEPT / f"{name}.png").convert("RGB")
    assert difference(sheet(context, folder / f"{name}.html"), kept) < TOLERATED


def test_another_report_looks_different() -> None:
    one, other = (Image.open(KEPT / f"{name}.png").convert("RGB") for name in ("firewall", "healthy"))
    assert difference(one, other) > TOLERATED
