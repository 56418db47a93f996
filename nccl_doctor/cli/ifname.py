"""The ``nccl-doctor ifname`` command, which shows the interface that NCCL will use on each host, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.options import HostOptions, ReachOptions, ServerOptions, among, flattened
from nccl_doctor.cli.output import Out, finish, form_of

RDMA = {"NCD403", "NCD404", "NCD405", "NCD406"}  # faults that keep RDMA devices from connecting

NcclVersion = Annotated[
    str | None, typer.Option("--nccl-version", metavar="X.Y.Z", help="Assume this version of NCCL.")
]

Asked = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="IP", help="Print the interface that has this address or an address in the same subnet."
    ),
]


@flattened
def ifname(
    *,
    which: HostOptions,
    nccl_version: NcclVersion = None,
    address: Asked = None,
    output: Annotated[str, options.output("ifname")] = "human",
    output_file: options.OutputFile = None,
    color: options.ColorWhen = "auto",
    quiet: options.Quiet = False,
    verbose: Annotated[
        bool,
        options.of_output(
            "-v", "--verbose", help="Also show the addresses that vLLM, SGLang, Ray and other programs advertise."
        ),
    ] = False,
    show_secrets: options.ShowSecrets = False,
    timeout: options.Timeout = 60.0,
    reached: ReachOptions,
    job: ServerOptions,
    load_from: options.From = None,
) -> None:
    """Show which interface and RDMA devices NCCL will use on each host, why, and what to set."""

    def work() -> int:
        from nccl_doctor.cli.run import Request, look, refuse_other_hosts
        from nccl_doctor.cli.snapshots import of_snapshot, read_snapshot
        from nccl_doctor.errors import UsageError
        from nccl_doctor.judge.diagnose import judge
        from nccl_doctor.model.finding import Severity
        from nccl_doctor.nccl.cluster_nccl import answers, answers_for, cluster_nccl, faults
        from nccl_doctor.nccl.versions import parse_version
        from nccl_doctor.servers.advertise import tell
        from nccl_doctor.text.inet import numeric

        try:
            version = None if nccl_version is None else parse_version(nccl_version)
        except ValueError as error:
            raise UsageError(f"--nccl-version: {error}") from error
        asked = numeric(address) if address is not None else None
        if address is not None and (asked is None or asked.is_loopback):
            raise UsageError(f"--address {address!r} is not an address that other hosts can reach, such as 192.168.1.3")
        request = Request(which, timeout_s=timeout, reached=reached, overrides=job.overrides(), smoke=False)
        if load_from is not None:
            refuse_other_hosts(which, request.overrides)
        snapshot = look(request, {"NCD207", "NCD303"}, out) if load_from is None else read_snapshot(load_from)
        result = answers(snapshot, version) if asked is None else answers_for(snapshot, asked, version)
        if asked is None and version is None and any(host.rdma for host in result.hosts):
            result = result.model_copy(update={"diagnoses": judge(snapshot, "ifname", among(RDMA)).diagnoses})
        result = tell(snapshot, result)
        if load_from is not None:
            result = of_snapshot(result, snapshot.cluster.nodes)
        out.show(result)
        if asked is not None:
            unserved = any(host.known and host.has is None for host in result.hosts)
        else:
            unserved = any(host.set or (host.known and host.nccl_interface is None) for host in result.hosts)
            unserved = unserved or any(each.trouble for host in result.hosts for each in host.rdma)
            unserved = unserved or any(each.severity is Severity.ERROR for each in result.diagnoses)
            chosen = () if unserved else faults(cluster_nccl(snapshot, version))
            unserved = unserved or any(fault.severity is Severity.ERROR for fault in chosen)
        if unserved:
            return 1
        return 0 if all(host.known for host in result.hosts) else 3

    out = Out(
        "ifname", form_of("ifname", output, output_file), output_file, color, quiet, verbose, show_secrets=show_secrets
    )
    finish(out, work)
