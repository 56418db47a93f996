"""What the access checks share: hosts with the same failure make one finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nccl_doctor.checks.registry import View
from nccl_doctor.hostlist import fold
from nccl_doctor.model import Finding, Fix
from nccl_doctor.snapshot import AccessFailure, Host

FOLLOWS = ("allreduce-failed", "allreduce-timeout", "port-unreachable")
"""What a host that was not reached leads to."""

Remedy = Callable[[tuple[AccessFailure, ...]], Fix]


def findings(view: View, kind: str, remedy: Remedy, joint: str = "") -> Iterator[Finding]:
    """One finding for all hosts that failed in the same words and are mended in the same words.

    Args:
        view: what the check sees.
        kind: the failures that are its own.
        joint: what stands between the host and a detail that does not go on the sentence.
        remedy: the fix for failures that happened alike; its summary names no host.
    """
    groups: dict[tuple[object, ...], list[tuple[Host, AccessFailure]]] = {}
    for host in view.snapshot.hosts:
        failure = host.failure
        if failure is not None and failure.kind == kind:
            key = (failure.detail, failure.facts.get("jump_host"), remedy((failure,)).summary)
            groups.setdefault(key, []).append((host, failure))
    for group in groups.values():
        hosts, failures = tuple(host for host, _ in group), tuple(failure for _, failure in group)
        yield Finding(
            hosts=tuple(host.name for host in hosts),
            message=f"{_subject(hosts, failures[0])}{joint} {failures[0].detail}.",
            evidence=_evidence(hosts, failures),
            facts=_facts(hosts, failures),
            fix=remedy(failures),
        )


def _subject(hosts: tuple[Host, ...], failure: AccessFailure) -> str:
    """Who failed: one host with its address, several by name, or the jump host before them."""
    facts = failure.facts
    place = f" ({facts['address']}:{facts['port']})" if "address" in facts and "port" in facts else ""
    if "jump_host" in facts:
        return f"The jump host {facts['jump_host']}{place}, on the way to {fold(host.name for host in hosts)},"
    return f"{hosts[0].name}{place}" if len(hosts) == 1 else fold(host.name for host in hosts)


def _evidence(hosts: tuple[Host, ...], failures: tuple[AccessFailure, ...]) -> tuple[str, ...]:
    """The lines, with the host's name before those that are not the same on all."""
    if len({failure.evidence for failure in failures}) == 1:
        return failures[0].evidence
    return tuple(
        f"{host.name}: {line}" for host, failure in zip(hosts, failures, strict=True) for line in failure.evidence
    )


def _facts(hosts: tuple[Host, ...], failures: tuple[AccessFailure, ...]) -> dict[str, Any]:
    """What holds for all, and under "by_host" what differs."""
    first = failures[0].facts
    common = {key: value for key, value in first.items() if all(one.facts.get(key) == value for one in failures)}
    if len(hosts) == 1:
        return common
    differing = {
        host.name: {key: value for key, value in failure.facts.items() if key not in common}
        for host, failure in zip(hosts, failures, strict=True)
    }
    return common | ({"by_host": differing} if any(differing.values()) else {})
