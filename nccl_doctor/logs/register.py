"""All that logs show, found by walking the packages that hold it: a file a diagnosis.

What logs alone show stands in ``checks/seen_in_logs``, with its page; of what a check finds too, ``logs/signs`` holds
the wordings and the advice. Each such module has its :class:`~nccl_doctor.logs.rule.LogSigns` as ``SIGNS``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from nccl_doctor.logs.marks import BENIGN
from nccl_doctor.logs.rule import LogRule, LogSigns

PACKAGES = ("nccl_doctor.checks.seen_in_logs", "nccl_doctor.logs.signs")


@cache
def signs() -> dict[str, LogSigns]:
    """By the diagnosis' name, in the order in which they speak."""
    found = dict(sorted(_found()))
    ordered: dict[str, LogSigns] = {}

    def place(name: str, waiting: tuple[str, ...]) -> None:
        if name in waiting:
            raise ValueError(f"{' after '.join((*waiting, name))}")
        for earlier in found[name].after:
            place(earlier, (*waiting, name))
        ordered.setdefault(name, found[name])

    for name in found:
        place(name, ())
    return ordered


def _found() -> Iterator[tuple[str, LogSigns]]:
    for package in PACKAGES:
        for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
            module = importlib.import_module(f"{package}.{found.name}")
            yield found.name.replace("_", "-"), module.SIGNS


@cache
def rules() -> tuple[LogRule, ...]:
    """Every wording: between rules of one grade that match one line, the first speaks."""
    return (*BENIGN, *(replace(rule, name=name) for name, one in signs().items() for rule in one.rules))


@cache
def echoes() -> frozenset[str]:
    """Names of the diagnoses that are only what ranks see of another one's fault."""
    return frozenset(name for name, one in signs().items() if one.echo)
