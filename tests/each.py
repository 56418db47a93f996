"""One test over hundreds of cases that take no time: a test of its own costs pytest five milliseconds for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def each(cases: Iterable[T], label: Callable[[T], str]) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """As ``pytest.mark.parametrize`` with one argument and ``ids``; tells of all cases that fail."""
    every = tuple(cases)
    assert every

    def decorate(test: Callable[[T], None]) -> Callable[[], None]:
        def whole() -> None:
            failed = []
            for case in every:
                try:
                    test(case)
                except AssertionError as error:
                    failed.append(f"{label(case)}:\n{error}")
            assert not failed, "\n\n".join(failed)

        whole.__name__, whole.__doc__, whole.__module__ = test.__name__, test.__doc__, test.__module__
        return whole

    return decorate
