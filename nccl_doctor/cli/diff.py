"""``nccl-doctor diff``: what changed between two snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.output import Out, finish


def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="A snapshot that check --save wrote.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="A later one.")],
    output: options.Output = options.Form.HUMAN,
) -> None:
    """Says which facts and diagnoses changed from A to B; exit 0 where nothing did, 1 where something did."""

    def work() -> int:
        import json
        from dataclasses import asdict

        from nccl_doctor.cli.snapshots import read_snapshot
        from nccl_doctor.compare import changes
        from nccl_doctor.diagnose import judge
        from nccl_doctor.errors import UsageError
        from nccl_doctor.report.diff import diff as text

        if output not in (options.Form.HUMAN, options.Form.JSON):
            raise UsageError("diff prints human or json")
        old, new = read_snapshot(before), read_snapshot(after)
        changed = changes(old, new)
        judged = [{(d.code, d.hosts): d for d in judge(one, "check").diagnoses} for one in (old, new)]
        gone = [d for key, d in judged[0].items() if key not in judged[1]]
        came = [d for key, d in judged[1].items() if key not in judged[0]]
        if output is options.Form.JSON:
            document = {
                "schema": 1,
                "command": "diff",
                "changes": [asdict(one) for one in changed],
                "diagnoses": {
                    "gone": [d.model_dump(mode="json") for d in gone],
                    "new": [d.model_dump(mode="json") for d in came],
                },
            }
            out.write(json.dumps(document, indent=2) + "\n")
        else:
            out.write(text([(one.what, one.before, one.after, one.hosts) for one in changed], gone, came))
        return 1 if changed or gone or came else 0

    out = Out("diff", output)
    finish(out, work)
