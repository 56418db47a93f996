"""README's picture of a report: ``python -m tests.report.html.readme_picture`` makes it of a real check in the lab (needs root)."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.lab.cluster import Lab
from tests.lab.faults import fault

PICTURE = Path(__file__).parents[3] / ".github" / "report.png"


def main() -> None:
    """Four hosts, firewalld as it comes on the first, and what a browser shows of the report."""
    with Lab.up(4) as lab:
        fault("firewalld-public")(lab, lab.hosts[0])
        lab.controller.write("/root/hosts.yaml", lab.hosts_file())
        call = "nccl-doctor check hosts.yaml -q -o html --output-file report.html; cat report.html; rm report.html"
        text = lab.controller.run(call).stdout
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 1480})
        page.set_content(text)
        PICTURE.parent.mkdir(exist_ok=True)
        shot = Image.open(io.BytesIO(page.screenshot()))
        shot.quantize(128).save(PICTURE, optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
