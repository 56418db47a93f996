"""How logs show a diagnosis, and what to say then; found by walking the checks: a file a diagnosis.

A check whose fault logs show, too, has its :class:`LogSigns` as ``SIGNS`` in its module.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache
from typing import Literal

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.log import Event, Log, Reading
from nccl_doctor.logs.rule import BENIGN, Grade, LogRule
from nccl_doctor.model.finding import Command, Fix, Severity, on
from nccl_doctor.model.register import PACKAGE
from nccl_doctor.text.hostlist import ranks_of
from nccl_doctor.text.shell import line


@dataclass(frozen=True)
class Advice:
    """A sentence for a tired person, and what to do."""

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
    """Advises with what RAS or the flight recorder says of each rank, the culprits first."""
    words = [f"{ranks_of([e.rank]) if e.rank is not None else 'a rank'} {e.message}" for e in case.cause.events[:3]]
    more = len(case.cause.events) - len(words)
    return advise(
        "; ".join(words) + (f"; and {more} more" if more > 0 else "") + ".",
        "Look at what the first of them did meanwhile (py-spy dump, its own log): the others wait for it.",
        case.check(),
    )


class Stage(IntEnum):
    """Passes over a log's events, in the order in which they run; which ones there are, the checks declare."""

    MEANING = 1
    """What a line means by the addresses and numbers in it."""
    RECOVERY = 2
    """What was no fault, for the run went on or had ended."""
    ENDING = 3
    """Who ended whom; from here on the log is that of the last run."""
    GIVING_UP = 4
    """What was tried until it was given up: then hints are weighed, and those that don't count are gone."""
    PLACES = 5
    """Where hosts of a run without an end are apart; not of a log that ended well, or whose lines were joined."""
    HANGS = 6
    """Where such a run stood; the same."""
    CONSEQUENCES = 7
    """What the faults that are left say of each other."""
    RECORDS = 8
    """What ranks did in one place, in lines and in dumps of the flight recorder."""


@dataclass
class Scene:
    """The events of a log while passes look at them beside each other.

    Attributes:
        log: everything that was read, from :attr:`Stage.ENDING` on of the last run alone.
        sources: all that was read of each source.
        stuck: diagnoses of which nothing succeeded after a retry, or that a process gave up for.
        names: faults that say more than that a process gave up, when hints are weighed.
    """

    events: list[Event]
    log: Log
    sources: dict[str, Reading]
    stuck: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


Pass = Callable[[Scene], list[Event]]
"""Of a stage: the events that are left, some under another name or of another weight."""


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
        waits: a rank waited for others, which is no sign of the way between hosts.
        dials: a connection that failed, to a name or an address that was known.
        retried: processes that look for the master say it, and go on.
        gives_up: of generic weight, it says no more than that a process gave up.
        unfinished: the diagnosis of a log that ends before all ranks have met.
        hint: what a hint of it weighs once it counts.
        hint_beside: its hints count beside these faults alone, not beside any.
        weigh: what a hint of it weighs, in place of these two.
        passes: what it makes of a log's events, by stage; in one stage the names decide who comes first.
        catalogued: what a warning weighs that NCCL's catalogue knows and no rule does.
        of_catalogue: what NCCL's catalogue says of its lines goes before its own wordings.
        ras: what RAS says of ranks and processes, and how much each of these weighs.
        interface: the interface or the device that a case of it is about.
        severity: of a case in which nothing worse is shown; None leaves an error.
        warning_up_to: nothing worse than a warning up to this grade, where nothing follows from it: NCCL may have gone
            on without the plugin or the setting.
    """

    rules: tuple[LogRule, ...]
    advice: Callable[[Case], Advice]
    after: tuple[str, ...] = ()
    echo: bool = False
    network: bool = False
    waits: bool = False
    dials: bool = False
    retried: bool = False
    gives_up: bool = False
    unfinished: bool = False
    hint: Grade = Grade.GENERIC
    hint_beside: tuple[str, ...] = ()
    weigh: Callable[[Event, Scene], Grade] | None = None
    passes: Mapping[Stage, Pass] = field(default_factory=dict)
    catalogued: Grade = Grade.LIKELY
    of_catalogue: bool = False
    ras: Mapping[str, Grade] = field(default_factory=dict)
    interface: Callable[[Case], str | None] | None = None
    severity: Callable[[Case], Severity | None] | None = None
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
    return (*BENIGN, *(replace(rule, name=name) for name, shown in signs().items() for rule in shown.rules))


Trait = Literal["echo", "network", "waits", "dials", "retried", "gives_up", "unfinished", "of_catalogue"]


@cache
def having(trait: Trait) -> frozenset[str]:
    """Names of the diagnoses that have a trait."""
    return frozenset(name for name, shown in signs().items() if getattr(shown, trait))


def echoes() -> frozenset[str]:
    """Names of the diagnoses that are only what ranks see of another one's fault."""
    return having("echo")


@cache
def ras_states() -> dict[str, tuple[str, Grade]]:
    """The diagnosis and the weight of what RAS says of ranks and processes."""
    return {state: (name, grade) for name, shown in signs().items() for state, grade in shown.ras.items()}


def faults(events: Iterable[Event]) -> set[str]:
    """Names of the faults that say more than that a process gave up."""
    silent = having("gives_up")
    return {e.name for e in events if e.grade > Grade.HINT and (e.name not in silent or e.grade > Grade.GENERIC)}


def on_the_way() -> frozenset[str]:
    """Names of what tells of the way between hosts, and of what ranks see of that."""
    return having("echo") | having("network")
