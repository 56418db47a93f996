"""Which diagnoses ``--only`` and ``--skip`` leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from nccl_doctor.errors import UsageError

if TYPE_CHECKING:
    from nccl_doctor.model.register import Check

Codes = set[str] | None
"""Codes of the checks that run; None for all, which spares a command that waits for hosts the import of all checks."""

PHASE_WORDS = {"smoke": "the all-reduce", "mesh": "the dials"}


def selection(only: Iterable[str], skip: Iterable[str]) -> Codes:
    """What these words mean, each a code, a name or a category.

    Raises:
        UsageError: a word is none of them.
    """
    only, skip = tuple(only), tuple(skip)
    if not only and not skip:
        return None
    from nccl_doctor.model.register import all_checks

    chosen = {check.code for word in only for check in _meant(word)} if only else {c.code for c in all_checks()}
    return chosen - {check.code for word in skip for check in _meant(word)}


def refuse_nothing_to_judge(selected: Codes, left_out: Mapping[str, str]) -> None:
    """Nothing found by nobody would look like a clean bill.

    Args:
        selected: the codes.
        left_out: the phases that this run or its snapshot is without, and why.

    Raises:
        UsageError: no check that looks at hosts is selected, or all of them need what is left out.
    """
    if selected is None:
        return
    from nccl_doctor.model.register import all_checks

    some = [check for check in all_checks() if check.function and check.code in selected]
    if not some:
        raise UsageError("--only and --skip leave no check of hosts; what only logs show is for nccl-doctor logs")
    if all(left_out.keys() & check.needs for check in some):
        needed = {need for check in some for need in check.needs}
        missing = (f"{PHASE_WORDS[phase]}, {why}" for phase, why in left_out.items() if phase in needed)
        raise UsageError(f"all that --only selects needs {', or '.join(missing)}")


def among(codes: Codes) -> Callable[[Check], bool]:
    """Whether a check is one of them."""
    return lambda check: codes is None or check.code in codes


def _meant(word: str) -> tuple[Check, ...]:
    from nccl_doctor.model.register import all_checks, find

    found = find(word)
    if not found:
        import difflib

        names = [text for check in all_checks() for text in (check.code, check.name, check.category)]
        near = difflib.get_close_matches(word, names, 1)
        hint = f'; did you mean "{near[0]}"?' if near else '; "nccl-doctor codes" lists them'
        raise UsageError(f'"{word}" is no code, name or category of a check{hint}')
    return found
