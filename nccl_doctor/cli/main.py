"""The console script, and the table of commands, whose modules import the rest only when they run."""

from __future__ import annotations

import atexit
import gc
import io
import itertools
import os
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from nccl_doctor import __version__
from nccl_doctor.cli.output import discard_stdout, error_document, unwritten
from nccl_doctor.text.secrets import without_secrets

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
    except KeyboardInterrupt:  # before or after the command, which has its own words for it
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
    # Else pydantic looks through every installed distribution for plugins to its models; ours want none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        app(*sys.argv[1:2])()
    except OSError as error:  # of typer's own texts, --help and --version; a command ends with exit_code_of
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
            try:
                sys.stdout.flush()  # stderr holds no line back
            finally:  # whatever comes then, a second Ctrl-C included
                os._exit(self.code or 0)


class _Stderr(io.FileIO):
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


COMMANDS = {  # by name, in the order of ``--help``: the module and the function of each command
    "check": "check:check",
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
}

EXAMPLES = {  # by command, what stands first in its help
    "check": (
        "nccl-doctor check hosts.yaml",
        "nccl-doctor check -w 'node[01-04]' --nproc-per-node 8 --no-smoke",
        "nccl-doctor check hosts.yaml -o html --output-file report.html",
    ),
    "fix-port": (
        "nccl-doctor fix-port 29500",
        "nccl-doctor fix-port 29500 hosts.yaml",
        "nccl-doctor fix-port hosts.yaml --next --write",
    ),
    "hang": ("nccl-doctor hang hosts.yaml", "nccl-doctor hang --pid 48112"),
    "launch": ("nccl-doctor launch hosts.yaml -- train.py --epochs 3",),
}

_JSON = re.compile(r"(?:^|\0)(?:-[a-z]*o\0?|--(?:output|format)[=\0])json(?:\0|$)")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nccl-doctor {__version__}")
        raise typer.Exit


def doctor(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="The version, and leave.")
    ] = False,
) -> None:
    """Cluster preflight and NCCL diagnostics for PyTorch jobs: one cause, the host, and a command to paste."""


class PanelCommand(TyperCommand):
    """Its help stands in panels by theme; errors stay a plain line, as the app has them."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - typer's own, handed on
        super().__init__(*args, **(options | {"rich_markup_mode": "rich"}))

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer's own, handed on
        """As ever; in the help's order of panels."""
        from nccl_doctor.cli.options import PANELS

        places = {panel: place for place, panel in enumerate(PANELS)}
        return sorted(super().get_params(ctx), key=lambda one: places.get(str(getattr(one, "rich_help_panel", "")), -1))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own, handed on
        """As ever; some options, as ``--kube``, may stand without a value, for which typer has no word."""
        from nccl_doctor.model.engine import engines

        bare = {word for engine in engines() for flag in engine.flags if flag.bare for word in flag.words}
        pairs = zip(args, [*args, "-"][1:], strict=True)
        full = [f"{word}=" if word in bare and following.startswith("-") else word for word, following in pairs]
        try:
            return super().parse_args(ctx, full)
        except typer.TyperException as error:
            error.message = _in_words(without_secrets(error.message))
            if _wants_json(args):
                error_document(str(ctx.info_name), error.format_message())
            raise


_WORDS = (
    (re.compile(r"Value error, "), ""),
    (re.compile(r"Input should be greater than or equal to (\S+)"), r"it has to be \1 or more"),
    (re.compile(r"Input should be less than or equal to (\S+)"), r"it has to be \1 or less"),
    (re.compile(r"Input should be a valid integer.*"), "it has to be a whole number"),
    (re.compile(r"Input should be a valid number.*"), "it has to be a number"),
)
"""pydantic's sentences, by which typer refuses values, and ours."""


def _in_words(message: str) -> str:
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    return message


def _wants_json(args: list[str]) -> bool:
    """True where arguments that could not be read say ``-o json``; what stands behind "--" are a script's own."""
    ours = itertools.takewhile(lambda word: word != "--", args)
    return _JSON.search("\0".join(ours)) is not None


def app(first: str = "") -> typer.Typer:
    """The command line; that of one command or of none where the first word says so: to register all takes 15 ms."""
    made = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(doctor)
    for name in [first] if first in COMMANDS else [] if first == "--version" else COMMANDS:
        module, function = COMMANDS[name].split(":")
        command = getattr(import_module(f"nccl_doctor.cli.{module}"), function)
        # the summary said outright: what is made of a docstring is cut at 45 letters
        examples = "\n".join(EXAMPLES.get(name, ()))
        shown = f"{command.__doc__}\n\n\b\n{examples}" if examples else command.__doc__
        made.command(name, cls=PanelCommand, help=shown, short_help=command.__doc__.partition("\n")[0])(command)
    return made
