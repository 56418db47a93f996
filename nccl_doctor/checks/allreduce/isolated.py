"""What the repeated all-reduce over groups of hosts says, as sentences."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.checks.allreduce.culprits import OWN_FAULT, Culprits
from nccl_doctor.snapshot import Isolation, Skipped, Smoke, Unknown
from nccl_doctor.text.hostlist import fold

_MOST = 8


def isolated(smoke: Smoke) -> Isolation | None:
    """The verdict of the repetition, where it came to one."""
    found = smoke.isolation
    return found if isinstance(found, Isolation) and found.culprit is not None else None


def sentence(found: Isolation) -> str:
    """Who breaks the all-reduce, as a sentence: one host, or two that fail only together."""
    if found.culprit == "pair":
        one, other = found.hosts
        return f"{one} and {other} fail with each other, and each of them works with other hosts"
    verb = "fails" if len(found.hosts) == 1 else "fail"
    return f"{fold(found.hosts)} {verb} with hosts that work with each other"


def advice(smoke: Smoke, found: Culprits, hosts: Iterable[str]) -> str:
    """What to do next where the failure itself does not say it."""
    many = len({rank.host for rank in smoke.ranks}) > 2
    if many and found.why not in OWN_FAULT and isinstance(smoke.isolation, Skipped):
        return "Repeat it over groups of hosts, to find who fails: nccl-doctor smoke --isolate."
    return f"Look at {fold(hosts)} first; run again with -v for all that its ranks printed."


def evidence(smoke: Smoke) -> tuple[str, ...]:
    """A line for each group that was tried; why there is no verdict, where there is none."""
    found = smoke.isolation
    if isinstance(found, Unknown):
        return (f"the all-reduce over groups of hosts {found.reason}",)
    if not isinstance(found, Isolation):
        return ()
    lines = [f"{fold(trial.hosts)} alone: {'worked' if trial.ok else 'failed'}" for trial in found.trials]
    if len(lines) > _MOST:
        lines = [*lines[: _MOST - 1], f"and {len(lines) - _MOST + 1} more groups"]
    end = [f"repeated over groups of hosts, without a verdict: {found.end}"] if found.end else []
    return tuple(lines + end)
