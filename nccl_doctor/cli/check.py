"""``nccl-doctor check``."""

from __future__ import annotations

from nccl_doctor.cli import options
from nccl_doctor.cli.output import Out, finish


def check(
    hosts: options.Hosts = None,
    where: options.Where = None,
    exclude: options.Exclude = None,
    output: options.Output = "human",
    output_file: options.OutputFile = None,
    color: options.ColorWhen = options.Color.AUTO,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    fail_on: options.FailOnLevel = options.FailOn.ERROR,
    only: options.Only = None,
    skip: options.Skip = None,
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
    mesh: options.Mesh = "auto",
    sudo: options.Sudo = False,
    no_smoke: options.NoSmoke = False,
    smoke_timeout: options.SmokeTimeout = 60.0,
    save: options.Save = None,
    save_whole: options.SaveWhole = False,
    write_hosts: options.WriteHosts = None,
    write_failed: options.WriteFailed = None,
    load_from: options.From = None,
) -> None:
    """Preflight: connect, look, test the ports, judge, run a small all-reduce, report."""

    def work() -> int:
        from nccl_doctor.cli.run import Request, check_cluster
        from nccl_doctor.collect.smoke import SmokeLimits
        from nccl_doctor.inventory.overrides import Overrides

        request = Request(
            hosts=hosts,
            where=where,
            exclude=exclude,
            only=tuple(only or ()),
            skip=tuple(skip or ()),
            timeout_s=timeout,
            connect_s=connect_timeout,
            transport=transport,
            overrides=Overrides(python, master_port, master_addr, nproc_per_node, user, port, tuple(env or ())),
            mesh=mesh,
            sudo=sudo,
            smoke=not no_smoke,
            # It proves that the job will start; `smoke` takes its time to measure.
            smoke_limits=SmokeLimits(deadline_s=smoke_timeout, budget_s=2.0),
            isolate=True,
            save=save,
            save_whole=save_whole,
            passed=write_hosts,
            failed=write_failed,
            load_from=load_from,
        )
        return check_cluster(request, out)

    out = Out("check", output, output_file, color, quiet, verbose, fail_on)
    finish(out, work)
