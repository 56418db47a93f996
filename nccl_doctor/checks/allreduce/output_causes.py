"""What the all-reduce's own output tells of its cause: read as ``nccl-doctor logs`` would read it."""

from __future__ import annotations

from functools import lru_cache

from nccl_doctor.model.finding import Finding
from nccl_doctor.snapshot import Smoke

FAILED_DIALS = frozenset({"connection-refused", "connection-timed-out", "no-route-to-host"})
"""What other ranks meet, too, where they dial a host that is gone."""


@lru_cache(maxsize=256)
def is_echo(error: str, *, lost: bool = False) -> bool:
    """Tells whether an error merely says that others are gone ("Connection closed by peer").

    Args:
        error: a rank's.
        lost: another host of the all-reduce is gone, which a failed dial says as well.
    """
    from nccl_doctor.logs.diagnose import LogSource, diagnose
    from nccl_doctor.logs.register import echoes

    causes = diagnose([LogSource("error", [error.encode() + b"\n"])]).causes
    following = echoes() | FAILED_DIALS if lost else echoes()
    return bool(causes) and all(cause.name in following for cause in causes)


def causes_from_output(smoke: Smoke) -> tuple[tuple[str, Finding], ...]:
    """Diagnoses by name that the ranks' output shows as causes, each on the hosts whose output shows it."""
    from nccl_doctor.logs.case import Case
    from nccl_doctor.logs.diagnose import LogSource, diagnose
    from nccl_doctor.logs.register import echoes
    from nccl_doctor.logs.rule import Grade
    from nccl_doctor.logs.verdict import finding

    lines = {host: "\n".join(output).encode() + b"\n" for host, output in smoke.output.items()}
    verdict = diagnose([LogSource(host, [text]) for host, text in lines.items()])
    following = echoes() | FAILED_DIALS if smoke.launchers else echoes()
    found: list[tuple[str, Finding]] = []
    for cause in verdict.causes:
        if cause.grade is Grade.ROOT and cause.name not in following:
            hosts = tuple(dict.fromkeys(event.file for event in cause.events))
            found.append((cause.name, finding(Case(cause, verdict.log)).model_copy(update={"hosts": hosts})))
    return tuple(found)
