"""The ``nccl-doctor fix-port`` command, which finds the process that caused "Address already in use"."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.options import flattened
from nccl_doctor.cli.output import Out, finish, form_of, supports_ansi, try_files
from nccl_doctor.errors import UsageError
from nccl_doctor.model.engine import written
from nccl_doctor.text.shell import clean

if TYPE_CHECKING:
    from nccl_doctor.act.ports.fix_port import Steps
    from nccl_doctor.inventory.sources import HostSource
    from nccl_doctor.model.ports import PortReport, ProcessIdentity


@dataclass(frozen=True)
class PortOptions:
    """Options that select the port or process, its host, and the action."""

    port: Annotated[
        str | None,
        typer.Argument(
            metavar="PORT", help="Port. Default: the port in --log, in the hosts file or in MASTER_PORT, else 29500."
        ),
    ] = None
    file: Annotated[
        str | None, typer.Argument(metavar="HOSTS", help="Hosts file, same as --hosts FILE; can be given without PORT.")
    ] = None
    log: Annotated[
        str | None, typer.Option("--log", metavar="FILE", help="Read the port from this log; - reads stdin.")
    ] = None
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts",
            metavar="FILE",
            help="Hosts file. Examine the port on the master (rank 0) or, with --next, find a port free on all hosts.",
        ),
    ] = None
    host: Annotated[str | None, typer.Option("-w", "--host", metavar="NAME", help="Host to examine.")] = None
    engine: dict[str, Any] = field(
        default_factory=dict, metadata={"options": options.of_engines("--host", fix_port=True)}
    )
    inside: options.Inside = None
    pid: Annotated[
        str | None,
        typer.Option(
            "--pid",
            metavar="PID[@START]",
            help="Examine the job of this process instead of the job that holds the port. START is the start time of "
            "the process in clock ticks (field 22 of /proc/PID/stat).",
        ),
    ] = None
    kill: Annotated[
        bool,
        typer.Option(
            "--kill",
            help="On the examined host, end all processes of the job that holds the port, with SIGTERM and then "
            "SIGKILL.",
        ),
    ] = False
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="With --kill, also end a job that is not yours, is making progress, or still belongs to a "
            "launcher, shell, container or service.",
        ),
    ] = False
    yes: Annotated[bool, typer.Option("-y", "--yes", help="With --kill, do not ask for confirmation.")] = False
    grace_s: Annotated[
        float,
        typer.Option("--grace", metavar="SECONDS", help="Time from SIGTERM to SIGKILL, at most 600.", min=0, max=600),
    ] = 10.0  # model.ports.GRACE_S
    next_port: Annotated[bool, typer.Option("--next", help="Print a port that is free on every host.")] = False
    write: Annotated[bool, typer.Option("--write", help="With --next, write the port to the hosts file.")] = False
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Wait until TIME_WAIT has expired, or until another check that uses the port has finished."
        ),
    ] = False
    transport: options.TransportOption = "auto"
    connect_timeout: options.ConnectTimeout = None

    def named(self) -> PortOptions:
        """Return the options; a hosts file that was given as an argument is moved to ``--hosts``."""
        port, file = self.port, self.file
        # os.path's own: a text that can't be a path is not a file
        if file is None and port is not None and not port.lstrip("+-").isdecimal() and os.path.isfile(port):  # noqa: PTH113
            port, file = None, port
        if file is None:
            return self
        if self.hosts is not None:
            raise UsageError(f"{file} and --hosts {self.hosts} are both hosts files; give one of them")
        return replace(self, port=port, file=None, hosts=file)

    def process(self) -> ProcessIdentity | None:
        """Return the process given by ``--pid``, or None without ``--pid``; raise UsageError for an invalid value."""
        from nccl_doctor.model.ports import as_identity

        process = None if self.pid is None else as_identity(self.pid)
        if process is None and self.pid is not None:
            raise UsageError(f'--pid must be a PID or PID@START (printed by fix-port), not "{self.pid}"')
        return process

    def arguments(self, port: int | None) -> tuple[str, ...]:
        """Return the command-line arguments that select the same port and host in another command."""
        words = [] if port is None else [str(port)]
        words += written(self.engine)
        named = {"--hosts": self.hosts, "--host": self.host, "--inside": self.inside}
        return (*words, *(word for option, value in named.items() if value is not None for word in (option, value)))

    def job(self) -> HostSource | None:
        """Return the hosts that an engine such as Slurm provides, or None if no option selects a host or an engine."""
        if self.host is None and not self.engine:
            return None
        from nccl_doctor.inventory.load import requested

        return requested(self.engine, self.transport, os.environ, named=self.hosts is not None)


@flattened
def fix_port(
    *,
    wanted: PortOptions,
    output: Annotated[str, options.output("fix-port")] = "human",
    output_file: options.OutputFile = None,
    quiet: options.Quiet = False,
    show_secrets: options.ShowSecrets = False,
) -> None:
    """After "Address already in use", show the process that holds the port, end its job, or print a free port."""
    out = Out("fix-port", form_of("fix-port", output, output_file), output_file, quiet=quiet, show_secrets=show_secrets)
    finish(out, lambda: run(wanted, out))


class Countdown:
    """Shows on stderr what ``fix-port`` is waiting for.

    On a terminal, a single line is updated; otherwise, a line is printed for each kind of wait.
    """

    def __init__(self, out: Out) -> None:
        self._out = out
        self._live = sys.stderr.isatty() and supports_ansi(os.environ)
        self._kind = ""

    def __call__(self, text: str) -> None:
        text = self._out.hidden(text)
        kind = text.partition(" ")[0]
        if self._out.quiet or (not self._live and kind == self._kind):
            return
        self._kind = kind
        sys.stderr.write("\r\x1b[2K" + clean(text)[:79] if self._live else clean(text) + "\n")
        sys.stderr.flush()

    def say(self, text: str) -> None:
        self.close()
        if not self._out.quiet:
            sys.stderr.write(clean(self._out.hidden(text)) + "\n")

    def close(self) -> None:
        if self._live and self._kind:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def run(wanted: PortOptions, out: Out) -> int:
    """Find the job that uses the port, and end the job if requested; return 0 if the port is then free, otherwise 1."""
    from nccl_doctor.act.ports.fix_port import about_port, about_process, moved, wanted_port
    from nccl_doctor.act.ports.fleet import Fleet

    wanted = wanted.named()
    if wanted.write and not (wanted.next_port and wanted.hosts):
        raise UsageError("--write, which writes the port to the hosts file, requires --next and --hosts FILE")
    if wanted.next_port and (wanted.kill or wanted.wait or wanted.pid):
        raise UsageError("--next chooses another port, so it can't be combined with --kill, --wait or --pid")
    if wanted.write and wanted.hosts is not None:
        try_files(("--write", Path(wanted.hosts).resolve()))
    # Before any host is contacted: a typo costs no connection.
    process = wanted.process()
    port_option = wanted_port(wanted.port, wanted.log, None) if (wanted.port, wanted.log) != (None, None) else None
    reach = (wanted.transport, wanted.grace_s, wanted.connect_timeout)
    fleet = Fleet(wanted.hosts, wanted.host, *reach, wanted.job(), wanted.inside)
    countdown = Countdown(out)
    try:
        fleet.connect()
        if process is not None and wanted.port is None:
            port, source = None, None
            report = about_process(fleet, process, _steps(wanted, None, out, countdown))
        else:
            port, source = port_option or wanted_port(None, None, fleet.master_port)
            if wanted.next_port:
                return _show_next(wanted, moved(fleet, port), out)
            report = about_port(fleet, port, process, _steps(wanted, source, out, countdown))
    finally:
        countdown.close()
        fleet.close()
    out.show(report.model_copy(update={"arguments": wanted.arguments(port), "source": source}))
    if out.form == "json" and report.refused:
        countdown.say(f"{'not all' if report.ended else 'nothing'} was ended: {report.refused}")
    return 0 if report.free else 1


def _steps(wanted: PortOptions, source: str | None, out: Out, countdown: Countdown) -> Steps:
    from nccl_doctor.act.ports.fix_port import Steps
    from nccl_doctor.report.fix_port import confirmation, screen

    def confirm(report: PortReport) -> bool:
        if wanted.yes:
            return True
        if not sys.stdin.isatty():
            raise UsageError("--kill asks for confirmation, but there is no terminal; use --yes in scripts")
        report = out.hidden(report.model_copy(update={"source": source}))
        sys.stderr.write(screen(report, asking=True) + "\n" + confirmation(report.jobs))
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    return Steps(wanted.kill, wanted.force, wanted.wait, wanted.grace_s, confirm, tell=countdown, say=countdown.say)


def _show_next(wanted: PortOptions, report: PortReport, out: Out) -> int:
    """Print only the port chosen by ``--next`` on stdout, so that scripts can read the port."""
    from nccl_doctor.report.fix_port import in_ephemeral_range

    if wanted.write and wanted.hosts is not None and report.port is not None:
        from nccl_doctor.inventory.edits import write_master_port

        write_master_port(wanted.hosts, report.port)
        if not out.quiet:
            sys.stderr.write(f"{wanted.hosts}: master_port is now {report.port}\n")
    for block in () if out.quiet else in_ephemeral_range(report):
        sys.stderr.write("\n".join(map(clean, block)) + "\n\n")
    if out.form == "json":
        out.show(report)
    else:
        out.write(f"{report.port}\n")
    return 0
