"""The site: every link leads somewhere, and a pasted error leads to its diagnosis."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urlsplit

import jsonschema
import pytest
from playwright.sync_api import Browser

from nccl_doctor.logs.signs import rules
from nccl_doctor.model.register import all_checks
from scripts.docs import matcher

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"
PASTED = {
    "node1:7:7 [0] misc/socket.cc:53 NCCL WARN Connect to 10.0.0.2<4242> failed : No route to host": "no-route-to-host",
    "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to "
    "bind to [::]:29500 (errno: 98 - Address already in use).": "port-in-use",
    "node2:44:44 [0] NCCL WARN Bootstrap : no socket interface found": "ifname-no-match",
    "[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6, OpType=BROADCAST, NumelIn=1)": "collective-timeout",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "out-of-memory",
    "NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 53000": "duplicate-gpu",
}


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The site, built now, and served on loopback."""
    done = subprocess.run([ROOT / "scripts" / "docs"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    handler = functools.partial(_Quiet, directory=str(SITE))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_pasted_error_leads_to_its_diagnosis(site: str, chromium: Browser) -> None:
    page = chromium.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    for text, name in PASTED.items():
        page.goto(f"{site}errors/?error={quote(text)}")
        first = page.locator("#found a").first
        assert first.text_content() == name, text
        first.click()
        assert page.locator("h1").first.inner_text().startswith(name)
    page.goto(f"{site}errors/")
    page.get_by_label("Error").fill("all is well")
    assert page.locator("#found a").count() == 0
    page.close()
    assert errors == []  # each pattern is one in JavaScript, too


def test_the_search_finds_a_diagnosis_by_code_and_name(site: str, chromium: Browser) -> None:
    page = chromium.new_page()
    for words in ("NCD301", "firewall-blocks-port"):
        page.goto(f"{site}?q={words}")
        page.wait_for_selector(".md-search-result__link")
        hrefs = [link.get_attribute("href") or "" for link in page.locator(".md-search-result__link").all()]
        assert any("firewall-blocks-port" in href for href in hrefs[:3]), hrefs[:5]
    page.close()


def test_a_code_leads_to_its_name_and_no_link_leads_nowhere(site: str) -> None:
    for check in all_checks():
        assert f"url=../{check.name}/" in (SITE / check.code / "index.html").read_text(encoding="utf-8")
    dead = set()
    for page in (SITE / "index.html", SITE / "commands" / "index.html", *SITE.glob("topics/*/index.html")):
        for target in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8")):
            parts = urlsplit(target)
            if parts.scheme or not parts.path:
                continue
            path = SITE / parts.path.lstrip("/") if target.startswith("/") else page.parent / parts.path
            if not (path.exists() or (path / "index.html").exists()):
                dead.add((page.relative_to(SITE), target))
    assert dead == set()


def test_the_schemas_are_published(site: str) -> None:
    for file in (SITE / "schemas").iterdir():
        jsonschema.Draft202012Validator.check_schema(json.loads(file.read_text(encoding="utf-8")))
    assert (SITE / "schemas" / "check-1.json").exists()


def test_the_wordings_are_ones_that_every_browser_can_read() -> None:
    """Browsers before 2025 refuse a pattern with a sign for a part of it, and with it the whole script."""
    script = matcher()
    patterns = [json.loads(found) for found in re.findall(r'new RegExp\(("(?:[^"\\]|\\.)*")', script)]
    shown = [rule for rule in rules() if rule.name and rule.grade.value > 1]
    assert len(patterns) == len(shown) + sum(bool(rule.unless) for rule in shown)
    odd = [one for one in patterns if re.search(r"(?<!\\)(?:\(\?(?!:|=|!|<[a-z]\w*>)|\\[AZz]|[*+?}]\+)", one)]
    assert odd == []
