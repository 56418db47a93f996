"""The console script; cli/app.py registers the commands."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

GARBAGE = (50_000, 20, 50)
"""The collector's thresholds. A run keeps nearly all that it makes, and every collection looks through it: with 4,096
hosts a fifth of the time, at CPython's (700, 10, 10)."""


def main() -> None:
    """Runs the command that the arguments name."""
    if sys.platform == "win32":
        sys.stderr.write("nccl-doctor runs on Linux and macOS; on Windows, use WSL\n")
        sys.exit(2)
    end = _End()
    try:
        _run()
    except SystemExit as left:
        end.code = left.code
        raise


def _run() -> None:
    _open_what_is_closed()
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Told(2, "w", closefd=False)),
        encoding=sys.stderr.encoding,
        errors=sys.stderr.errors,
        line_buffering=True,
    )
    gc.set_threshold(*GARBAGE)
    # Else pydantic looks through every installed distribution for plugins to its models; ours want none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from nccl_doctor.cli.app import app

    try:
        app(*sys.argv[1:2])()
    except OSError as error:  # of typer's own texts, --help and --version; a command ends with exit_code_of
        from nccl_doctor.cli.output import discard_stdout, unwritten

        discard_stdout()
        sys.stderr.write(unwritten(error) + "\n")
        sys.exit(2)


class _End:
    """Ends the process before the interpreter is taken down under threads that still run, which aborts it (SIGABRT).

    A thread may hold the lock of stderr, or stand in a library through which it can't be unwound: only the exit code
    would be lost by that.

    Attributes:
        code: of the command's end; while it is unknown the interpreter ends in its own way.
    """

    def __init__(self) -> None:
        self.code: object = ...
        atexit.register(self._leave)  # entered first, so it runs after all others

    def _leave(self) -> None:
        if self.code is None or isinstance(self.code, int):
            sys.stdout.flush()  # stderr holds no line back
            os._exit(self.code or 0)


class _Told(io.FileIO):
    """Progress and sentences: what a full disk does not hold of them is lost, and costs no report."""

    def write(self, words: Buffer, /) -> int:
        try:
            return super().write(words)
        except OSError:
            return memoryview(words).nbytes


def _open_what_is_closed() -> None:
    """A stream that our caller closed (``2>&-``) leads nowhere, and no file or connection of ours gets its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None and os.open(os.devnull, os.O_RDWR) == number:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
