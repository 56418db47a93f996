"""Creates the findings of the access checks, and combines hosts that fail in the same way into one finding."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from nccl_doctor.checks.view import View
from nccl_doctor.model.finding import Finding, Fix
from nccl_doctor.snapshot.access import AccessFailure, EngineFailure, SshTarget
from nccl_doctor.snapshot.hosts import Host
from nccl_doctor.text.hostlist import fold, grouped

FOLLOWS = ("port-unreachable",)
"""Names of the diagnoses that might be consequences of a failure to connect to a host."""

Failure = TypeVar("Failure", bound=AccessFailure)
Remedy = Callable[[tuple[Failure, ...]], Fix]


def findings(
    view: View,
    failed: type[Failure],
    remedy: Remedy[Failure],
    joint: str = "",
    addition: Callable[[Failure], str] = lambda _failure: "",
    kind: str | None = None,
) -> Iterator[Finding]:
    """Yield one finding for each group of failures that have the same detail and remedy.

    The message consists of the hosts' names, ``joint``, the detail and the result of ``addition``. ``joint`` is empty
    if the detail can directly follow the names. The summary of the remedy must not name a host, because failures with
    different summaries are not combined. If ``kind`` is given, only failures of this kind are included.
    """
    alike = grouped(
        ((failure.detail, addition(failure), _hop(failure), remedy((failure,)).summary), (host, failure))
        for host in view.snapshot.hosts
        if isinstance(failure := host.failure, failed) and kind in (None, failure.kind)
    )
    for (detail, more, _, _), group in alike.items():
        hosts, failures = zip(*group, strict=True)
        evidence = failures[0].evidence
        if any(failure.evidence != evidence for failure in failures):
            evidence = tuple(f"{host.name}: {line}" for host, failure in group for line in failure.evidence)
        yield Finding(
            hosts=tuple(host.name for host in hosts),
            message=f"{_subject(hosts, failures[0])}{joint} {detail}{more}.",
            evidence=evidence,
            facts=_facts(hosts, failures),
            fix=remedy(failures),
        )


def of_engine(view: View, name: str, joint: str = "") -> Iterator[Finding]:
    return findings(view, EngineFailure, lambda failures: Fix(summary=failures[0].remedy), joint, kind=name)


def _subject(hosts: tuple[Host, ...], failure: AccessFailure) -> str:
    target, hop, names = failure.facts, _hop(failure), fold(host.name for host in hosts)
    place = f" ({target.address}:{target.port})" if isinstance(target, SshTarget) else ""
    if hop is not None:
        return f"The jump host {hop}{place} for {names}"
    return f"{names}{place}" if len(hosts) == 1 else names


def _hop(failure: AccessFailure) -> str | None:
    return failure.facts.jump_host if isinstance(failure.facts, SshTarget) else None


def _facts(hosts: tuple[Host, ...], failures: Sequence[AccessFailure]) -> dict[str, Any]:
    """Return the facts that all hosts share and, under "by_host", the facts that differ between hosts."""
    without = {"jump_host"}  # without a jump host
    each = [failure.facts.model_dump(mode="json", exclude=None if _hop(failure) else without) for failure in failures]
    common = {key: value for key, value in each[0].items() if all(entry.get(key) == value for entry in each)}
    differing = {
        host.name: {key: value for key, value in facts.items() if key not in common}
        for host, facts in zip(hosts, each, strict=True)
    }
    return common | ({"by_host": differing} if any(differing.values()) else {})
