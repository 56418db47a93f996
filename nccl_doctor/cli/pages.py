"""``nccl-doctor explain`` and ``nccl-doctor codes``."""

from __future__ import annotations

from typing import Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.output import Out, finish


def explain(
    code: Annotated[str, typer.Argument(metavar="CODE", help="NCD304, 304, port-in-use, or the error's own words.")],
    output: Annotated[str, options.output("explain")] = "human",
) -> None:
    """The page of one diagnosis: what it means, how we know, what to do."""

    def work() -> int:
        from nccl_doctor.judge.pages import page_of
        from nccl_doctor.model.documents import Page

        entry = page_of(code)
        page = Page(code=entry.code, name=entry.name, severity=entry.severity, category=entry.category, text=entry.page)
        out.show(page)
        return 0

    out = Out("explain", output)
    finish(out, work)


def codes(output: Annotated[str, options.output("codes")] = "human") -> None:
    """All diagnoses, a line each."""

    def work() -> int:
        from nccl_doctor.model.documents import CodeEntry, Codes
        from nccl_doctor.model.register import all_checks

        entries = (CodeEntry(code=c.code, name=c.name, severity=c.severity, category=c.category) for c in all_checks())
        out.show(Codes(codes=tuple(sorted(entries, key=lambda entry: entry.code))))
        return 0

    out = Out("codes", output)
    finish(out, work)
