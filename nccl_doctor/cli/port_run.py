"""``fix-port``, from its options to its exit code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from nccl_doctor.cli.countdown import Countdown
from nccl_doctor.cli.output import Out
from nccl_doctor.cli.port_source import wanted_port
from nccl_doctor.collect import fix_port
from nccl_doctor.collect.port_fleet import Fleet
from nccl_doctor.collect.port_machine import Machine
from nccl_doctor.errors import DoctorError, UsageError
from nccl_doctor.port_model import GRACE_S, Identity, PortReport, Suggestion, as_identity
from nccl_doctor.report.fix_port import confirmation, screen
from nccl_doctor.report.safe import clean

if TYPE_CHECKING:
    from nccl_doctor.transport.register import Kind


class Request(NamedTuple):
    """One call, as the options say."""

    port: str | None = None
    log: str | None = None
    hosts: str | None = None
    host: str | None = None
    pid: str | None = None
    kill: bool = False
    force: bool = False
    yes: bool = False
    grace_s: float = GRACE_S
    next_port: bool = False
    write: bool = False
    wait: bool = False
    transport: Kind = "auto"
    connect_s: float = 10.0


def run(request: Request, out: Out) -> int:
    """Looks, acts where told to, reports; 0 where the port is free at the end."""
    _check_usage(request)
    # Before any host is contacted: a slip of the finger costs no connection.
    process = _process(request)
    given = wanted_port(request.port, request.log, None) if request.port or request.log else None
    fleet = Fleet(request.hosts, request.host, request.transport, request.grace_s, request.connect_s)
    countdown = Countdown(quiet=out.quiet)
    try:
        fleet.connect()
        if process is not None and request.port is None:
            return _show(_about_process(request, process, fleet, countdown), out)
        port, source = given or wanted_port(None, None, fleet.master_port)
        if request.next_port:
            return _move(request, port, fleet, out)
        return _show(_about_port(request, port, process, source, fleet, countdown), out)
    finally:
        countdown.close()
        fleet.close()


class _Answer(NamedTuple):
    report: PortReport
    refused: str | None = None


def _check_usage(request: Request) -> None:
    if request.write and not (request.next_port and request.hosts):
        raise UsageError("--write goes with --next and --hosts FILE: it puts that port into the file")
    if request.next_port and (request.kill or request.wait or request.pid):
        raise UsageError("--next moves away from the port; --kill, --wait and --pid stay with it")


def _process(request: Request) -> Identity | None:
    if request.pid is None:
        return None
    process = as_identity(request.pid)
    if process is None:
        raise UsageError(f'--pid: "{request.pid}" is no process: it takes a PID, or PID@START as fix-port prints it')
    return process


def _about_port(
    request: Request, port: int, process: Identity | None, source: str | None, fleet: Fleet, countdown: Countdown
) -> _Answer:
    report = fix_port.look(fleet.target, port, process, request.grace_s)
    if report.gone and not report.free:
        report = fix_port.look(fleet.target, port, None, request.grace_s)._replace(gone=True, pid=report.pid)
    report = report._replace(arguments=_arguments(request, port), source=source)
    answer = _Answer(report)
    if request.kill and not report.free:
        answer = _kill(request, report, fleet.target, countdown)
        report = answer.report
    if request.wait or report.ended:
        waited = fix_port.wait_until_free(fleet.target, report, countdown)
        report = waited._replace(**{name: getattr(report, name) for name in ("ended", "left", "arguments", "source")})
    if not report.free:
        report = report._replace(suggestion=_suggestion(fleet, port, countdown))
    return answer._replace(report=report)


def _about_process(request: Request, process: Identity, fleet: Fleet, countdown: Countdown) -> _Answer:
    report = fix_port.look(fleet.target, None, process, request.grace_s)
    report = report._replace(arguments=_arguments(request, None))
    return _kill(request, report, fleet.target, countdown) if request.kill and report.jobs else _Answer(report)


def _kill(request: Request, report: PortReport, machine: Machine, countdown: Countdown) -> _Answer:
    """Ends the holders' jobs: all of them, or none where one may not be ended."""
    refused = _why_not(request, report)
    if refused is not None:
        return _Answer(report, refused)
    if not request.yes and not _confirmed(report):
        return _Answer(report, "you said no")
    ended = fix_port.end(machine, report.jobs, request.grace_s, force=request.force, tell=countdown)
    countdown.close()
    refused = "; ".join(ended.denied) or None
    if report.port is None:
        return _Answer(report._replace(free=not ended.left, jobs=(), ended=ended.gone, left=ended.left), refused)
    return _Answer(report._replace(ended=ended.gone, left=ended.left), refused)


def _why_not(request: Request, report: PortReport) -> str | None:
    if report.gone:
        return f"the process that was meant is gone, and pid {report.pid} is another's now or nobody's"
    if not report.jobs:
        return report.hint or "nobody holds the port any more; only waiting helps (--wait)"
    barred = [job for job in report.jobs if job.refusal and (job.final or not request.force)]
    # what nothing lifts comes first: --force would not help
    barred.sort(key=lambda job: not job.final)
    return barred[0].refusal if barred else None


def _confirmed(report: PortReport) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("--kill asks first, and there is no terminal to ask on; --yes answers for scripts")
    sys.stderr.write(screen(report._replace(arguments=()), asking=True) + "\n" + confirmation(report.jobs))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _move(request: Request, port: int, fleet: Fleet, out: Out) -> int:
    """``--next``: the number alone on stdout, so that a script can take it."""
    found = fix_port.suggestion(fleet.all(), port, fleet.address)
    if found is None:
        raise DoctorError("no port from 1024 to 65535 is free on every host and fit for a job")
    if request.write and request.hosts is not None:
        from nccl_doctor.inventory.rewrite import write_master_port

        write_master_port(request.hosts, found.port)
        if not out.quiet:
            sys.stderr.write(f"{request.hosts}: master_port is {found.port} now\n")
    report = PortReport(
        host=fleet.target.name or "localhost",
        here=not fleet.target.name,
        port=found.port,
        free=True,
        suggestion=found,
        instead_of=port,
    )
    if out.form == "json":
        out.show(report)
    else:
        out.write(f"{found.port}\n")
    return 0


def _suggestion(fleet: Fleet, port: int, countdown: Countdown) -> Suggestion | None:
    try:
        return fix_port.suggestion(fleet.all(), port, fleet.address)
    except DoctorError as error:
        countdown(f"no port to move to: {error}")
        return None


def _arguments(request: Request, port: int | None) -> tuple[str, ...]:
    words = [] if port is None else [str(port)]
    for option, value in (("--hosts", request.hosts), ("--host", request.host)):
        words += [] if value is None else [option, str(value)]
    return tuple(words)


def _show(answer: _Answer, out: Out) -> int:
    report = answer.report._replace(refused=answer.refused)
    out.show(report)
    if out.form == "json" and report.refused and not out.quiet:
        sys.stderr.write(clean(f"{'not all' if report.ended else 'nothing'} was ended: {report.refused}") + "\n")
    return 0 if report.free else 1
