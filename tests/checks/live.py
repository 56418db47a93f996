"""The checks that judge hosts, and where their fixtures are."""

from __future__ import annotations

from pathlib import Path

from nccl_doctor.model.register import Check, all_checks

HERE = Path(__file__).parent


LIVE = [check for check in all_checks() if check.function is not None]


def folder(check: Check) -> Path:
    return HERE / check.category.replace("-", "_") / check.name.replace("-", "_")
