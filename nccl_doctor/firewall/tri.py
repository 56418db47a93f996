"""Three-valued logic: True, False, or None for "depends on what nobody captured"."""

from __future__ import annotations

from collections.abc import Iterable

Tri = bool | None


def negate(value: Tri) -> Tri:
    """NOT; unsure stays unsure."""
    return None if value is None else not value


def every(values: Iterable[Tri]) -> Tri:
    """AND: one False decides."""
    answer: Tri = True
    for value in values:
        if value is False:
            return False
        if value is None:
            answer = None
    return answer


def some(values: Iterable[Tri]) -> Tri:
    """OR: one True decides."""
    return negate(every(negate(value) for value in values))
