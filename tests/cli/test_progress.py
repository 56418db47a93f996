"""Progress as a terminal shows it; pyte is the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyte
import pytest

from nccl_doctor.cli.progress import Checklist, Lines, Wait, progress
from tests.patience import LONG_S

RUN = """
import sys, time
from nccl_doctor.cli.progress import Checklist, progress
from nccl_doctor.model.report import Phase
Checklist.frames_per_s = 0.001  # none but those that are asked for, so that none is under way when the size changes
rows = (Phase(name="access", outcome="ok", text="4 hosts answered in 0.6 s"),
        Phase(name="software", outcome="error", text="version mismatch on node3; " + "a long text " * 6))
lines = progress(quiet=False, decided=lambda _seen: rows)
lines.phase("asking", ["node1", "node2"], 600.0)
while "waiting" not in lines.line: time.sleep(0.05)
lines._live.refresh()
assert sys.stdin.readline() == "on\\n"
lines.refresh(lambda: None)
lines.phase("all-reduce", ["node1", "node2"], 600.0)
lines.stage("node1", "sizes")
lines.stage("node2", "started")
while "node2" not in lines.line: time.sleep(0.05)
for size in iter(sys.stdin.readline, "end\\n"):  # a line that nobody sent, such as an early end, is not a number
    lines.stage("node1", "sizes", int(size) << 20)
    lines._live.refresh()
lines.close()
print("the report")
"""


class Terminal:
    """A pseudo-terminal with a program on it, and what its screen shows."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor, self._process = descriptor, process
        self._screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self._screen)

    def resize(self, columns: int) -> None:
        """As a window does whose edge is drawn."""
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        cursor = self._screen.cursor.y, self._screen.cursor.x
        self._screen.resize(24, columns)  # which sets the margins, and so sends the cursor home
        self._screen.cursor.y, self._screen.cursor.x = cursor[0], min(cursor[1], columns - 1)
        self._process.send_signal(signal.SIGWINCH)

    def enter(self, line: object) -> None:
        """Types a line, upon which the program goes on."""
        os.write(self._descriptor, f"{line}\n".encode())

    def frame(self, line: str) -> str:
        """The screen once it shows a whole frame, with this line as its last.

        A read may end within a frame: the rows of the one before are still there, or the last line lacks its end, which
        wraps where the terminal gets narrower before it comes.
        """
        ends = ("of 600 s", "…")
        return self.until(
            lambda text: line in text.rpartition("\n")[2] and text.endswith(ends) and text.count("hosts answered") <= 1
        )

    def until(self, holds: Callable[[str], bool]) -> str:
        """The screen once something holds of it."""
        end = time.monotonic() + LONG_S
        while not holds(self.text):
            assert time.monotonic() < end, self.text
            if select.select([self._descriptor], [], [], 0.2)[0]:
                try:
                    self._stream.feed(os.read(self._descriptor, 65536))
                except OSError:  # EIO: the program has ended
                    assert holds(self.text), self.text
        return self.text

    @property
    def text(self) -> str:
        """All lines, without the blanks at their ends."""
        return "\n".join(line.rstrip() for line in self._screen.display).strip("\n")


@contextmanager
def terminal(code: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    attributes = termios.tcgetattr(theirs)
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}  # as readline leaves them
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        try:
            yield Terminal(ours, process)
        finally:
            process.kill()
            os.close(ours)


def test_rows_appear_as_they_are_decided_and_the_terminal_may_change_its_size() -> None:
    with terminal(RUN) as shown:
        assert "access" not in shown.frame("waiting for node[1-2]")
        shown.enter("on")
        shown.enter(16)
        both = shown.frame("node2 still importing torch")
        assert "access         ok    4 hosts answered in 0.6 s" in both
        assert "software     FAIL    version mismatch on node3" in both
        for size, columns in ((17, 60), (18, 120), (19, 70)):
            shown.resize(columns)
            shown.enter(size)
            both = shown.frame(f"all-reduce  {size} MiB, 1 of 2 hosts measuring, node2 still")
            assert both.count("4 hosts answered") == 1
        shown.enter("end")
        assert shown.until(lambda text: "the report" in text) == "the report"


def test_a_log_gets_a_line_a_phase_and_one_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Lines, "every_s", 1.0)  # before that, nobody is named for whom it waits
    lines = Lines()
    lines.phase("asking", ["node1", "node2"], 600.0)
    lines.done("node1")
    said, end = "", time.monotonic() + LONG_S
    while said.count("\n") < 2 and time.monotonic() < end:
        said += capsys.readouterr().err
    lines.close()
    first, second = said.splitlines()[:2]
    assert first == "asking  2 hosts"
    assert second.startswith("asking  1 of 2 hosts, waiting for node2, ")


@pytest.mark.parametrize(("terminal", "kind"), [("xterm", Checklist), ("dumb", Lines), ("unknown", Lines), ("", Lines)])
def test_a_terminal_that_redraws_nothing_gets_lines(
    monkeypatch: pytest.MonkeyPatch, terminal: str, kind: type[Lines]
) -> None:
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    lines = progress(quiet=False)
    lines.close()
    assert type(lines) is kind


FOUR = ("node1", "node2", "node3", "node4")


def test_a_phase_names_those_who_are_awaited_and_until_when() -> None:
    wait = Wait("asking", FOUR, 8.0, done={"node1", "node3", "node4"})
    assert wait.line(0.3) == "asking  3 of 4 hosts"
    assert wait.line(4.2) == "asking  3 of 4 hosts, waiting for node2, 4 of 8 s"
    assert wait.line(9.0) == "asking  3 of 4 hosts, waiting for node2, 9 s"


def test_a_phase_of_one_host_names_it() -> None:
    assert Wait("asking", ("node7",), 8.0).line(10.0).startswith("asking  node7, ")


def test_the_all_reduce_names_only_who_is_behind() -> None:
    stages = dict.fromkeys(FOUR, "sizes") | {"node2": "started"}
    wait = Wait("all-reduce", FOUR, 60.0, stages=stages, size=16 << 20)
    assert wait.line(15.0) == "all-reduce  16 MiB, 3 of 4 hosts measuring, node2 still importing torch, 15 of 60 s"
    wait.stages["node2"] = "sizes"
    assert wait.line(20.0) == "all-reduce  16 MiB, 4 of 4 hosts measuring, 20 of 60 s"


def test_hosts_that_are_behind_alike_are_folded() -> None:
    wait = Wait("all-reduce", FOUR, 60.0, stages={"node1": "store", "node4": "torch"})
    assert wait.line(2.0) == (
        "all-reduce  1 of 4 hosts joining the group, node[2-3] still starting Python, "
        "node4 still looking for the master, 2 of 60 s"
    )
