"""The ``nccl-doctor schema`` command, which prints the JSON Schema of a command's JSON output."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from nccl_doctor.cli.output import Out, finish
from nccl_doctor.errors import UsageError


def _complete(incomplete: str) -> list[str]:
    from nccl_doctor.report.schema import DOCUMENTS

    return [command for command in DOCUMENTS if command.startswith(incomplete)]


def schema(
    command: Annotated[
        str,
        typer.Argument(
            metavar="COMMAND",
            help="Command whose JSON output the schema describes, such as hang (default: check).",
            autocompletion=_complete,
        ),
    ] = "check",
) -> None:
    """Print the JSON Schema of a command's JSON output."""
    out = Out("schema")

    def work() -> int:
        from nccl_doctor.report.schema import DOCUMENTS, schema_of

        if command not in DOCUMENTS:
            raise UsageError(f'"{command}" prints no JSON; these do: {", ".join(DOCUMENTS)}')
        out.write(json.dumps(schema_of(command), indent=2) + "\n")
        return 0

    finish(out, work)
