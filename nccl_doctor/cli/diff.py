"""``nccl-doctor diff``."""

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
    before: Annotated[Path, typer.Argument(metavar="A", help="A snapshot that check --save wrote.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="A later one.")],
    output: Annotated[str, options.output("diff")] = "human",
    verbose: Annotated[bool, options.of_report("-v", "--verbose", help="Every value, by its place.")] = False,
    filed: options.FileOptions,
) -> None:
    """Says which facts and diagnoses changed from A to B; exit 0 where nothing did, 1 where something did."""
    out = filed.out("diff", output)._replace(verbose=verbose)

    def work() -> int:
        from nccl_doctor.cli.snapshots import of_snapshot, read_snapshot
        from nccl_doctor.judge.from_file import difference

        old, new = read_snapshot(before), read_snapshot(after)
        found = of_snapshot(difference(old, new), (*old.cluster.nodes, *new.cluster.nodes))
        out.show(found)
        return 0 if found.is_empty else 1

    finish(out, work)
