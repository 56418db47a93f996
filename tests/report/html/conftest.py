"""Pages in Chromium that tell what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.patience import LONG_S
from tests.report.html.situations import files


@dataclass
class Opened:
    """A page, and whatever it said, asked for or broke meanwhile."""

    page: Page
    noises: list[str] = field(default_factory=list)


Open = Callable[[str], Opened]


@pytest.fixture(scope="session")
def context(chromium: Browser) -> BrowserContext:
    """For all pages that ask for nothing of their own: each context more is a whole browser window to start."""
    return chromium.new_context(viewport={"width": 1024, "height": 900})


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every situation's report as a file, as people get it."""
    folder = tmp_path_factory.mktemp("reports")
    for name, text in files().items():
        (folder / f"{name}.html").write_text(text)
    return folder


@pytest.fixture(scope="session")
def read_page(context: BrowserContext, folder: Path) -> Callable[[str], Opened]:
    """A situation's report, opened once for all tests that leave it as it is."""
    pages: dict[str, Opened] = {}

    def opened(name: str) -> Opened:
        if name not in pages:
            pages[name] = _opened(context, folder / f"{name}.html")
        return pages[name]

    return opened


@pytest.fixture
def open_page(context: BrowserContext, folder: Path) -> Iterator[Open]:
    """Opens a situation's report for one test, which may do with it what it likes."""
    pages: list[Page] = []

    def opened(name: str) -> Opened:
        one = _opened(context, folder / f"{name}.html")
        pages.append(one.page)
        return one

    yield opened
    for page in pages:
        page.close()


@pytest.fixture
def without_a_script(chromium: Browser, folder: Path) -> Iterator[Open]:
    """Opens a situation's report where no script runs."""
    context = chromium.new_context(viewport={"width": 1024, "height": 900}, java_script_enabled=False)
    yield lambda name: _opened(context, folder / f"{name}.html")
    context.close()


def _opened(context: BrowserContext, path: Path) -> Opened:
    context.set_default_timeout(LONG_S * 1000)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    one = Opened(page)
    page.on("console", lambda message: one.noises.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: one.noises.append(f"error: {error}"))
    page.on("dialog", lambda dialog: one.noises.append(f"dialog: {dialog.message}"))
    page.on("request", lambda asked: one.noises.append(asked.url) if asked.url != path.as_uri() else None)
    page.goto(path.as_uri())
    return one
