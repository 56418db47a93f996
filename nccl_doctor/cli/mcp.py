"""The ``nccl-doctor mcp`` command, which serves the read-only commands to agents over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nccl_doctor.cli.options import flattened
from nccl_doctor.cli.output import Out, finish
from nccl_doctor.errors import UsageError


@flattened
def mcp(
    *,
    hosts: Annotated[
        str | None,
        typer.Argument(
            metavar="HOSTS",
            help="Hosts file for check, ifname and hang. Default: the nodes of the current Slurm job, or this machine.",
        ),
    ] = None,
    logs: Annotated[
        list[Path] | None,
        typer.Option(
            "--logs",
            metavar="DIR",
            help="Directory below which logs and snapshots can be read (default: the current directory); repeatable.",
        ),
    ] = None,
) -> None:
    """Serve the read-only commands to AI agents over stdin and stdout (Model Context Protocol)."""

    def work() -> int:
        try:
            from nccl_doctor.cli.mcp_tools import Tools
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
                raise
            raise UsageError("the MCP SDK is missing; install it: pip install 'nccl-doctor[mcp]'") from None
        Tools(hosts, tuple(logs or (Path(),))).server().run("stdio")
        return 0

    finish(Out("mcp"), work)
