"""What the access checks share: hosts with the same failure make one finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from nccl_doctor.checks.view import View
from nccl_doctor.model.finding import Finding, Fix
from nccl_doctor.snapshot import AccessFailure, EngineFailure, Host, SshTarget
from nccl_doctor.text.hostlist import fold

FOLLOWS = ("allreduce-failed", "allreduce-timeout", "port-unreachable")
"""What a host that was not reached leads to."""

Failure = TypeVar("Failure", bound=AccessFailure)
Remedy = Callable[[tuple[Failure, ...]], Fix]


def findings(
    view: View,
    kind: type[Failure],
    remedy: Remedy[Failure],
    joint: str = "",
    seen: Callable[[Failure], str] = lambda _failure: "",
) -> Iterator[Finding]:
    """Yields one finding for all hosts that failed in the same words and are mended in the same words.

    Args:
        view: what the check sees.
        kind: the failures that are its own.
        joint: what stands between the host and a detail that does not go on the sentence.
        remedy: the fix for failures that happened alike; its summary names no host that failed.
        seen: what goes on behind the detail.
    """
    return _grouped(_failed(view, kind), remedy, joint, seen)


def of_engine(view: View, name: str, joint: str = "") -> Iterator[Finding]:
    """The same for the failures of an engine that are of this name; each brings its remedy along."""
    failed = [(host, failure) for host, failure in _failed(view, EngineFailure) if failure.kind == name]
    return _grouped(failed, lambda failures: Fix(summary=failures[0].remedy), joint)


def _failed(view: View, kind: type[Failure]) -> list[tuple[Host, Failure]]:
    return [(host, host.failure) for host in view.snapshot.hosts if isinstance(host.failure, kind)]


def _grouped(
    failed: list[tuple[Host, Failure]],
    remedy: Remedy[Failure],
    joint: str = "",
    seen: Callable[[Failure], str] = lambda _failure: "",
) -> Iterator[Finding]:
    groups: dict[tuple[object, ...], list[tuple[Host, Failure]]] = {}
    for host, failure in failed:
        key = (failure.detail, seen(failure), _hop(failure), remedy((failure,)).summary)
        groups.setdefault(key, []).append((host, failure))
    for group in groups.values():
        hosts, failures = tuple(host for host, _ in group), tuple(failure for _, failure in group)
        yield Finding(
            hosts=tuple(host.name for host in hosts),
            message=f"{_subject(hosts, failures[0])}{joint} {failures[0].detail}{seen(failures[0])}.",
            evidence=_evidence(hosts, failures),
            facts=_facts(hosts, failures),
            fix=remedy(failures),
        )


def _subject(hosts: tuple[Host, ...], failure: AccessFailure) -> str:
    """Who failed: one host with its address, several by name, or the jump host before them."""
    target = failure.facts
    place = f" ({target.address}:{target.port})" if isinstance(target, SshTarget) else ""
    if _hop(failure) is not None:
        return f"The jump host {_hop(failure)}{place}, on the way to {fold(host.name for host in hosts)},"
    return f"{hosts[0].name}{place}" if len(hosts) == 1 else fold(host.name for host in hosts)


def _hop(failure: AccessFailure) -> str | None:
    return failure.facts.jump_host if isinstance(failure.facts, SshTarget) else None


def _evidence(hosts: tuple[Host, ...], failures: Sequence[AccessFailure]) -> tuple[str, ...]:
    """The lines, with the host's name before those that are not the same on all."""
    if len({failure.evidence for failure in failures}) == 1:
        return failures[0].evidence
    return tuple(
        f"{host.name}: {line}" for host, failure in zip(hosts, failures, strict=True) for line in failure.evidence
    )


def _facts(hosts: tuple[Host, ...], failures: Sequence[AccessFailure]) -> dict[str, Any]:
    """What holds for all, and under "by_host" what differs."""
    without = {"jump_host"}  # where there is none
    each = [failure.facts.model_dump(mode="json", exclude=None if _hop(failure) else without) for failure in failures]
    common = {key: value for key, value in each[0].items() if all(one.get(key) == value for one in each)}
    if len(hosts) == 1:
        return common
    differing = {
        host.name: {key: value for key, value in facts.items() if key not in common}
        for host, facts in zip(hosts, each, strict=True)
    }
    return common | ({"by_host": differing} if any(differing.values()) else {})
