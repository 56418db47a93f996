"""Another try for dials that were late, the few among very many and all of busy hosts: neither is a firewall.

Seen with 64 hosts on two processors: 3, and once 229, of 12,159 dials took longer than their three seconds. Where a
rule or a switch drops packets, the second try fails as the first did, and has cost one more time-out. With 100 hosts on
two busy processors most dials were late: what busy hosts dialled is tried as long as that helps. A reset, too, may come
of lateness: from a queue that was full (tcp_abort_on_overflow), or from a listener that nobody heard in time.
"""

from __future__ import annotations

from collections.abc import Callable

from nccl_doctor.collect.admission import each
from nccl_doctor.collect.answers import Dialled, DialRow
from nccl_doctor.collect.mesh_plan import Target
from nccl_doctor.collect.session import ProbeSession

FEW = 0.05
"""Share of all dials up to which those that timed out are tried again; of three hosts, one dial."""

LATE = ("timed-out", "reset", "intercepted")

TRIES = 4
"""Of busy hosts; each but the first only where the one before it got something through."""


def run(
    sessions: list[ProbeSession],
    targets: dict[str, list[Target]],
    answers: list[Dialled | Exception],
    dial: Callable[[ProbeSession, list[Target]], Dialled],
) -> list[Dialled | Exception]:
    """The answers of all hosts, without the dials that came through when they were tried once more.

    Args:
        sessions: of all hosts.
        targets: of each host, by name.
        answers: of each session's dials, in the same order; an exception where there is none.
        dial: dials a host's targets.
    """
    busy = any(session.hello.load is not None and session.hello.load.busy for session in sessions)
    for _ in range(TRIES if busy else 1):
        before = sum(len(_late(answer)) for answer in answers)
        dials = sum(a.connected + len(a.failed) for a in answers if not isinstance(a, Exception))
        if before == 0 or not (busy or before <= FEW * dials):
            break
        answers = _again(sessions, targets, answers, dial)
        if sum(len(_late(answer)) for answer in answers) == before:
            break
    return answers


def _again(
    sessions: list[ProbeSession],
    targets: dict[str, list[Target]],
    answers: list[Dialled | Exception],
    dial: Callable[[ProbeSession, list[Target]], Dialled],
) -> list[Dialled | Exception]:
    lost = [_late(answer) for answer in answers]

    def again(place: int) -> Dialled | Exception:
        session, rows, first = sessions[place], lost[place], answers[place]
        if not rows or isinstance(first, Exception):
            return first
        told = targets[session.node.name]
        wanted = [Target(told[row.target].dst, told[row.target].address, (row.port,)) for row in rows]
        return _without(first, rows, {row.target for row in dial(session, wanted).failed})

    redone = each(again, range(len(sessions)))
    return [first if isinstance(now, Exception) else now for first, now in zip(answers, redone, strict=True)]


def _late(answer: Dialled | Exception) -> list[DialRow]:
    return [] if isinstance(answer, Exception) else [row for row in answer.failed if row.outcome in LATE]


def _without(answer: Dialled, rows: list[DialRow], still: set[int]) -> Dialled:
    """The answer without those of the rows that did not fail again; ``still`` are places in ``rows``."""
    saved = [row for place, row in enumerate(rows) if place not in still]
    left = tuple(row for row in answer.failed if row not in saved)
    return Dialled(connected=answer.connected + len(saved), failed=left)
