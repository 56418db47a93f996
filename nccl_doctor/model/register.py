"""The register of diagnoses: code, name, page, severity and effects of each diagnosis.

Each module of ``checks/CATEGORY`` registers itself when it is imported. Live checks are registered by
:func:`nccl_doctor.checks.view.check`, diagnoses that are found only in logs by :func:`from_logs`, and diagnoses that
are found only in running jobs by :func:`from_hang`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

from nccl_doctor.model.effect import Effect
from nccl_doctor.model.finding import Finding, Severity

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Unjudged:
    """A result that a check yields if it has no verdict on some hosts because a fact is unknown."""

    hosts: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Absent:
    """A result that a check yields, with a reason, if the check does not apply to the run."""

    reason: str
    skipped: bool = False  # it was not requested, or the run ended before it


Scope = str  # "all", "master", or an engine's name (:mod:`nccl_doctor.model.engine`)
CheckFunction = Callable[..., Iterator[Finding | Unjudged | Absent]]  # takes a view (nccl_doctor.checks.view)


class Traits(TypedDict, total=False):
    """Optional arguments for registering a diagnosis. :class:`Check` explains the fields."""

    explains: tuple[str | Effect, ...]
    in_logs: tuple[str, ...]
    needs_nccl: bool
    in_output: bool
    outside: bool
    hides: tuple[str, ...]
    errors: tuple[str, ...]
    also: tuple[str, ...]
    phrase: str
    row: str
    row_words: str
    row_suffices: bool


@dataclass(frozen=True)
class Check:
    """A diagnosis in the register."""

    code: str  # "NCD" and three digits, never renumbered or reused
    name: str
    category: str
    page: str
    severity: Severity
    # consequences of this diagnosis: names of diagnoses on its hosts, and effects on an all-reduce; not what ranks
    # print about another fault (nccl_doctor.logs.signs, ``LogSigns.echo``)
    explains: tuple[str | Effect, ...] = ()
    # further consequences if only a log is judged; with facts of hosts the two can be told apart
    in_logs: tuple[str, ...] = ()
    # judges only hosts whose NCCL choice is known; its check reads that from ``View.by_host``
    needs_nccl: bool = False
    in_output: bool = False  # its cause is also looked for in the output of its ranks
    outside: bool = False  # its commands are for the host that runs the container
    # facts that are unavailable on a host with this diagnosis; checks that need them are not judged there, without a
    # gap
    hides: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()  # errno names that mean it if a job of several hosts starts
    phrase: str = ""  # for a row of the screen that fails; by default the name
    row: str | None = None  # row of the screen; its category's row if None
    row_words: str = ""  # additional words of that row if it passes
    row_suffices: bool = False  # the row's own phrase names its fault
    # fields of host facts, and phases, that must be known; ``nccl_doctor.snapshot.known`` gives the check their values
    needs: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # phases and facts that it judges if they are known, but does not need
    scope: Scope = "all"  # "master" judges only the first host, an engine only hosts reached that way
    function: CheckFunction | None = None  # None for a diagnosis that only logs or a running job show

    @property
    def heading(self) -> dict[str, Any]:
        """The fields of ``CodeEntry``, which form the heading of the diagnosis's page."""
        return {name: getattr(self, name) for name in ("code", "name", "severity", "category")}


PACKAGE = "nccl_doctor.checks"
_register: dict[str, Check] = {}


def from_logs(module: str, code: str, *, severity: Severity = Severity.ERROR, **traits: Unpack[Traits]) -> None:
    """Register the calling module (pass ``__name__``) as a diagnosis that is found only in logs."""
    enter(make_entry(module, code, severity, **traits))


def from_hang(module: str, code: str, **traits: Unpack[Traits]) -> None:
    """Register the calling module (pass ``__name__``) as a diagnosis that is found only in running jobs."""
    enter(make_entry(module, code, Severity.ERROR, **traits))


def make_entry(module: str, code: str, severity: Severity, **traits: Unpack[Traits]) -> Check:
    """Return the register entry for a module below ``checks``, using the module's path and docstring."""
    *_, category, stem = module.split(".")
    traits.setdefault("phrase", stem.replace("_", " "))
    return Check(
        code=code,
        name=stem.replace("_", "-"),
        category=category.replace("_", "-"),
        page=inspect.cleandoc(sys.modules[module].__doc__ or ""),
        severity=severity,
        **traits,
    )


def enter(entry: Check) -> None:
    """Register a diagnosis. Raise ValueError if another diagnosis already uses the same code."""
    registered = _register.get(entry.code)
    if registered is not None and registered.name != entry.name:
        raise ValueError(f"{entry.code} is both {registered.name} and {entry.name}")
    _register[entry.code] = entry


def _modules() -> Iterator[pkgutil.ModuleInfo]:
    """Yield the modules in checks/.

    These modules import the register, so the register imports them only when they are needed.
    """
    return pkgutil.walk_packages(importlib.import_module(PACKAGE).__path__, f"{PACKAGE}.")


@cache
def all_checks() -> tuple[Check, ...]:
    """Return all diagnoses, sorted by code."""
    for module in _modules():
        importlib.import_module(module.name)
    return tuple(_register[code] for code in sorted(_register))


@cache
def entry(name: str) -> Check:
    """Return the diagnosis with this name.

    Raise KeyError if no diagnosis has this name. Only the module of the diagnosis is imported, which is ten times
    faster than importing all modules.
    """
    if all(check.name != name for check in _register.values()):
        for module in _modules():
            if module.name.endswith(f".{name.replace('-', '_')}"):
                importlib.import_module(module.name)
    return {check.name: check for check in _register.values()}[name]


def find(word: str) -> tuple[Check, ...]:
    """Return the checks with this code, name or category.

    If no check has this code, name or category, return the checks of the row with this name in the terminal output. The
    result is empty if the word is unknown.
    """
    known = word.lower()
    matches = tuple(c for c in all_checks() if known in (c.code.lower(), c.name, c.category))
    row = known.replace("-", "")  # "all-reduce" is the row of the category allreduce
    return matches or tuple(c for c in all_checks() if row and row in ((c.row or "").lower(), c.category))
