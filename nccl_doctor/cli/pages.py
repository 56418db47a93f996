"""``nccl-doctor explain`` and ``nccl-doctor codes``."""

from __future__ import annotations

from typing import Annotated

import typer

from nccl_doctor.cli.output import Out, finish


def explain(code: Annotated[str, typer.Argument(metavar="CODE", help="NCD304, port-in-use")]) -> None:
    """The page of one diagnosis: what it means, how we know, what to do."""

    def work() -> int:
        from nccl_doctor.checks.registry import all_checks, find
        from nccl_doctor.errors import UsageError
        from nccl_doctor.report.page import page

        found = [check for check in find(code) if code.lower() != check.category]
        if not found:
            import difflib

            near = difflib.get_close_matches(code, [text for c in all_checks() for text in (c.code, c.name)], 1)
            hint = f'; did you mean "{near[0]}"?' if near else '; "nccl-doctor codes" lists them'
            raise UsageError(f'"{code}" is no diagnosis{hint}')
        entry = found[0]
        out.write(page(entry.code, entry.name, entry.severity, entry.category, entry.page))
        return 0

    out = Out("explain")
    finish(out, work)


def codes() -> None:
    """All diagnoses, a line each."""

    def work() -> int:
        from nccl_doctor.checks.registry import all_checks
        from nccl_doctor.report.page import codes as table

        out.write(table(all_checks()))
        return 0

    out = Out("codes")
    finish(out, work)
