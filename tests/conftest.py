"""The lab as fixtures. Where the machine can't hold one they fail, with a sentence that says what to install."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from nccl_doctor.cli.main import GARBAGE
from tests.lab import warm
from tests.lab.cluster import Lab, MakeLab, hosts_python, supervisors_python
from tests.lab.errors import LabError
from tests.lab.host import controller_path

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest_plugins = ("tests.forks",)

# Compiled once, not in each worker of each run and at each start of a lab: pytest's own part of that takes six seconds.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What is typed on a lab's controller starts the tool from a fork: its imports take longer than most calls.
controller_path.insert(0, lambda: Path(warm.tool()).parent)
# And what a probe is started with: an interpreter's start and its imports are half of what a host does in a check.
hosts_python.append(warm.plain)
# To start one is half of what a small lab costs.
supervisors_python.append(warm.plain)

# An example may take as long as the machine does.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

MANY_LABS = 10
"""Tests of a lab for each fork, of which some need torch."""


def pytest_configure(config: pytest.Config) -> None:
    """A shell that starts the suite in the background ignores Ctrl-C for it and all its children; the tests send it.

    What the lab's programs are forked from takes as long to import as the tests to collect, so both begin now.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    option = config.option
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS or option.markexpr or option.keyword
    if option.forks and not (named or option.collectonly):
        warm.start()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected stays: thousands of tests need no garbage collector to look through them again and again.

    Nor do they need the tool's own objects looked through more often than the tool does. Forks share what programs of
    the lab are forked from, where they will need it all.
    """
    option = session.config.option
    labs = sum(item.get_closest_marker("lab") is not None for item in session.items)
    if not option.collectonly and labs > MANY_LABS * option.forks > 0:
        warm.start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE)


def _up(hosts: int = 3, *, shm_size: str = "1g") -> Lab:
    try:
        return Lab.up(hosts, shm_size=shm_size)
    except LabError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last check's result is remembered under XDG_STATE_HOME: not in the home of whoever runs the tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Three healthy hosts that all tests share: look, and leave nothing behind."""
    with _up() as lab:
        yield lab


@pytest.fixture
def fresh_lab() -> Iterator[Lab]:
    """Three healthy hosts for one test, to break."""
    with _up() as lab:
        yield lab


@pytest.fixture
def make_lab() -> Iterator[MakeLab]:
    """Build labs of any size; all are down after the test."""
    labs: list[Lab] = []

    def make(hosts: int = 3, *, shm_size: str = "1g") -> Lab:
        labs.append(_up(hosts, shm_size=shm_size))
        return labs[-1]

    yield make
    for lab in labs:
        lab.down()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Debian's browser, without its own sandbox, which root may not have; a process can drive only one at a time."""
    from playwright.sync_api import sync_playwright  # most forks need no browser

    path = shutil.which("chromium")
    if path is None:
        pytest.fail("this test needs a browser: apt-get install chromium", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
