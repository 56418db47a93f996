"""``nccl-doctor check``."""

from __future__ import annotations

from nccl_doctor.cli import options
from nccl_doctor.cli.output import finish


@options.grouped
def check(
    *,
    which: options.Which,
    output: options.Output = "human",
    shown: options.Judged,
    chosen: options.Chosen,
    timeout: options.TimeoutWithSmoke = None,
    reached: options.Reached,
    job: options.JobOptions,
    mesh: options.Mesh = "auto",
    sudo: options.Sudo = False,
    no_smoke: options.NoSmoke = False,
    smoke_timeout: options.SmokeTimeout = 60.0,
    kept: options.Kept,
    write_hosts: options.WriteHosts = None,
    write_failed: options.WriteFailed = None,
    load_from: options.From = None,
) -> None:
    """Preflight: connect, look, test the ports, judge, run a small all-reduce, report."""
    out = shown.out("check", output)

    def work() -> int:
        from nccl_doctor.cli.run import Request, check_cluster
        from nccl_doctor.collect.smoke import SmokeLimits

        request = Request(
            which=which,
            chosen=chosen,
            timeout_s=timeout,
            reached=reached,
            said=job.overrides(),
            mesh=mesh,
            sudo=sudo,
            smoke=not no_smoke,
            # It proves that the job will start; `smoke` takes its time to measure.
            smoke_limits=SmokeLimits(deadline_s=smoke_timeout, budget_s=2.0),
            isolate=True,
            kept=kept,
            passed=write_hosts,
            failed=write_failed,
            load_from=load_from,
        )
        return check_cluster(request, out)

    finish(out, work)
