"""``nccl-doctor smoke``."""

from __future__ import annotations

from nccl_doctor.cli import options
from nccl_doctor.cli.output import finish


@options.grouped
def smoke(
    *,
    which: options.Which,
    output: options.Output = "human",
    shown: options.Judged,
    timeout: options.TimeoutWithSmoke = None,
    reached: options.Reached,
    job: options.JobOptions,
    backend: options.Backend = "auto",
    smoke_timeout: options.SmokeTimeout = 60.0,
    smoke_budget: options.SmokeBudget = 10.0,
    max_bytes: options.MaxBytes = None,
    isolate: options.Isolate = False,
    save_logs: options.SaveLogs = None,
    save: options.Save = None,
) -> None:
    """The all-reduce alone: torchrun on every host, checked sums, sizes and bandwidths, and who did not come."""
    out = shown.out("smoke", output)

    def work() -> int:
        from nccl_doctor.cli.run import Request, check_cluster
        from nccl_doctor.collect.smoke import SmokeLimits

        request = Request(
            which=which,
            chosen=options.Chosen(only=["access", "software", "allreduce"]),
            timeout_s=timeout,
            reached=reached,
            said=job.overrides(),
            smoke_limits=SmokeLimits(
                deadline_s=smoke_timeout,
                budget_s=smoke_budget,
                max_bytes=max_bytes,
                backend=None if backend == "auto" else backend,
                save_logs=save_logs,
            ),
            isolate=isolate,
            kept=options.Kept(save),
        )
        return check_cluster(request, out)

    finish(out, work)
