"""The ``nccl-doctor check`` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.options import flattened
from nccl_doctor.cli.output import finish
from nccl_doctor.errors import UsageError


@flattened
def check(
    *,
    which: options.HostOptions,
    line: Annotated[
        list[str] | None, typer.Argument(metavar="-- LINE", help="Launch command of the job (checked, not run).")
    ] = None,
    output: options.OutputOption = "human",
    shown: options.DiagnosisOptions,
    chosen: options.SelectOptions,
    timeout: options.TimeoutWithSmoke = None,
    reached: options.ReachOptions,
    job: options.ServerOptions,
    mesh: Annotated[
        Literal["auto", "full", "none"],
        options.of_run(
            "--mesh",
            metavar="auto|full|none",
            help="Pairs of hosts to test; auto tests all pairs in clusters of up to 128 hosts, and a sample of pairs "
            "in larger clusters.",
        ),
    ] = "auto",
    rate: options.RateOption = False,
    yes: options.RateBesideJobs = False,
    sudo: options.Sudo = False,
    no_smoke: options.NoSmoke = False,
    smoke_timeout: options.SmokeTimeout = 60.0,
    no_diagnostics: options.NoDiagnostics = False,
    kept: options.KeepOptions,
    joining: options.JoinOptions,
    write_hosts: Annotated[
        Path | None,
        options.of_output(
            "--write-hosts", metavar="FILE", help="Write to FILE the names of the hosts that passed, one per line."
        ),
    ] = None,
    write_failed: Annotated[
        Path | None,
        options.of_output(
            "--write-failed",
            metavar="FILE",
            help="Write to FILE the names of the hosts that failed or were not reached, one per line.",
        ),
    ] = None,
    load_from: options.From = None,
    fix: Annotated[
        bool,
        options.of_run(
            "--fix", help="After the check, ask whether to run the proposed commands, as nccl-doctor fix does."
        ),
    ] = False,
) -> None:
    """Check the hosts before a job: connections, ports, versions, GPUs, and a small all-reduce.

    Exit with 0 if everything was checked and no error was found, with 1 if an error was found, with 2 if the command
    line or the hosts file is invalid, and with 3 if no error was found but something could not be checked.
    """
    out = shown.out("check", output)

    def work() -> int:
        import sys
        from contextlib import closing
        from dataclasses import replace

        from nccl_doctor.cli.run import Request, check_cluster
        from nccl_doctor.collect.smoke.plan import SmokeLimits
        from nccl_doctor.launch.line import behind_dashes

        hosts, words = behind_dashes([*filter(None, (which.hosts,)), *(line or ())], sys.argv)
        request = Request(
            which=replace(which, hosts=hosts),
            line=words,
            chosen=chosen,
            timeout_s=timeout,
            reached=reached,
            overrides=job.overrides(),
            mesh=mesh,
            rate=rate,
            rate_beside_jobs=yes,
            sudo=sudo,
            smoke=not no_smoke,
            # Enough to show that the job will start; `smoke` measures longer.
            smoke_limits=SmokeLimits(
                deadline_s=smoke_timeout, budget_s=1.0, plateau=True, diagnostics=not no_diagnostics
            ),
            isolate=True,
            kept=kept,
            passed=write_hosts,
            failed=write_failed,
            load_from=load_from,
        )
        if joining.join:
            if fix:
                raise UsageError("--join can't be combined with --fix, which runs commands on hosts")
            from nccl_doctor.cli.join import check_joined

            return check_joined(request, joining, out)
        if joining != options.JoinOptions():
            raise UsageError("--nnodes, --node-rank, --join-port, --token-file and --join-timeout require --join")
        if not fix:
            return check_cluster(request, out)
        if load_from is not None:
            raise UsageError("--fix, which runs commands on hosts, can't be combined with --from")
        if out.form != "human":
            raise UsageError("--fix asks on a terminal after the report; for JSON, use nccl-doctor fix -o json")
        from nccl_doctor.cli.fix import FixOptions, mend
        from nccl_doctor.transport import Connections

        with closing(Connections(reached.transport)) as connections:
            return check_cluster(
                replace(request, connections=connections),
                out,
                lambda *results: mend(request, connections, FixOptions(), out._replace(command="fix"), *results),
            )

    finish(out, work)
