"""Writes reports and determines the exit code of every command."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn, TypeVar

import typer

from nccl_doctor import __version__
from nccl_doctor.errors import DoctorError, InterruptedLogin, UnwrittenError, UsageError, describe
from nccl_doctor.report.render import FORMS, RenderOptions, render
from nccl_doctor.text.hostlist import fold
from nccl_doctor.text.machine import describe_thread_limit, out_of_threads, try_file, try_folder, write_atomically
from nccl_doctor.text.secrets import hide_secrets
from nccl_doctor.text.shell import clean

if TYPE_CHECKING:
    from pathlib import Path

    from nccl_doctor.model.base import Document
    from nccl_doctor.model.report import Report


Color = Literal["auto", "always", "never"]
FailOn = Literal["info", "warning", "error", "never"]  # the least severity that makes the exit code 1
ShownDocument = TypeVar("ShownDocument")


SUFFIXES = {".html": "html", ".json": "json", ".xml": "junit", ".prom": "prometheus"}
"""Output formats by file extension."""


def form_of(command: str, form: str, file: Path | None) -> str:
    """Return the requested format or, by default, the format of the file's extension if the command supports it."""
    named = SUFFIXES.get(file.suffix.lower(), "") if file is not None and form == "human" else ""
    return named if named in FORMS[command] else form


WATCH = "hang --watch"  # its reports have other forms than those of hang, and the same name in JSON


class Out(NamedTuple):
    """Output options of one command."""

    command: str
    form: str = "human"
    file: Path | None = None
    color: Color = "auto"
    quiet: bool = False
    verbose: bool = False
    fail_on: FailOn = "error"
    open_it: bool = False
    show_secrets: bool = False

    @property
    def colored(self) -> bool:
        """True if output is coloured: on request, or by default on a terminal unless NO_COLOR is set (no-color.org)."""
        if self.color != "auto":
            return self.color == "always"
        terminal = self.file is None and sys.stdout.isatty() and supports_ansi(os.environ)
        return terminal and not os.environ.get("NO_COLOR")

    @property
    def width(self) -> int:
        """Line width in character cells.

        On a terminal, this is the terminal's width or 100, whichever is less; otherwise, it is 80.
        """
        return min(shutil.get_terminal_size((80, 24)).columns, 100) if sys.stdout.isatty() else 80

    def hidden(self, document: ShownDocument) -> ShownDocument:
        """Return the document or text with secrets hidden, unless ``show_secrets`` is set."""
        return document if self.show_secrets else hide_secrets(document)

    def write(self, text: str) -> None:
        """Write the text to stdout or to the file; raise DoctorError if writing fails."""
        if self.file is not None:
            # readable only by its owner, unless another user's service reads it (node_exporter, a CI's agent)
            write_file(self.file, text, private=self.show_secrets or self.form not in ("prometheus", "junit"))
            return
        if isinstance(sys.stdout, io.TextIOWrapper):
            # a locale without some characters loses only these, not the report; output for programs is UTF-8 everywhere
            sys.stdout.reconfigure(encoding=None if self.form == "human" else "utf-8", errors="replace")
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            discard_stdout()
            raise DoctorError(unwritten(error)) from error

    def show(self, document: Document, observed_at: float | None = None) -> None:
        """Print the document with secrets hidden; raise UnwrittenError if stdout had to be used instead of the file."""
        document = self.hidden(document)
        options = RenderOptions(self.colored, self.width, self.verbose, self.quiet, observed_at, fail_on=self.fail_on)
        if self.form == "html":
            options = for_html(options)
        try:
            self.write(render(self.command, self.form, document, options))
        except DoctorError as error:
            if self.file is None:
                raise
            form = "human" if self.form == "html" and sys.stdout.isatty() else self.form
            self._replace(file=None, form=form).write(render(self.command, form, document, options))
            raise UnwrittenError(str(error)) from error
        if self.open_it and self.file is not None:
            import webbrowser

            if not webbrowser.open(self.file.resolve().as_uri()):
                sys.stderr.write(clean(f"{self.file}: written, but no browser was found to open it with") + "\n")

    def report(self, report: Report, observed_at: float | None = None) -> int:
        self.show(report, observed_at)
        return exit_code(report, self.fail_on)


def unwritten(error: OSError) -> str:
    """Return the error message for a failed write to stdout, for example because the disk is full."""
    return f"the report can't be written to stdout: {error.strerror}"


def supports_ansi(environ: Mapping[str, str]) -> bool:
    """Return whether the terminal supports escape sequences, which TERM values such as ``dumb`` rule out."""
    return environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def exit_code(report: Report, fail_on: FailOn) -> int:
    """Return 1 for a diagnosis of severity ``fail_on`` or higher, otherwise 3 for an incomplete report, otherwise 0."""
    if fail_on != "never":
        from nccl_doctor.model.finding import Severity

        least = Severity(fail_on).rank
        if any(diagnosis.severity.rank >= least for diagnosis in report.diagnoses):
            return 1
    return 0 if report.complete else 3


def finish(out: Out, work: Callable[[], int]) -> NoReturn:
    """Run ``work`` and end the typer command with the exit code that :func:`exit_code_of` returns."""
    raise typer.Exit(exit_code_of(out, work))


def exit_code_of(out: Out, work: Callable[[], int]) -> int:
    """Run ``work`` and return its exit code; after an error, print a message and return the exit code of the error."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _refuse_form(out)
        try_files(("--output-file", out.file))
        code = work()
    except UnwrittenError as error:
        code = _fail(out._replace(form="human"), str(error), error.exit_code)
    except DoctorError as error:
        code = _fail(out, str(error), error.exit_code)
        sys.stderr.write("".join(f"\n{clean(out.hidden(command))}\n" for command in error.commands))
    except KeyboardInterrupt as interrupt:
        sys.stderr.write("\n")
        code = _fail(out, _interrupted(interrupt), 130)
    except BrokenPipeError:
        discard_stdout()
        code = 141
    except Exception as error:  # noqa: BLE001 - the promise is one message and no traceback
        if out_of_threads(error):
            return _fail(out, describe_thread_limit(), 2)
        if os.environ.get("NCDOCTOR_TRACEBACK"):
            import traceback

            sys.stderr.write(out.hidden(traceback.format_exc()))
        message = f"a bug in nccl-doctor: {describe(error)}"
        code = _fail(out, f"{message}; NCDOCTOR_TRACEBACK=1 shows where", 2)
    return code


def try_files(*files: tuple[str, Path | None], folder: Path | None = None) -> None:
    """Raise UsageError if one of the given files, or the directory for ``--save-logs``, is not writable.

    Each file is paired with the name of its option.
    """
    for option, path, look in (*((*named, try_file) for named in files), ("--save-logs", folder, try_folder)):
        try:
            if path is not None:
                look(path)
        except OSError as error:
            raise UsageError(f"{option}: {path}: can't be written: {error.strerror}") from error


def failures(*writes: Callable[[], None]) -> list[str]:
    """Perform all writes, even after a failed write, and return the error messages of the failed writes."""
    sentences = []
    for write in writes:
        try:
            write()
        except DoctorError as error:
            sentences.append(str(error))
    return sentences


def write_file(path: Path, text: str, *, private: bool = False) -> None:
    """Write a file, or raise a :class:`DoctorError`."""
    try:
        write_atomically(path, text.encode(), private=private)
    except OSError as error:
        raise DoctorError(f"{path}: can't be written: {error.strerror}") from error


def _refuse_form(out: Out) -> None:
    forms = tuple(FORMS[out.command])
    if out.form in FORMS.get(f"{out.command} --watch", ()) and out.form not in forms:
        raise UsageError(f"{out.command} -o {out.form} needs --watch and --output-file; it prints {', '.join(forms)}")
    if out.form not in forms:
        raise UsageError(f"{out.command} prints {', '.join(forms[:-1])} or {forms[-1]}, not {out.form!r}")
    if out.open_it and (out.form != "html" or out.file is None):
        raise UsageError("--open requires an HTML report: add -o html --output-file report.html")


INTERRUPTED = "interrupted; nothing of nccl-doctor is left running on any host"


def _interrupted(interrupt: BaseException | None) -> str:
    """Return the message for Ctrl-C, with the hosts whose login was interrupted, if any."""
    while interrupt is not None and not isinstance(interrupt, InterruptedLogin):
        interrupt = interrupt.__context__
    if interrupt is None or not interrupt.hosts:
        return INTERRUPTED
    return (
        f"{INTERRUPTED}, but {fold(interrupt.hosts)} had not finished the login: a login shell that hangs in a "
        "start-up file (.bashrc) may remain until that file ends, but it runs no command of nccl-doctor"
    )


def _fail(out: Out, message: str, code: int) -> int:
    message = out.hidden(message)
    sys.stderr.write(clean(message) + "\n")
    if out.form == "json":
        error_document("hang" if out.command == WATCH else out.command, message)
    return code


def error_document(command: str, message: str) -> None:
    """Write the error to stdout as a JSON document, so that stdout gets exactly one document even after an error."""
    head = {"schema": 1, "version": __version__, "command": command, "status": "error", "complete": False}
    document = head | {"error": message, "hosts": [], "diagnoses": [], "checks": [], "timings": {}}
    try:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        sys.stdout.flush()
    except OSError:  # the message is on stderr
        discard_stdout()


def discard_stdout() -> None:
    """Redirect stdout to /dev/null once the reader of stdout (such as a pager) has exited or the disk has filled up."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def for_html(options: RenderOptions) -> RenderOptions:
    """Return the options for an HTML report, which also shows the ``explain`` pages, the user and the time."""
    import getpass
    import socket
    import time

    from nccl_doctor.model.register import all_checks

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no entry for the user; KeyError before Python 3.13
        user = f"user {os.getuid()}"
    pages = {check.code: check.page for check in all_checks()}
    return options._replace(pages=pages, made_at=time.time(), asked_by=f"{user} on {socket.gethostname()}")
