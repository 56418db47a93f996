"""A second try for the few dials among very many that timed out: a lost packet or a busy host is no firewall.

Seen with 64 hosts on two processors: 3, and once 229, of 12,159 dials took longer than their three seconds. Where a
rule or a switch drops packets, the second try fails as the first did, and has cost one more time-out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nccl_doctor.collect.fanout import fan_out
from nccl_doctor.collect.mesh_plan import Target
from nccl_doctor.collect.session import Session

FEW = 0.05
"""Share of all dials up to which those that timed out are tried again; of three hosts, one dial."""

Row = list[Any]
"""``[target's index, port, outcome, error]``, see probe/mesh.py."""


def run(
    sessions: list[Session],
    targets: dict[str, list[Target]],
    answers: list[Any],
    dial: Callable[[Session, list[Target]], Any],
) -> list[Any]:
    """The answers of all hosts, without the dials that came through when they were tried once more.

    Args:
        sessions: of all hosts.
        targets: of each host, by name.
        answers: of each session's dials, in the same order; an exception where there is none.
        dial: dials a host's targets.
    """
    lost = [_timed_out(answer) for answer in answers]
    dials = sum(a["connected"] + len(a["failed"]) for a in answers if not isinstance(a, Exception))
    if not 0 < sum(map(len, lost)) <= FEW * dials:
        return answers

    def again(place: int) -> Any:  # noqa: ANN401 - JSON
        session, rows = sessions[place], lost[place]
        if not rows:
            return answers[place]
        told = targets[session.node.name]
        second = dial(session, [Target(told[index].dst, told[index].address, (port,)) for index, port, *_ in rows])
        return _without(answers[place], rows, {index for index, *_ in second["failed"]})

    redone = fan_out(again, range(len(sessions)))
    return [first if isinstance(now, Exception) else now for first, now in zip(answers, redone, strict=True)]


def _timed_out(answer: Any) -> list[Row]:  # noqa: ANN401 - JSON
    return [] if isinstance(answer, Exception) else [row for row in answer["failed"] if row[2] == "timed-out"]


def _without(answer: dict[str, Any], rows: list[Row], still: set[int]) -> dict[str, Any]:
    """The answer without those of the rows that did not fail again; ``still`` are places in ``rows``."""
    saved = [row for place, row in enumerate(rows) if place not in still]
    return {
        "connected": answer["connected"] + len(saved),
        "failed": [row for row in answer["failed"] if row not in saved],
    }
