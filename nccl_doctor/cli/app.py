"""The command line: registers the commands. Their modules import the rest only when they run, so `--help` is quick."""

from __future__ import annotations

import itertools
import re
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from nccl_doctor import __version__
from nccl_doctor.cli.output import error_document
from nccl_doctor.model.engine import engines
from nccl_doctor.text.secrets import without_secrets

COMMANDS = {
    "check": "check:check",
    "fix-port": "fix_port:fix_port",
    "smoke": "smoke:smoke",
    "logs": "logs:logs",
    "ifname": "ifname:ifname",
    "hosts": "hosts:hosts",
    "launch": "launch:launch",
    "hang": "hang:hang",
    "diff": "diff:diff",
    "explain": "pages:explain",
    "codes": "pages:codes",
}
"""By name, in the order of ``--help``: the module and the function of each command."""

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

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own, handed on
        """As ever; some options, as ``--kube``, may stand without a value, for which typer has no word."""
        bare = {word for engine in engines() for flag in engine.flags if flag.bare for word in flag.words}
        pairs = zip(args, [*args, "-"][1:], strict=True)
        full = [f"{word}=" if word in bare and following.startswith("-") else word for word, following in pairs]
        try:
            return super().parse_args(ctx, full)
        except typer.TyperException as error:
            error.message = without_secrets(error.message)
            if _wants_json(args):
                error_document(str(ctx.info_name), error.format_message())
            raise


def _wants_json(args: list[str]) -> bool:
    """Whether arguments that could not be read say ``-o json``; what stands behind "--" are a script's own."""
    ours = itertools.takewhile(lambda one: one != "--", args)
    return _JSON.search("\0".join(ours)) is not None


def app(first: str = "") -> typer.Typer:
    """The command line; that of one command where the first word names it: to register all takes 15 ms more."""
    made = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(doctor)
    for name in [first] if first in COMMANDS else COMMANDS:
        module, function = COMMANDS[name].split(":")
        command = getattr(import_module(f"nccl_doctor.cli.{module}"), function)
        # the summary said outright: what is made of a docstring is cut at 45 letters
        made.command(name, cls=PanelCommand, short_help=command.__doc__.partition("\n")[0])(command)
    return made
