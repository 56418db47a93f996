"""Another try for dials that were late, the few among very many and all of busy hosts: neither is a firewall.

Where a host could open no file for a dial, as those that dialled it had taken them all, it dials again when they are
done; with none left then, too, it has not looked, which says nothing of the network.

Seen with 64 hosts on two processors: 3, and once 229, of 12,159 dials took longer than their three seconds. Where a
rule or a switch drops packets, the second try fails as the first did, and has cost one more time-out. With 100 hosts on
two busy processors most dials were late: what busy hosts dialled is tried as long as that helps. A reset, too, may come
of lateness: from a queue that was full (tcp_abort_on_overflow), or from a listener that nobody heard in time.
"""

from __future__ import annotations

from collections.abc import Callable

from nccl_doctor.collect.admission import each
from nccl_doctor.collect.answers import Dialled, DialRow, ProbeError
from nccl_doctor.collect.mesh_plan import Target
from nccl_doctor.collect.session import ProbeSession

FEW = 0.05
"""Share of all dials up to which those that timed out are tried again; of three hosts, one dial."""

LATE = ("timed-out", "reset", "intercepted")
NO_FILE = ("EMFILE", "ENFILE")

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
    answers = [_looked(answer) for answer in _again(sessions, targets, answers, dial, _unopened, _instead)]
    busy = any(session.hello.load is not None and session.hello.load.busy for session in sessions)
    for _ in range(TRIES if busy else 1):
        before = sum(len(_late(answer)) for answer in answers)
        dials = sum(a.connected + len(a.failed) for a in answers if not isinstance(a, Exception))
        if before == 0 or not (busy or before <= FEW * dials):
            break
        answers = _again(sessions, targets, answers, dial, _late, _without)
        if sum(len(_late(answer)) for answer in answers) == before:
            break
    return answers


def _again(
    sessions: list[ProbeSession],
    targets: dict[str, list[Target]],
    answers: list[Dialled | Exception],
    dial: Callable[[ProbeSession, list[Target]], Dialled],
    lost: Callable[[Dialled | Exception], list[DialRow]],
    mended: Callable[[Dialled, list[DialRow], Dialled], Dialled],
) -> list[Dialled | Exception]:
    """The answers, mended by what became of the lost dials; as they were where a host does not answer again."""

    def again(place: int) -> Dialled | Exception:
        session, first = sessions[place], answers[place]
        rows = lost(first)
        if not rows or isinstance(first, Exception):
            return first
        told = targets[session.node.name]
        wanted = [Target(told[row.target].dst, told[row.target].address, (row.port,)) for row in rows]
        return mended(first, rows, dial(session, wanted))

    redone = each(again, range(len(sessions)))
    return [first if isinstance(now, Exception) else now for first, now in zip(answers, redone, strict=True)]


def _late(answer: Dialled | Exception) -> list[DialRow]:
    return [] if isinstance(answer, Exception) else [row for row in answer.failed if row.outcome in LATE]


def _unopened(answer: Dialled | Exception) -> list[DialRow]:
    return [] if isinstance(answer, Exception) else [row for row in answer.failed if row.error in NO_FILE]


def _looked(answer: Dialled | Exception) -> Dialled | Exception:
    missed = len(_unopened(answer))
    return ProbeError(f"it may open no more files, for {missed} of them") if missed else answer


def _without(answer: Dialled, rows: list[DialRow], second: Dialled) -> Dialled:
    """The answer without those of the rows that did not fail again, which stay as they were seen first."""
    still = {row.target for row in second.failed}
    saved = [row for place, row in enumerate(rows) if place not in still]
    left = tuple(row for row in answer.failed if row not in saved)
    return Dialled(connected=answer.connected + len(saved), failed=left)


def _instead(answer: Dialled, rows: list[DialRow], second: Dialled) -> Dialled:
    """The answer with what the second try saw in place of the rows."""
    seen = tuple(row._replace(target=rows[row.target].target) for row in second.failed)
    left = tuple(row for row in answer.failed if row not in rows)
    return Dialled(connected=answer.connected + len(rows) - len(seen), failed=(*left, *seen))
