"""``nccl-doctor hosts``: what the hosts file was understood to say."""

from __future__ import annotations

from typing import Annotated

from nccl_doctor.cli import options
from nccl_doctor.cli.output import Out, finish


def hosts(
    hosts: options.Hosts = None,
    where: options.Where = None,
    exclude: options.Exclude = None,
    python: options.Python = None,
    master_port: options.MasterPort = None,
    master_addr: options.MasterAddr = None,
    nproc_per_node: options.NprocPerNode = None,
    env: options.Env = None,
    user: options.User = None,
    port: options.SshPort = None,
    output: Annotated[str, options.output("hosts")] = "human",
) -> None:
    """Prints hosts, addresses and ranks, and where each value came from; contacts nobody."""

    def work() -> int:
        import os

        from nccl_doctor.documents import HostList
        from nccl_doctor.inventory.load import load
        from nccl_doctor.inventory.overrides import Overrides

        said = Overrides(python, master_port, master_addr, nproc_per_node, user, port, tuple(env or ()))
        cluster = load(hosts, where=where, exclude=exclude, environ=os.environ, overrides=said)
        out.show(HostList(**dict(cluster)))
        return 0

    out = Out("hosts", output)
    finish(out, work)
