"""The ``nccl-doctor diff`` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.options import flattened
from nccl_doctor.cli.output import finish


@flattened
def diff(
    *,
    before: Annotated[Path, typer.Argument(metavar="A", help="Snapshot written by check --save.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Later snapshot.")],
    output: Annotated[str, options.output("diff")] = "human",
    verbose: Annotated[bool, options.of_output("-v", "--verbose", help="Show every value with its path.")] = False,
    filed: options.HtmlOptions,
) -> None:
    """Show what changed between two snapshots. Exit with 0 if nothing changed, otherwise with 1."""
    out = filed.out("diff", output)._replace(verbose=verbose)

    def work() -> int:
        from nccl_doctor.cli.snapshots import of_snapshot, read_snapshot
        from nccl_doctor.judge.from_file import difference

        old, new = read_snapshot(before), read_snapshot(after)
        document = of_snapshot(difference(old, new), (*old.cluster.nodes, *new.cluster.nodes))
        out.show(document)
        return 0 if document.is_empty else 1

    finish(out, work)
