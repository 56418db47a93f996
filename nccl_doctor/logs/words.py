"""What to say of a fault that a log shows, and phrases that several diagnoses share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nccl_doctor.model.finding import Command, Fix, on
from nccl_doctor.text.hostlist import ranks_of
from nccl_doctor.text.shell import line

if TYPE_CHECKING:
    from nccl_doctor.logs.case import Case


@dataclass(frozen=True)
class Advice:
    """One sentence for a tired person, and what to do."""

    message: str
    fix: Fix


WITH_THE_HOSTS = "nccl-doctor check with the job's hosts file, or -w and their names"
"""For a log that names no host: what would be pasted if it did."""
THEN = "Then see what the hosts say:"


def advise(message: str, summary: str, commands: tuple[Command, ...] = ()) -> Advice:
    """Advice with commands that are safe to paste.

    The last thing said is what the commands are for; where a log names nobody to paste them for, they are told.
    """
    announced = summary.endswith(":")
    if announced and not commands:
        summary = f"{summary[:-1]} ({WITH_THE_HOSTS})."
    elif commands and not announced:
        summary = f"{summary} {THEN}"
    return Advice(message, Fix(summary=summary, risk="safe" if commands else "manual", commands=commands))


def ifname_command(case: Case) -> tuple[Command, ...]:
    """``nccl-doctor ifname`` over the hosts concerned; here where the log names none."""
    return case.check(command="ifname") or on(None, line("nccl-doctor ifname"))


def not_logged_in(case: Case, why: str, summary: str) -> Advice:
    """The advice where a launcher could not log in to a host over SSH."""
    host = case.address.host or case.address.ip or next(iter(case.hosts), "a host")
    return advise(f"The launcher could not log in to {host} by SSH: {why}.", summary, case.check())


def by_rank(case: Case) -> Advice:
    """What RAS or the flight recorder says of each rank, the culprits' words first."""
    words = [f"{ranks_of([e.rank]) if e.rank is not None else 'a rank'} {e.message}" for e in case.cause.events[:3]]
    more = len(case.cause.events) - len(words)
    return advise(
        "; ".join(words) + (f"; and {more} more" if more > 0 else "") + ".",
        "Look at what the first of them did meanwhile (py-spy dump, its own log): the others wait for it.",
        case.check(),
    )
