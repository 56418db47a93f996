"""The commands ``nccl-doctor explain`` and ``nccl-doctor codes``."""

from __future__ import annotations

from typing import Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.output import Out, finish
from nccl_doctor.errors import UsageError


def _complete(incomplete: str) -> list[str]:
    from nccl_doctor.judge.pages import topic_names
    from nccl_doctor.model.register import all_checks

    return options.completing(*topic_names(), *(check.name for check in all_checks()))(incomplete)


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CODE|TOPIC",
            help="Code (NCD304 or 304), name (port-in-use), words of an error, or topic (slurm). "
            "If omitted, all topics are listed.",
            autocompletion=_complete,
        ),
    ] = None,
    output: Annotated[str, options.output("explain")] = "human",
) -> None:
    """Explain a diagnosis (what it means, how it is found, what to do) or a topic."""

    def work() -> int:
        from nccl_doctor.judge.pages import find_pages

        pages = find_pages(" ".join(words or ()))
        if len(pages) > 1 and output != "human":
            raise UsageError(f"-o {output} prints one page; name one code, not {len(pages)}")
        for place, page in enumerate(pages):
            out.write("\n" if place else "")
            out.show(page)
        return 0

    out = Out("explain", output)
    finish(out, work)


def codes(output: Annotated[str, options.output("codes")] = "human") -> None:
    """List all diagnoses, one per line."""

    def work() -> int:
        from nccl_doctor.model.documents import CodeEntry, Codes
        from nccl_doctor.model.register import all_checks

        out.show(Codes(codes=tuple(CodeEntry(**each.heading) for each in all_checks())))
        return 0

    out = Out("codes", output)
    finish(out, work)
