"""How logs show a diagnosis, and what to say then; found by walking the checks: a file a diagnosis.

A check whose fault logs show, too, has its :class:`LogSigns` as ``SIGNS`` in its module.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.marks import BENIGN
from nccl_doctor.logs.rule import Grade, LogRule
from nccl_doctor.model.finding import Command, Fix, on
from nccl_doctor.model.register import PACKAGE
from nccl_doctor.text.hostlist import ranks_of
from nccl_doctor.text.shell import line


@dataclass(frozen=True)
class Advice:
    """One sentence for a tired person, and what to do."""

    message: str
    fix: Fix


WITH_THE_HOSTS = "nccl-doctor check with the job's hosts file, or -w and their names"
"""For a log that names no host: what would be pasted if it did."""
THEN = "Then see what the hosts say:"


def advise(message: str, summary: str, commands: tuple[Command, ...] = ()) -> Advice:
    """Advice with commands that are safe to paste.

    The last thing said is what the commands are for; where a log names nobody to paste them for, they are told.
    """
    announced = summary.endswith(":")
    if announced and not commands:
        summary = f"{summary[:-1]} ({WITH_THE_HOSTS})."
    elif commands and not announced:
        summary = f"{summary} {THEN}"
    return Advice(message, Fix(summary=summary, risk="safe" if commands else "manual", commands=commands))


def ifname_command(case: Case) -> tuple[Command, ...]:
    """``nccl-doctor ifname`` over the hosts concerned; here where the log names none."""
    return case.check(command="ifname") or on(None, line("nccl-doctor ifname"))


def not_logged_in(case: Case, why: str, summary: str) -> Advice:
    """The advice where a launcher could not log in to a host over SSH."""
    host = case.address.host or case.address.ip or next(iter(case.hosts), "a host")
    return advise(f"The launcher could not log in to {host} by SSH: {why}.", summary, case.check())


def by_rank(case: Case) -> Advice:
    """What RAS or the flight recorder says of each rank, the culprits' words first."""
    words = [f"{ranks_of([e.rank]) if e.rank is not None else 'a rank'} {e.message}" for e in case.cause.events[:3]]
    more = len(case.cause.events) - len(words)
    return advise(
        "; ".join(words) + (f"; and {more} more" if more > 0 else "") + ".",
        "Look at what the first of them did meanwhile (py-spy dump, its own log): the others wait for it.",
        case.check(),
    )


@dataclass(frozen=True)
class LogSigns:
    """How logs show one diagnosis, and what to say then: the ``SIGNS`` of its file.

    Attributes:
        rules: its wordings; of several of one grade that fit a line, the first speaks.
        advice: what to say and do.
        after: diagnoses that go before this one where a line fits wordings of both that weigh the same; between
            others the name decides.
        echo: ranks see it of any fault of another one, so it is a cause only where nothing else is.
        network: it tells of the way between hosts; beside other such faults its hints count.
        hint: what a hint of it weighs once it counts.
        hint_beside: its hints count beside these faults alone, not beside any.
        warning_up_to: nothing worse than a warning up to this grade, where nothing follows from it: NCCL may have gone
            on without the plugin or the setting.
    """

    rules: tuple[LogRule, ...]
    advice: Callable[[Case], Advice]
    after: tuple[str, ...] = ()
    echo: bool = False
    network: bool = False
    hint: Grade = Grade.GENERIC
    hint_beside: tuple[str, ...] = ()
    warning_up_to: Grade = Grade.BENIGN


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
    """By name: checks stand above this room, and import it."""
    for module in pkgutil.walk_packages(importlib.import_module(PACKAGE).__path__, f"{PACKAGE}."):
        found = getattr(importlib.import_module(module.name), "SIGNS", None)
        if found is not None:
            yield module.name.rpartition(".")[2].replace("_", "-"), found


@cache
def rules() -> tuple[LogRule, ...]:
    """Every wording: between rules of one grade that match one line, the first speaks."""
    return (*BENIGN, *(replace(rule, name=name) for name, one in signs().items() for rule in one.rules))


@cache
def echoes() -> frozenset[str]:
    """Names of the diagnoses that are only what ranks see of another one's fault."""
    return frozenset(name for name, one in signs().items() if one.echo)
