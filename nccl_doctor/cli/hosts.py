"""The ``nccl-doctor hosts`` command, which prints hosts, addresses and ranks."""

from __future__ import annotations

from typing import Annotated

from nccl_doctor.cli import options
from nccl_doctor.cli.options import flattened
from nccl_doctor.cli.output import Out, finish


@flattened
def hosts(
    *,
    which: options.HostOptions,
    job: options.ServerOptions,
    output: Annotated[str, options.output("hosts")] = "human",
    show_secrets: options.ShowSecrets = False,
) -> None:
    """Print hosts, addresses, ranks, and the source of each value, without contacting any host."""

    def work() -> int:
        from nccl_doctor.model.documents import HostList

        out.show(HostList(**dict(which.cluster(job.overrides()))))
        return 0

    out = Out("hosts", output, show_secrets=show_secrets)
    finish(out, work)
