"""``nccl-doctor fix-port``."""

from __future__ import annotations

from typing import Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.output import Out, finish
from nccl_doctor.port_model import GRACE_S

Port = Annotated[
    str | None,
    typer.Argument(metavar="[PORT]", help="Else from --log, the hosts file, MASTER_PORT, or 29500."),
]
Log = Annotated[str | None, typer.Option("--log", metavar="FILE", help="Take the port from this log; - is stdin.")]
HostsFile = Annotated[
    str | None, typer.Option("--hosts", metavar="FILE", help="Hosts file: look on its master, and move on all hosts.")
]
Host = Annotated[str | None, typer.Option("--host", metavar="NAME", help="Look on this host.")]
Pid = Annotated[
    str | None,
    typer.Option(
        "--pid", metavar="PID[@START]", help="The job of this process, not a port's; START as /proc tells it."
    ),
]
Kill = Annotated[bool, typer.Option("--kill", help="End the holder's whole job: SIGTERM, then SIGKILL.")]
Force = Annotated[
    bool, typer.Option("--force", help="Also what somebody watches, what makes progress, what is not yours.")
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Don't ask before --kill.")]
Grace = Annotated[float, typer.Option("--grace", metavar="SECONDS", help="From SIGTERM to SIGKILL.", min=0, max=600)]
Next = Annotated[bool, typer.Option("--next", help="Print a port that is free on every host.")]
Write = Annotated[bool, typer.Option("--write", help="With --next: put it into the hosts file.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end of a TIME_WAIT.")]


def fix_port(
    port: Port = None,
    log: Log = None,
    hosts: HostsFile = None,
    host: Host = None,
    pid: Pid = None,
    kill: Kill = False,
    force: Force = False,
    yes: Yes = False,
    grace: Grace = GRACE_S,
    next_port: Next = False,
    write: Write = False,
    wait: Wait = False,
    output: Annotated[str, options.output("fix-port")] = "human",
    output_file: options.OutputFile = None,
    quiet: options.Quiet = False,
    transport: options.Transport = "auto",
    connect_timeout: options.ConnectTimeout = 10.0,
) -> None:
    """After "Address already in use": who holds the port; end it, or move away from it."""

    def work() -> int:
        from nccl_doctor.cli.port_run import Request, run

        return run(
            Request(
                port=port,
                log=log,
                hosts=hosts,
                host=host,
                pid=pid,
                kill=kill,
                force=force,
                yes=yes,
                grace_s=grace,
                next_port=next_port,
                write=write,
                wait=wait,
                transport=transport,
                connect_s=connect_timeout,
            ),
            out,
        )

    out = Out("fix-port", output, output_file, quiet=quiet)
    finish(out, work)
