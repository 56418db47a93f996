"""``nccl-doctor smoke``."""

from __future__ import annotations

from nccl_doctor.cli import options
from nccl_doctor.cli.output import Out, finish


def smoke(
    hosts: options.Hosts = None,
    where: options.Where = None,
    exclude: options.Exclude = None,
    output: options.Output = "human",
    output_file: options.OutputFile = None,
    color: options.ColorWhen = options.Color.AUTO,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    fail_on: options.FailOnLevel = options.FailOn.ERROR,
    timeout: options.TimeoutWithSmoke = None,
    connect_timeout: options.ConnectTimeout = 10.0,
    transport: options.Transport = "auto",
    python: options.Python = None,
    master_port: options.MasterPort = None,
    master_addr: options.MasterAddr = None,
    nproc_per_node: options.NprocPerNode = None,
    env: options.Env = None,
    user: options.User = None,
    port: options.SshPort = None,
    backend: options.Backend = "auto",
    smoke_timeout: options.SmokeTimeout = 60.0,
    smoke_budget: options.SmokeBudget = 10.0,
    max_bytes: options.MaxBytes = None,
    isolate: options.Isolate = False,
    save_logs: options.SaveLogs = None,
    save: options.Save = None,
) -> None:
    """The all-reduce alone: torchrun on every host, checked sums, sizes and bandwidths, and who did not come."""

    def work() -> int:
        from nccl_doctor.cli.run import Request, check_cluster
        from nccl_doctor.collect.smoke import SmokeLimits
        from nccl_doctor.inventory.overrides import Overrides

        request = Request(
            hosts=hosts,
            where=where,
            exclude=exclude,
            only=("access", "software", "allreduce"),
            timeout_s=timeout,
            connect_s=connect_timeout,
            transport=transport,
            overrides=Overrides(python, master_port, master_addr, nproc_per_node, user, port, tuple(env or ())),
            smoke_limits=SmokeLimits(
                deadline_s=smoke_timeout,
                budget_s=smoke_budget,
                max_bytes=max_bytes,
                backend=None if backend == "auto" else backend,
                save_logs=save_logs,
            ),
            isolate=isolate,
            save=save,
        )
        return check_cluster(request, out)

    out = Out("smoke", output, output_file, color, quiet, verbose, fail_on)
    finish(out, work)
