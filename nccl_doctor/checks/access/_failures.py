"""Findings of the access checks: hosts with the same failure make one."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from nccl_doctor.checks.view import ALLREDUCE, View
from nccl_doctor.model.finding import Finding, Fix
from nccl_doctor.snapshot.access import AccessFailure, EngineFailure, SshTarget
from nccl_doctor.snapshot.hosts import Host
from nccl_doctor.text.hostlist import fold, grouped

FOLLOWS = (*ALLREDUCE, "port-unreachable")
"""What a host that was not reached leads to."""

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
    """Yields one finding for all hosts that failed in the same words and are mended in the same words.

    Args:
        view: what the check sees.
        failed: the failures that are its own.
        joint: what stands between the host and a detail that does not go on the sentence.
        remedy: the fix for failures that happened alike; its summary names no host that failed.
        addition: what goes on behind the detail.
        kind: of the failures, where one type has several.
    """
    alike = grouped(
        ((failure.detail, addition(failure), _hop(failure), remedy((failure,)).summary), (host, failure))
        for host in view.snapshot.hosts
        if isinstance(failure := host.failure, failed) and kind in (None, failure.kind)
    )
    for (detail, more, _, _), group in alike.items():
        hosts, failures = zip(*group, strict=True)
        same = len({failure.evidence for failure in failures}) == 1
        yield Finding(
            hosts=tuple(host.name for host in hosts),
            message=f"{_subject(hosts, failures[0])}{joint} {detail}{more}.",
            evidence=failures[0].evidence
            if same
            else tuple(f"{host.name}: {line}" for host, failure in group for line in failure.evidence),
            facts=_facts(hosts, failures),
            fix=remedy(failures),
        )


def of_engine(view: View, name: str, joint: str = "") -> Iterator[Finding]:
    """Yields the same for the failures of an engine that are of this name; each brings its remedy along."""
    return findings(view, EngineFailure, lambda failures: Fix(summary=failures[0].remedy), joint, kind=name)


def _subject(hosts: tuple[Host, ...], failure: AccessFailure) -> str:
    """Names a single host with its address, several by name, or the jump host before them."""
    target = failure.facts
    place = f" ({target.address}:{target.port})" if isinstance(target, SshTarget) else ""
    if _hop(failure) is not None:
        return f"The jump host {_hop(failure)}{place}, on the way to {fold(host.name for host in hosts)},"
    return f"{hosts[0].name}{place}" if len(hosts) == 1 else fold(host.name for host in hosts)


def _hop(failure: AccessFailure) -> str | None:
    return failure.facts.jump_host if isinstance(failure.facts, SshTarget) else None


def _facts(hosts: tuple[Host, ...], failures: Sequence[AccessFailure]) -> dict[str, Any]:
    """The facts that hold for all, and under "by_host" those that differ."""
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
