"""The options that commands share, with their help texts: each an annotated type, in the panel that it belongs to."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from nccl_doctor.cli.choices import Color
from nccl_doctor.model.engine import engines, kinds
from nccl_doctor.report.render import FORMS

of_hosts = partial(typer.Option, rich_help_panel="Hosts and how to reach them")
of_job = partial(typer.Option, rich_help_panel="The job, where the hosts file says nothing else")
of_run = partial(typer.Option, rich_help_panel="What is done")
of_report = partial(typer.Option, rich_help_panel="The report")
of_keep = partial(typer.Option, rich_help_panel="What is kept")

LONGEST_S = 7 * 86400
"""For every wait: far beyond what anybody waits for, and within what timers and time-outs can hold."""


def _transport(kind: str) -> str:
    if kind not in kinds():
        raise typer.BadParameter(f"{kind!r} is not one of {', '.join(map(repr, kinds()))}.")
    return kind


def of_engines(chooser: str, *, fix_port: bool = False) -> dict[str, Any]:
    """The options that choose the hosts of engines, by the names of their values: annotated types.

    Args:
        chooser: the option that chooses among those hosts.
        fix_port: the command is that.
    """
    return {
        flag.name: Annotated[
            bool | None if flag.switch else str | None,
            of_hosts(
                *flag.words,
                metavar=flag.metavar,
                help=flag.help.format(chooser=chooser),
                show_default=flag.default or True,
            ),
        ]
        for engine in engines()
        for flag in engine.flags
        if flag.fix_port or not fix_port
    }


def output(command: str) -> typer.models.OptionInfo:
    """``-o`` of a command, with the forms that it has; :mod:`nccl_doctor.cli.output` refuses others."""
    option: typer.models.OptionInfo = of_report(
        "-o", "--output", metavar="|".join(FORMS[command]), help="Form of the output."
    )
    return option


Output = Annotated[str, output("check")]
OutputFile = Annotated[
    Path | None, of_report("--output-file", metavar="FILE", help="Write the report here, not to stdout.")
]
ShowSecrets = Annotated[
    bool,
    of_report("--show-secrets", help="Don't cut passwords, tokens and keys from command lines, log lines, variables."),
]
ColorWhen = Annotated[Color, of_report("--color", help="Colour; NO_COLOR is honoured.")]
Quiet = Annotated[bool, of_report("-q", "--quiet", help="Only what was found; no progress.")]
ConnectTimeout = Annotated[
    float | None,
    of_hosts(
        "--connect-timeout",
        metavar="SECONDS",
        help="For each host to answer; a login that has begun has three times as long.",
        min=1,
        max=LONGEST_S,
        show_default="10, or ConnectTimeout of ~/.ssh/config",
    ),
]
Timeout = Annotated[float, of_run("--timeout", metavar="SECONDS", help="For the whole run.", min=1, max=LONGEST_S)]
TimeoutWithSmoke = Annotated[
    float | None,
    of_run(
        "--timeout",
        metavar="SECONDS",
        help="For the whole run.",
        min=1,
        max=LONGEST_S,
        show_default="300, or 240 more than --smoke-timeout",
    ),
]
Transport = Annotated[
    str, of_hosts("--transport", metavar="|".join(kinds()), callback=_transport, help="How hosts are reached.")
]
Save = Annotated[Path | None, of_keep("--save", metavar="SNAPSHOT", help="Keep all that was seen in this file.")]
From = Annotated[
    Path | None, of_keep("--from", metavar="SNAPSHOT", help="Judge what --save kept; no host is contacted.")
]
Python = Annotated[
    str | None, of_hosts("--python", metavar="PATH", help="The interpreter that training uses, on every host.")
]
Inside = Annotated[
    str | None,
    of_hosts(
        "--inside",
        metavar="RUNTIME:NAME",
        help="The container on each host: docker, podman, nerdctl or apptainer; enter:PID is a process' namespaces.",
    ),
]
SmokeTimeout = Annotated[
    float, of_run("--smoke-timeout", metavar="SECONDS", help="Deadline of the all-reduce.", min=1, max=LONGEST_S)
]
