"""``nccl-doctor codes``."""

from __future__ import annotations

from typing import Annotated

from nccl_doctor.cli import options
from nccl_doctor.cli.output import Out, finish


def codes(output: Annotated[str, options.output("codes")] = "human") -> None:
    """All diagnoses, a line each."""

    def work() -> int:
        from nccl_doctor.model.documents import CodeEntry, Codes
        from nccl_doctor.model.register import all_checks

        out.show(Codes(codes=tuple(CodeEntry(**each.heading) for each in all_checks())))
        return 0

    out = Out("codes", output)
    finish(out, work)
