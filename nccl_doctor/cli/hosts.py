"""``nccl-doctor hosts``: what the hosts file was understood to say."""

from __future__ import annotations

from typing import Annotated

from nccl_doctor.cli import options
from nccl_doctor.cli.output import Out, finish


def hosts(
    hosts: options.Hosts = None,
    where: options.Where = None,
    exclude: options.Exclude = None,
    output: Annotated[str, options.output("hosts")] = "human",
) -> None:
    """Prints hosts, addresses and ranks, and where each value came from; contacts nobody."""

    def work() -> int:
        import os

        from nccl_doctor.documents import HostList
        from nccl_doctor.inventory.load import load

        out.show(HostList(**dict(load(hosts, where=where, exclude=exclude, environ=os.environ))))
        return 0

    out = Out("hosts", output)
    finish(out, work)
