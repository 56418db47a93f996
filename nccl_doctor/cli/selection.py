"""Which diagnoses ``--only`` and ``--skip`` leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from nccl_doctor.errors import UsageError

if TYPE_CHECKING:
    from nccl_doctor.registry import Check

Codes = set[str] | None
"""Codes of the checks that run; None for all, which spares a command that waits for hosts the import of all checks."""


def selection(only: Iterable[str], skip: Iterable[str]) -> Codes:
    """What these words mean, each a code, a name or a category.

    Raises:
        UsageError: a word is none of them.
    """
    only, skip = tuple(only), tuple(skip)
    if not only and not skip:
        return None
    from nccl_doctor.registry import all_checks

    chosen = {check.code for word in only for check in _meant(word)} if only else {c.code for c in all_checks()}
    return chosen - {check.code for word in skip for check in _meant(word)}


def among(codes: Codes) -> Callable[[Check], bool]:
    """Whether a check is one of them."""
    return lambda check: codes is None or check.code in codes


def _meant(word: str) -> tuple[Check, ...]:
    from nccl_doctor.registry import all_checks, find

    found = find(word)
    if not found:
        import difflib

        names = [text for check in all_checks() for text in (check.code, check.name, check.category)]
        near = difflib.get_close_matches(word, names, 1)
        hint = f'; did you mean "{near[0]}"?' if near else '; "nccl-doctor codes" lists them'
        raise UsageError(f'"{word}" is no code, name or category of a check{hint}')
    return found
