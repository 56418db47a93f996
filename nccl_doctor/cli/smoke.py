"""The ``nccl-doctor smoke`` command, which runs only the all-reduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from nccl_doctor.cli import options
from nccl_doctor.cli.options import flattened
from nccl_doctor.cli.output import finish


@flattened
def smoke(
    *,
    which: options.HostOptions,
    output: options.OutputOption = "human",
    shown: options.DiagnosisOptions,
    timeout: options.TimeoutWithSmoke = None,
    reached: options.ReachOptions,
    job: options.JobOptions,
    backend: Annotated[
        Literal["auto", "nccl", "gloo"],
        options.of_run(
            "--backend", metavar="auto|nccl|gloo", help="Backend; auto uses NCCL if every rank has a GPU, else gloo."
        ),
    ] = "auto",
    smoke_timeout: options.SmokeTimeout = 60.0,
    no_diagnostics: options.NoDiagnostics = False,
    smoke_budget: Annotated[
        float,
        options.of_run(
            "--smoke-budget",
            metavar="SECONDS",
            help="Time to spend on measuring bandwidths at different message sizes.",
            min=0,
            max=options.LONGEST_S,
        ),
    ] = 10.0,
    max_bytes: Annotated[
        int | None,
        options.of_run(
            "--max-bytes",
            metavar="BYTES",
            help="Largest message size, at least 8.",
            min=8,
            show_default="1 GiB with NCCL, 64 MiB with gloo",
        ),
    ] = None,
    rate: options.RateOption = False,
    yes: options.RateBesideJobs = False,
    isolate: Annotated[
        bool,
        options.of_run("--isolate", help="After an unexplained failure, test groups of hosts to find the faulty host."),
    ] = False,
    save_logs: Annotated[
        Path | None,
        options.of_output(
            "--save-logs", metavar="DIR", help="Save the output of the ranks, one file per host.", file_okay=False
        ),
    ] = None,
    kept: options.KeepOptions,
) -> None:
    """Run only the all-reduce: check the sums, measure the bandwidths, and name hosts that did not join."""
    out = shown.out("smoke", output)

    def work() -> int:
        from nccl_doctor.cli.run import Request, check_cluster
        from nccl_doctor.collect.smoke.plan import SmokeLimits

        request = Request(
            which=which,
            chosen=options.SelectOptions(only=["access", "software", "port-in-use", "link-slow", "allreduce"]),
            timeout_s=timeout,
            reached=reached,
            overrides=job.overrides(),
            smoke_limits=SmokeLimits(
                deadline_s=smoke_timeout,
                budget_s=smoke_budget,
                max_bytes=max_bytes,
                backend=None if backend == "auto" else backend,
                diagnostics=not no_diagnostics,
            ),
            save_logs=save_logs,
            isolate=isolate,
            rate=rate,
            rate_beside_jobs=yes,
            kept=kept,
        )
        return check_cluster(request, out)

    finish(out, work)
