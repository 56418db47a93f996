"""One call of ``fix-port``: looks, ends the holders' jobs, waits, finds another port, as far as each was asked for."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

from nccl_doctor.collect import fix_port
from nccl_doctor.collect.port_fleet import Fleet
from nccl_doctor.collect.port_machine import Machine
from nccl_doctor.errors import DoctorError
from nccl_doctor.model.ports import Identity, PortReport, Suggestion


class Steps(NamedTuple):
    """What is to be done besides looking.

    Attributes:
        kill: end the jobs of the holders.
        force: those too that somebody attends to, and those of others.
        wait: until the kernel gives the port back.
        grace_s: seconds from SIGTERM to SIGKILL.
        confirm: asked before a job is ended, with what would be; False leaves it.
        tell: shows what is waited for.
        say: says what stays.
    """

    kill: bool
    force: bool
    wait: bool
    grace_s: float
    confirm: Callable[[PortReport], bool]
    tell: fix_port.Tell
    say: fix_port.Tell


def about_port(fleet: Fleet, port: int, process: Identity | None, steps: Steps) -> PortReport:
    """What became of a port, or of what one process has on it."""
    report = fix_port.look(fleet.target, port, process, steps.grace_s)
    if report.gone and not report.free:
        report = fix_port.look(fleet.target, port, None, steps.grace_s)._replace(gone=True, pid=report.pid)
    if steps.kill and not report.free:
        report = _kill(report, fleet.target, steps)
    if steps.wait or report.ended:
        waited = fix_port.wait_until_free(fleet.target, report, steps.tell)
        report = waited._replace(ended=report.ended, left=report.left, refused=report.refused)
    return report if report.free else report._replace(suggestion=_suggestion(fleet, port, steps))


def about_process(fleet: Fleet, process: Identity, steps: Steps) -> PortReport:
    """What became of the job of a process, whatever port it has."""
    report = fix_port.look(fleet.target, None, process, steps.grace_s)
    return _kill(report, fleet.target, steps) if steps.kill and report.jobs else report


def moved(fleet: Fleet, port: int) -> PortReport:
    """The next port that is free on every host, in place of this one.

    Raises:
        DoctorError: there is none.
    """
    found = fix_port.suggestion(fleet.all(), port, fleet.address, fleet.master)
    if found is None:
        raise DoctorError("no port from 1024 to 65535 is free on every host and fit for a job")
    name = fleet.target.name
    host = name or socket.gethostname()
    return PortReport(host=host, here=not name, port=found.port, free=True, suggestion=found, instead_of=port)


def _kill(report: PortReport, machine: Machine, steps: Steps) -> PortReport:
    """Ends the holders' jobs: all of them, or none where one may not be ended."""
    refused = _why_not(report, force=steps.force)
    if refused is None and not steps.confirm(report):
        refused = "you said no"
    if refused is not None:
        return report._replace(refused=refused)
    ended = fix_port.end(machine, report.jobs, steps.grace_s, force=steps.force, tell=steps.tell)
    report = report._replace(ended=ended.gone, left=ended.left, refused="; ".join(ended.denied) or None)
    return report._replace(free=not ended.left, jobs=()) if report.port is None else report


def _why_not(report: PortReport, *, force: bool) -> str | None:
    if report.gone:
        return f"the process that was meant is gone, and pid {report.pid} is another's now or nobody's"
    if not report.jobs:
        return report.hint or "nobody holds the port any more; only waiting helps (--wait)"
    barred = [job for job in report.jobs if job.refusal and (job.final or not force)]
    # what nothing lifts comes first: --force would not help
    barred.sort(key=lambda job: not job.final)
    return barred[0].refusal if barred else None


def _suggestion(fleet: Fleet, port: int, steps: Steps) -> Suggestion | None:
    try:
        return fix_port.suggestion(fleet.all(), port, fleet.address, fleet.master)
    except DoctorError as error:
        steps.say(f"no port to move to: {error}")
        return None
