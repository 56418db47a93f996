"""``nccl-doctor fix-port``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.flattened import flattened
from nccl_doctor.cli.output import Out, finish
from nccl_doctor.model.ports import GRACE_S


@dataclass(frozen=True)
class Wanted:
    """Which port or process, where, and what is to be done, as :class:`nccl_doctor.cli.port_run.Request` names it."""

    port: Annotated[
        str | None, typer.Argument(metavar="[PORT]", help="Else from --log, the hosts file, MASTER_PORT, or 29500.")
    ] = None
    log: Annotated[
        str | None, typer.Option("--log", metavar="FILE", help="Take the port from this log; - is stdin.")
    ] = None
    hosts: Annotated[
        str | None,
        typer.Option("--hosts", metavar="FILE", help="Hosts file: look on its master, and move on all hosts."),
    ] = None
    host: Annotated[str | None, typer.Option("--host", metavar="NAME", help="Look on this host.")] = None
    slurm_job: Annotated[str | None, options.slurm_job("--host")] = None
    inside: options.Inside = None
    kube: options.Kube = None
    namespace: options.Namespace = None
    selector: options.Selector = None
    pid: Annotated[
        str | None,
        typer.Option(
            "--pid", metavar="PID[@START]", help="The job of this process, not a port's; START as /proc tells it."
        ),
    ] = None
    kill: Annotated[bool, typer.Option("--kill", help="End the holder's whole job: SIGTERM, then SIGKILL.")] = False
    force: Annotated[
        bool, typer.Option("--force", help="Also what somebody watches, what makes progress, what is not yours.")
    ] = False
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Don't ask before --kill.")] = False
    grace_s: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", help="From SIGTERM to SIGKILL.", min=0, max=600)
    ] = GRACE_S
    next_port: Annotated[bool, typer.Option("--next", help="Print a port that is free on every host.")] = False
    write: Annotated[bool, typer.Option("--write", help="With --next: put it into the hosts file.")] = False
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end of a TIME_WAIT.")] = False


@flattened
def fix_port(
    *,
    wanted: Wanted,
    output: Annotated[str, options.output("fix-port")] = "human",
    output_file: options.OutputFile = None,
    quiet: options.Quiet = False,
    show_secrets: options.ShowSecrets = False,
    transport: options.Transport = "auto",
    connect_timeout: options.ConnectTimeout = None,
) -> None:
    """After "Address already in use": who holds the port; end it, or move away from it."""

    def work() -> int:
        from nccl_doctor.cli.port_run import Request, run

        return run(Request(**vars(wanted), transport=transport, connect_s=connect_timeout), out)

    out = Out("fix-port", output, output_file, quiet=quiet, show_secrets=show_secrets)
    finish(out, work)
