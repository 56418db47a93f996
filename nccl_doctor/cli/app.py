"""The command line: registers the commands. Their modules import the rest only when they run, so `--help` is quick."""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from nccl_doctor import __version__
from nccl_doctor.cli.check import check
from nccl_doctor.cli.diff import diff
from nccl_doctor.cli.fix_port import fix_port
from nccl_doctor.cli.hang import hang
from nccl_doctor.cli.hosts import hosts
from nccl_doctor.cli.ifname import ifname
from nccl_doctor.cli.launch import launch
from nccl_doctor.cli.logs import logs
from nccl_doctor.cli.output import error_document
from nccl_doctor.cli.pages import codes, explain
from nccl_doctor.cli.smoke import smoke

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nccl-doctor {__version__}")
        raise typer.Exit


@app.callback()
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
        """As ever; ``--kube`` may stand without a value, for which typer has no word."""
        pairs = zip(args, [*args, "-"][1:], strict=True)
        bare = [one == "--kube" and following.startswith("-") for one, following in pairs]
        try:
            return super().parse_args(ctx, ["--kube=" if alone else one for one, alone in zip(args, bare, strict=True)])
        except typer.TyperException as error:
            if _wants_json(args):
                error_document(str(ctx.info_name), error.format_message())
            raise


def _wants_json(args: list[str]) -> bool:
    """Whether arguments that could not be read say ``-o json``."""
    return any(one in ("-ojson", "--output=json", "--format=json") for one in args) or any(
        pair in itertools.product(("-o", "--output", "--format"), ("json",)) for pair in itertools.pairwise(args)
    )


for command in (check, fix_port, smoke, logs, ifname, hosts, launch, hang, diff, explain, codes):
    # the summary said outright: what is made of a docstring is cut at 45 letters
    app.command(cls=PanelCommand, short_help=(command.__doc__ or "").partition("\n")[0])(command)
