"""How a check declares itself, and how all checks are found.

A live check::

    @check("NCD501", severity=Severity.ERROR, needs=("torch",), explains=("allreduce-failed",))
    def torch_missing(view: View) -> Iterator[Finding | Unjudged]: ...

A diagnosis that only logs show, or only a look at a running job, declares itself with :func:`from_logs` or
:func:`from_hang`, so that it has a code, a page and a severity.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.text.hostlist import K, grouped

if TYPE_CHECKING:
    # Types of what a view holds: the diagnosis of a log has none, and loading them takes as long as reading 200 MB.
    from nccl_doctor.derived import Derived
    from nccl_doctor.firewall.blame import ExplainedDials
    from nccl_doctor.firewall.network_policy import PolicyBlame
    from nccl_doctor.firewall.ways import Hindrance
    from nccl_doctor.nccl.cluster_nccl import ClusterNccl
    from nccl_doctor.snapshot import Dial, FactName, Host, HostFacts, Mesh, Smoke, Snapshot
    from nccl_doctor.snapshot.pods import KubeFacts


@dataclass(frozen=True)
class Unjudged:
    """Yielded by a check that finds, while it looks, that the verdict on some hosts hangs on an unknown fact."""

    hosts: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class View:
    """What a check sees: the snapshot, what follows from it, and the reached hosts whose needed facts are all known."""

    derived: Derived
    hosts: tuple[Host, ...]

    @property
    def snapshot(self) -> Snapshot:
        """All that was seen."""
        return self.derived.snapshot

    @property
    def nccl(self) -> ClusterNccl:
        """What NCCL does on each host."""
        return self.derived.nccl

    @property
    def kube(self) -> KubeFacts:
        """What the cluster's API tells of the pods; empty where the hosts are none."""
        return self.derived.kube

    @property
    def firewall(self) -> ExplainedDials:
        """What the hosts' packet filters explain of the dials that failed; for checks that need the mesh."""
        return self.derived.dials.firewall

    @property
    def hindrances(self) -> dict[int, Hindrance]:
        """By id of a failed dial, the route or the filter of the way back that explains it; needs the mesh."""
        return self.derived.dials.hindrances

    @property
    def policies(self) -> dict[int, tuple[PolicyBlame, ...]]:
        """By id of a failed dial, the NetworkPolicies that drop it; needs the mesh."""
        return self.derived.dials.policies

    @property
    def unexplained(self) -> tuple[Dial, ...]:
        """The failed dials that nothing on either host explains; needs the mesh."""
        return self.derived.dials.unexplained

    @property
    def mesh(self) -> Mesh:
        """The port mesh, for checks that need it."""
        from nccl_doctor.snapshot import known

        return known(self.snapshot.mesh)

    @property
    def smoke(self) -> Smoke:
        """The all-reduce, for checks that need it."""
        from nccl_doctor.snapshot import known

        return known(self.snapshot.smoke)

    @property
    def facts(self) -> Iterator[tuple[Host, HostFacts]]:
        """Each host of this view with its facts, by node rank."""
        for host in self.hosts:
            if host.facts is not None:
                yield host, host.facts

    def hosts_by(self, key: Callable[[HostFacts], K | None]) -> dict[K, list[str]]:
        """The hosts by what ``key`` makes of their facts, those left out of which it makes nothing."""
        made = ((key(facts), host.name) for host, facts in self.facts)
        return grouped((value, name) for value, name in made if value is not None)


Phase = Literal["mesh", "smoke"]
"""The fields of :class:`~nccl_doctor.snapshot.Snapshot` without which some check can't judge at all."""

PHASES: tuple[Phase, ...] = get_args(Phase)
Engine = Literal["ssh", "slurm", "kube", "inside"]
Scope = Literal["all", "master"] | Engine
CheckFunction = Callable[[View], Iterator[Finding | Unjudged]]


@dataclass(frozen=True)
class Check:
    """A register entry.

    Attributes:
        code: "NCD" and three digits, never renumbered or reused.
        needs: what has to be known; for what is, ``nccl_doctor.snapshot.known`` gives the check its value.
        explains: names of the diagnoses that merely follow from this one. Not those that ranks print of any fault of
            another one (nccl_doctor.logs.rule, ``LogSigns.echo``).
        in_logs: what also follows where a log alone tells; facts of a host would show the two apart.
        scope: "master" judges the first host only, an engine those that are reached so
            (:attr:`~nccl_doctor.model.cluster.Node.engines`).
        function: None for a diagnosis that only logs or a running job show.
    """

    code: str
    name: str
    category: str
    page: str
    severity: Severity
    explains: tuple[str, ...] = ()
    in_logs: tuple[str, ...] = ()
    needs: tuple[FactName | Phase, ...] = ()
    scope: Scope = "all"
    function: CheckFunction | None = None


PACKAGE = "nccl_doctor.checks"
_register: dict[str, Check] = {}


def check(
    code: str,
    *,
    severity: Severity,
    needs: tuple[FactName | Phase, ...] = (),
    explains: tuple[str, ...] = (),
    in_logs: tuple[str, ...] = (),
    scope: Scope = "all",
) -> Callable[[CheckFunction], CheckFunction]:
    """Registers the decorated function as the check of its module."""

    def enter(function: CheckFunction) -> CheckFunction:
        entry = _entry(function.__module__, code, severity, explains)
        _enter(replace(entry, in_logs=in_logs, needs=needs, scope=scope, function=function))
        return function

    return enter


def from_logs(module: str, code: str, *, severity: Severity = Severity.ERROR, explains: tuple[str, ...] = ()) -> None:
    """Registers the calling module (pass ``__name__``) as a diagnosis that only logs show."""
    _enter(_entry(module, code, severity, explains))


def from_hang(module: str, code: str, *, explains: tuple[str, ...] = ()) -> None:
    """Registers the calling module (pass ``__name__``) as a diagnosis of a job that stands still."""
    _enter(_entry(module, code, Severity.ERROR, explains))


def _entry(module: str, code: str, severity: Severity, explains: tuple[str, ...]) -> Check:
    *_, category, stem = module.split(".")
    return Check(
        code=code,
        name=stem.replace("_", "-"),
        category=category.replace("_", "-"),
        page=inspect.cleandoc(sys.modules[module].__doc__ or ""),
        severity=severity,
        explains=explains,
    )


def _enter(entry: Check) -> None:
    taken = _register.get(entry.code)
    if taken is not None and taken.name != entry.name:
        raise ValueError(f"{entry.code} is both {taken.name} and {entry.name}")
    _register[entry.code] = entry


def _modules() -> Iterator[pkgutil.ModuleInfo]:
    """Those of the checks, found by name: they import this one."""
    return pkgutil.walk_packages(importlib.import_module(PACKAGE).__path__, f"{PACKAGE}.")


@cache
def all_checks() -> tuple[Check, ...]:
    """Every diagnosis there is, by code."""
    for module in _modules():
        importlib.import_module(module.name)
    return tuple(_register[code] for code in sorted(_register))


@cache
def entry(name: str) -> Check:
    """The diagnosis of this name; its module alone is imported, which is ten times as fast as all of them.

    Raises:
        KeyError: there is none of this name.
    """
    stem = name.replace("-", "_")
    for module in _modules():
        if module.name.endswith(f".{stem}"):
            importlib.import_module(module.name)
    by_name = {check.name: check for check in _register.values()}
    return by_name[name]


def find(word: str) -> tuple[Check, ...]:
    """The checks that a code, a name or a category means; empty where it means none."""
    return tuple(c for c in all_checks() if word.lower() in (c.code.lower(), c.name, c.category))
