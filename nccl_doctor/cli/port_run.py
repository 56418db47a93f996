"""``fix-port``, from its options to its exit code."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from nccl_doctor.cli.output import Out, obeys, try_files
from nccl_doctor.collect.ports.fleet import Fleet
from nccl_doctor.collect.ports.source import wanted_port
from nccl_doctor.collect.ports.steps import Steps, about_port, about_process, moved
from nccl_doctor.errors import UsageError
from nccl_doctor.inventory import kube_request
from nccl_doctor.inventory.kube_request import KubeRequest
from nccl_doctor.model.ports import GRACE_S, Identity, PortReport, as_identity
from nccl_doctor.report.fix_port import confirmation, screen
from nccl_doctor.report.safe import clean

if TYPE_CHECKING:
    from nccl_doctor.inventory.slurm import SlurmRequest
    from nccl_doctor.transport.register import Kind


class Request(NamedTuple):
    """One call, as the options say."""

    port: str | None = None
    log: str | None = None
    hosts: str | None = None
    host: str | None = None
    slurm_job: str | None = None
    inside: str | None = None
    kube: str | None = None
    namespace: str | None = None
    selector: str | None = None
    pid: str | None = None
    kill: bool = False
    force: bool = False
    yes: bool = False
    grace_s: float = GRACE_S
    next_port: bool = False
    write: bool = False
    wait: bool = False
    transport: Kind = "auto"
    connect_s: float | None = None

    @property
    def process(self) -> Identity | None:
        """The process that ``--pid`` means."""
        process = None if self.pid is None else as_identity(self.pid)
        if process is None and self.pid is not None:
            raise UsageError(f'--pid: "{self.pid}" is no process: it takes a PID, or PID@START as fix-port prints it')
        return process

    def arguments(self, port: int | None) -> tuple[str, ...]:
        """The words that name the port and the host again."""
        words = [] if port is None else [str(port)]
        pods = kube_request.request(self.kube, self.selector, self.namespace)
        words += () if pods is None else pods.words
        named = {"--hosts": self.hosts, "--slurm-job": self.slurm_job, "--host": self.host, "--inside": self.inside}
        for option, value in named.items():
            words += [] if value is None else [option, value]
        return tuple(words)

    def job(self) -> KubeRequest | SlurmRequest | None:
        """The pods or the Slurm job that are meant.

        Inside an allocation that is its own, where a host is named; else this machine is meant.
        """
        pods = kube_request.request(self.kube, self.selector, self.namespace)
        if pods is not None:
            return pods
        if self.host is None and self.slurm_job is None:
            return None
        from nccl_doctor.inventory.slurm import request

        return request({"slurm_job": self.slurm_job}, self.transport, os.environ, named=self.hosts is not None)


class Countdown:
    """What is waited for, on stderr.

    One live line on a terminal; elsewhere a line for each new thing that is waited for; nothing for ``-q``. It is no
    rich.progress, whose import takes as long as the whole command may.
    """

    def __init__(self, out: Out) -> None:
        self._out = out
        self._quiet = out.quiet
        self._live = sys.stderr.isatty() and obeys(os.environ)
        self._kind = ""

    def __call__(self, text: str) -> None:
        """Shows the text in place of the one before."""
        text = self._out.hidden(text)
        kind = text.partition(" ")[0]
        if self._quiet or (not self._live and kind == self._kind):
            return
        self._kind = kind
        sys.stderr.write("\r\x1b[2K" + clean(text)[:79] if self._live else clean(text) + "\n")
        sys.stderr.flush()

    def say(self, text: str) -> None:
        """Writes a line that stays."""
        self.close()
        if not self._quiet:
            sys.stderr.write(clean(self._out.hidden(text)) + "\n")

    def close(self) -> None:
        """Clears the line."""
        if self._live and self._kind:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def run(request: Request, out: Out) -> int:
    """Looks, acts where told to, reports; 0 where the port is free at the end."""
    _check_usage(request)
    if request.write and request.hosts is not None:
        from pathlib import Path

        try_files(("--write", Path(request.hosts).resolve()))
    # Before any host is contacted: a slip of the finger costs no connection.
    process = request.process
    given = wanted_port(request.port, request.log, None) if (request.port, request.log) != (None, None) else None
    fleet = Fleet(
        request.hosts,
        request.host,
        request.transport,
        request.grace_s,
        request.connect_s,
        request.job(),
        request.inside,
    )
    countdown = Countdown(out)
    try:
        fleet.connect()
        if process is not None and request.port is None:
            port, source = None, None
            report = about_process(fleet, process, _steps(request, None, out, countdown))
        else:
            port, source = given or wanted_port(None, None, fleet.master_port)
            if request.next_port:
                return _show_next(request, moved(fleet, port), out)
            report = about_port(fleet, port, process, _steps(request, source, out, countdown))
    finally:
        countdown.close()
        fleet.close()
    return _show(report._replace(arguments=request.arguments(port), source=source), out)


def _check_usage(request: Request) -> None:
    if request.write and not (request.next_port and request.hosts):
        raise UsageError("--write goes with --next and --hosts FILE: it puts that port into the file")
    if request.next_port and (request.kill or request.wait or request.pid):
        raise UsageError("--next moves away from the port; --kill, --wait and --pid stay with it")


def _steps(request: Request, source: str | None, out: Out, countdown: Countdown) -> Steps:
    def confirm(report: PortReport) -> bool:
        return request.yes or _confirmed(out.hidden(report._replace(source=source)))

    return Steps(request.kill, request.force, request.wait, request.grace_s, confirm, tell=countdown, say=countdown.say)


def _confirmed(report: PortReport) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("--kill asks first, and there is no terminal to ask on; --yes answers for scripts")
    sys.stderr.write(screen(report, asking=True) + "\n" + confirmation(report.jobs))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _show_next(request: Request, report: PortReport, out: Out) -> int:
    """``--next``: the number alone on stdout, so that a script can take it."""
    if request.write and request.hosts is not None and report.port is not None:
        from nccl_doctor.inventory.rewrite import write_master_port

        write_master_port(request.hosts, report.port)
        if not out.quiet:
            sys.stderr.write(f"{request.hosts}: master_port is {report.port} now\n")
    if out.form == "json":
        out.show(report)
    else:
        out.write(f"{report.port}\n")
    return 0


def _show(report: PortReport, out: Out) -> int:
    out.show(report)
    if out.form == "json" and report.refused and not out.quiet:
        refused = out.hidden(report.refused)
        sys.stderr.write(clean(f"{'not all' if report.ended else 'nothing'} was ended: {refused}") + "\n")
    return 0 if report.free else 1
