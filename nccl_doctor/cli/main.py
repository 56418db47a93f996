"""Defines the entry point of nccl-doctor and the table of its commands.

Command modules import most of their dependencies only when a command runs.
"""

from __future__ import annotations

import atexit
import gc
import io
import itertools
import os
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from inspect import cleandoc
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from pydantic_core import ValidationError
from typer.core import TyperCommand

from nccl_doctor import __version__
from nccl_doctor.cli.output import discard_stdout, error_document, unwritten
from nccl_doctor.text.secrets import without_secrets
from nccl_doctor.text.shell import clean

if TYPE_CHECKING:
    from typing_extensions import Buffer

GARBAGE = (50_000, 20, 50)
"""Thresholds for :func:`gc.set_threshold`.

A run keeps nearly all objects that it creates, and every full garbage collection visits all these objects. With 4,096
hosts and CPython's thresholds of (700, 10, 10), garbage collection would take a fifth of a run's time.
"""


def main() -> None:
    """Run the command named on the command line."""
    if sys.platform == "win32":
        sys.stderr.write("nccl-doctor does not run on Windows; use Linux, or try WSL (untested)\n")
        sys.exit(2)
    end = _End()
    try:
        _run()
    except SystemExit as left:
        end.code = left.code
        raise
    except KeyboardInterrupt:  # before or after the command, which has its own message
        end.code = 130
        sys.exit(130)


def _run() -> None:
    _open_what_is_closed()
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Stderr(2, "w", closefd=False)),
        encoding=sys.stderr.encoding,
        errors=sys.stderr.errors,
        line_buffering=True,
    )
    gc.set_threshold(*GARBAGE)
    # Otherwise pydantic searches every installed distribution for plugins, which our models don't use.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        app(*sys.argv[1:2])()
    except OSError as error:  # of typer's own output, --help and --version; a command ends with exit_code_of
        discard_stdout()
        sys.stderr.write(unwritten(error) + "\n")
        sys.exit(2)


class _End:
    """An exit handler that ends the process before the interpreter shuts down, since threads can abort a shutdown.

    For example, a running thread can hold the lock of stderr or be inside a library call that can't be interrupted. If
    a thread aborted the shutdown, the exit code would be lost.

    Attributes:
        code: exit code of the command. Until ``code`` is set, the interpreter exits as usual.
    """

    def __init__(self) -> None:
        self.code: object = ...
        atexit.register(self._leave)  # registered first, so it runs after all others

    def _leave(self) -> None:
        if self.code is None or isinstance(self.code, int):
            try:
                sys.stdout.flush()  # stderr is unbuffered
            finally:  # whatever happens then, for example a second Ctrl-C
                os._exit(self.code or 0)


class _Stderr(io.FileIO):
    """A stderr stream that ignores write errors, so that the report is printed even if stderr goes to a full disk."""

    def write(self, words: Buffer, /) -> int:
        try:
            return super().write(words)
        except OSError:
            return memoryview(words).nbytes


def _open_what_is_closed() -> None:
    """Open /dev/null for each standard stream that the caller closed (``2>&-``), to reserve the stream's descriptor."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None and os.open(os.devnull, os.O_RDWR) == number:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


COMMANDS = {  # by name, in the order of ``--help``: module and function of each command
    "check": "check:check",
    "fix": "fix:fix",
    "fix-port": "fix_port:fix_port",
    "smoke": "smoke:smoke",
    "logs": "logs:logs",
    "ifname": "ifname:ifname",
    "hosts": "hosts:hosts",
    "launch": "launch:launch",
    "hang": "hang:hang",
    "diff": "diff:diff",
    "explain": "explain:explain",
    "codes": "explain:codes",
    "schema": "schema:schema",
    "mcp": "mcp:mcp",
}

EXAMPLES = {  # by command; they come first in its help
    "check": (
        "nccl-doctor check hosts.yaml",
        "nccl-doctor check -w 'node[01-04]' --nproc-per-node 8 --no-smoke",
        "nccl-doctor check hosts.yaml -o html --output-file report.html",
    ),
    "fix": ("nccl-doctor fix hosts.yaml", "nccl-doctor fix hosts.yaml --dry-run", "nccl-doctor fix hosts.yaml --undo"),
    "fix-port": (
        "nccl-doctor fix-port 29500",
        "nccl-doctor fix-port 29500 hosts.yaml",
        "nccl-doctor fix-port hosts.yaml --next --write",
    ),
    "smoke": ("nccl-doctor smoke hosts.yaml", "nccl-doctor smoke hosts.yaml --max-bytes 268435456 --save-logs logs"),
    "logs": (
        "nccl-doctor logs train.log",
        "nccl-doctor logs logs/",
        "torchrun train.py 2>&1 | nccl-doctor logs --tee -",
    ),
    "ifname": ("nccl-doctor ifname hosts.yaml", "nccl-doctor ifname --address 192.168.1.3"),
    "hosts": ("nccl-doctor hosts hosts.yaml",),
    "launch": ("nccl-doctor launch hosts.yaml -- train.py --epochs 3",),
    "hang": ("nccl-doctor hang hosts.yaml", "nccl-doctor hang --pid 48112"),
    "diff": ("nccl-doctor diff monday.json today.json",),
    "explain": ("nccl-doctor explain NCD304", "nccl-doctor explain slurm"),
    "codes": ("nccl-doctor codes -o json",),
    "schema": ("nccl-doctor schema check",),
    "mcp": ("nccl-doctor mcp hosts.yaml",),
}

FIRST = """

\b
nccl-doctor check hosts.yaml      before a job: find what would stop it
nccl-doctor logs train.log        after a failure: read the log
nccl-doctor fix-port              after "Address already in use"
"""

_JSON = re.compile(r"(?:^|\0)(?:-[a-z]*o\0?|--(?:output|format)[=\0])json(?:\0|$)")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nccl-doctor {__version__}")
        raise typer.Exit


def doctor(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Cluster preflight and NCCL diagnostics for PyTorch jobs: one cause, the host, and a command to paste."""


class _Formatter(Protocol):
    def section(self, name: str) -> AbstractContextManager[None]: ...

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None: ...


class PanelCommand(TyperCommand):
    """A command whose help groups options by panel and shows metavars instead of Python types."""

    def format_options(self, ctx: Any, formatter: _Formatter) -> None:  # noqa: ANN401 - typer's own
        """Write the help for the arguments, for the options without a panel, and for the options of each panel."""
        from nccl_doctor.cli.options import PANELS

        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", "Options", *PANELS)}
        for parameter in self.get_params(ctx):
            is_argument = parameter.param_type_name == "argument"
            panel = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"
            sections[panel].append(_row(parameter))
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer's own
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return ["[OPTIONS]", *map(_usage, arguments)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own
        """Parse the arguments. Some options, such as ``--kube``, have optional values, which typer does not support."""
        from nccl_doctor.model.engine import engines

        bare = {word for engine in engines() for flag in engine.flags if flag.bare for word in flag.words}
        pairs = zip(args, [*args, "-"][1:], strict=True)
        full = [f"{word}=" if word in bare and following.startswith("-") else word for word, following in pairs]
        try:
            return super().parse_args(ctx, full)
        except typer.TyperException as error:
            error.message = without_secrets(clean(_in_words(error)))
            if _wants_json(args):
                error_document(str(ctx.info_name), error.format_message())
            raise


def _usage(argument: Any) -> str:  # noqa: ANN401 - typer's own
    words = argument.metavar or argument.name.upper()
    repeated = argument.nargs == -1 and not re.search(r"…|\.\.\.", words)
    return (words if argument.required else f"[{words}]") + ("..." if repeated else "")


def _row(parameter: Any) -> tuple[str, str]:  # noqa: ANN401 - typer's own
    """Return the two help columns of a parameter: names and metavar (``-w LIST``), and help text with the default."""
    is_option, is_flag = parameter.param_type_name == "option", getattr(parameter, "is_flag", False)
    words = ", ".join(sorted(parameter.opts, key=len)) if is_option else ""
    metavar = "" if is_flag else parameter.metavar or ""
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    shown = f"{default:g}" if isinstance(default, float) else default
    note = f" [default: {shown}]" if is_option and default and not is_flag else ""
    return " ".join(filter(None, (words, metavar))), f"{parameter.help or ''}{note}"


_WORDS = {
    "greater_than_equal": "it must be at least {ge:.15g}",
    "less_than_equal": "it must be at most {le:.15g}",
    "int_parsing": "it must be a whole number",
    "float_parsing": "it must be a number",
    "value_error": "{error}",
}
"""Error messages for pydantic's error types (pydantic_core.ErrorType).

The placeholders are keys of the error's context.
"""


def _in_words(error: typer.TyperException) -> str:
    cause = error.__cause__
    for fault in cause.errors() if isinstance(cause, ValidationError) else ():
        if fault["type"] in _WORDS:
            return _WORDS[fault["type"]].format(**fault.get("ctx", {}))
    return error.message


def _wants_json(args: list[str]) -> bool:
    """Return whether the arguments include ``-o json``, not counting a script's arguments after "--"."""
    ours = itertools.takewhile(lambda word: word != "--", args)
    return _JSON.search("\0".join(ours)) is not None


def app(first: str = "") -> typer.Typer:
    """Return the typer app with only the command ``first`` or, if no such command exists, with all commands.

    Loading all commands takes 15 ms.
    """
    made = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(help=f"{doctor.__doc__}{FIRST}")(doctor)
    for name in [first] if first in COMMANDS else [] if first == "--version" else COMMANDS:
        module, function = COMMANDS[name].split(":")
        command = getattr(import_module(f"nccl_doctor.cli.{module}"), function)
        # given explicitly: click cuts a docstring's summary at 45 characters
        examples = "\n".join(EXAMPLES[name])
        shown = f"{cleandoc(command.__doc__)}\n\n\b\n{examples}"
        made.command(name, cls=PanelCommand, help=shown, short_help=command.__doc__.partition("\n")[0])(command)
    return made
