"""``--forks N``: what was collected once is run by N forks of this process, which ask for one group of tests after another.

To collect all tests takes longer than most folders of them, and so does the import of what they import; forks share
both. Most forks begin with what waits, and one with what computes. A fork that ends too early fails the test that it
ran, and another takes on the rest of its group.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections import defaultdict, deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn, final

import pytest

CHUNK = 20
"""Tests of a group that share nothing: few enough for the forks to end together."""

DEAR = ("lab", "browser", "slow")
"""Marks of tests that are groups of their own."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option."""
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run the tests in N forks of this process")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Runs the session's tests in forks, where that is asked for and makes sense."""
    option = session.config.option
    broken = session.testsfailed and not option.continue_on_collection_errors
    if not option.forks or broken or option.collectonly or option.usepdb:
        return None
    groups = gather(session.items)
    _Forks(session, groups).run(min(option.forks, len(groups)))
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


def gather(items: Sequence[pytest.Item]) -> list[list[int]]:
    """The tests' numbers by what is run without a break, the dearest first: who share a module's fixture, and chunks.

    All of a browser share one, and the pages that it has open. A test of two of the dear marks costs more than one of a
    single one.
    """
    shared: defaultdict[Any, list[int]] = defaultdict(list)
    cheap: defaultdict[Any, list[int]] = defaultdict(list)
    dear: list[list[int]] = []
    for number, item in enumerate(items):
        definitions = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009 - private
        if any(one.scope in ("class", "module", "package") for some in definitions for one in some):
            shared[item.path].append(number)
        elif item.get_closest_marker("browser"):
            shared["browser"].append(number)
        elif any(item.get_closest_marker(mark) for mark in DEAR):
            dear.append([number])
        else:
            cheap[item.path].append(number)
    chunks = [some[begin : begin + CHUNK] for some in cheap.values() for begin in range(0, len(some), CHUNK)]

    def cost(numbers: list[int]) -> int:
        return sum(
            100 * sum(items[number].get_closest_marker(mark) is not None for mark in DEAR) or 1 for number in numbers
        )

    return sorted([*shared.values(), *dear, *chunks], key=cost, reverse=True)


@final
class _Fork:
    """One fork, as its parent holds it.

    Attributes:
        group: the tests that it was given and has not begun.
        test: the one that it runs.
    """

    def __init__(self, number: int, pid: int, calls: Connection) -> None:
        self.number, self.pid, self.calls = number, pid, calls
        self.group: deque[int] = deque()
        self.test: int | None = None
        self.gateway, self.id = self, f"fork{number}"  # as the terminal asks of who sends reports


@final
class _Forks:
    """The parent: hands out groups, and passes on what forks report."""

    def __init__(self, session: pytest.Session, groups: list[list[int]]) -> None:
        self._session, self._hook = session, session.config.hook
        self._groups = deque(groups)
        self._forks: dict[Connection, _Fork] = {}
        self._started = 0
        self._folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self, forks: int) -> None:
        """Runs all groups in so many forks."""
        for number in range(forks):
            self._start(number)
        try:
            while self._forks:
                for calls in wait(list(self._forks)):
                    assert isinstance(calls, Connection)
                    self._hear(self._forks[calls])
        finally:
            for fork in self._forks.values():
                fork.calls.close()
            for fork in self._forks.values():
                os.waitpid(fork.pid, 0)

    def _start(self, number: int, group: Sequence[int] = ()) -> None:
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._started += 1
        pid = os.fork()
        if pid == 0:
            for calls in (ours, *self._forks):
                calls.close()
            _run(self._session, theirs, self._folder / f"fork{self._started}")
        theirs.close()
        self._forks[ours] = _Fork(number, pid, ours)
        self._give(self._forks[ours], group)

    def _give(self, fork: _Fork, group: Sequence[int] = ()) -> None:
        """Gives a fork this group, or else the next; the word that all is over where there is none."""
        if not group and self._groups:
            group = self._groups.pop() if fork.number == 0 else self._groups.popleft()
        fork.group, fork.test = deque(group), None
        with contextlib.suppress(BrokenPipeError):  # it has ended, as will be heard
            fork.calls.send(list(group))

    def _hear(self, fork: _Fork) -> None:
        try:
            what, value = fork.calls.recv()
        except (EOFError, ConnectionResetError):
            self._bury(fork)
            return
        if what == "begin":
            fork.test = value
            if fork.group:  # else it was told meanwhile that all is over
                fork.group.popleft()
        elif what == "report":
            report = self._hook.pytest_report_from_serializable(config=self._session.config, data=value)
            self._tell(fork, report)
            if self._session.shouldfail:
                self._groups.clear()
                for other in self._forks.values():
                    self._give(other)
        else:
            self._give(fork)

    def _tell(self, fork: _Fork, report: Any) -> None:
        report.node = fork  # then the terminal takes it for one of several that come at once
        self._hook.pytest_runtest_logreport(report=report)
        del report.node

    def _bury(self, fork: _Fork) -> None:
        """Has the test failed that a fork's end broke off, and another fork go on."""
        del self._forks[fork.calls]
        fork.calls.close()
        _, status = os.waitpid(fork.pid, 0)
        if (fork.test is None and not fork.group) or self._session.shouldfail or self._session.shouldstop:
            return
        if fork.test is not None:
            item = self._session.items[fork.test]
            words = f"The process that ran this test ended: {os.waitstatus_to_exitcode(status)}."
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", words, "call")
            self._tell(fork, report)
        if not self._session.shouldfail:
            self._start(fork.number, fork.group)


@final
class _Reporter:
    """What a fork has instead of a terminal."""

    def __init__(self, session: pytest.Session, calls: Connection) -> None:
        self._session, self._config, self._calls = session, session.config, calls

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hands a report on."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        try:
            self._calls.send(("report", data))
        except BrokenPipeError:
            self._session.shouldstop = "The parent has gone."


def _run(session: pytest.Session, calls: Connection, folder: Any) -> NoReturn:
    """Runs tests until no more come, and ends this process."""
    status = 1
    try:
        atexit._clear()  # what the parent began is the parent's to end
        config = session.config
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()  # into files of this process's own
        config.pluginmanager.unregister(
            name="terminalreporter"
        )  # warnings are errors: it would have nothing else to say
        config.pluginmanager.register(_Reporter(session, calls))
        folder.mkdir(mode=0o700)
        config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
        with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):  # the parent has gone, or wants no more
            _work(session, calls)
        session._setupstate.teardown_exact(None)
        status = 0
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        os._exit(status)


def _work(session: pytest.Session, calls: Connection) -> None:
    while group := calls.recv():
        for place, number in enumerate(group):
            if session.shouldfail or session.shouldstop or calls.poll():  # what comes in between says that all is over
                return
            calls.send(("begin", number))
            item = session.items[number]
            # what is the session's stays for the next group, which is not known yet
            following: Any = session.items[group[place + 1]] if number != group[-1] else session
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        calls.send(("next", None))
