"""``nccl-doctor hosts``: what the hosts file was understood to say."""

from __future__ import annotations

from nccl_doctor.cli import options
from nccl_doctor.cli.output import Out, finish


def hosts(
    hosts: options.Hosts = None,
    where: options.Where = None,
    exclude: options.Exclude = None,
    output: options.Output = options.Form.HUMAN,
) -> None:
    """Prints hosts, addresses and ranks, and where each value came from; contacts nobody."""

    def work() -> int:
        import json
        import os

        from nccl_doctor.errors import UsageError
        from nccl_doctor.inventory.load import load
        from nccl_doctor.report.hosts import hosts_table

        if output not in (options.Form.HUMAN, options.Form.JSON):
            raise UsageError("hosts prints human or json")
        cluster = load(hosts, where=where, exclude=exclude, environ=os.environ)
        if output is options.Form.JSON:
            document = {"schema": 1, "command": "hosts", **cluster.model_dump()}
            out.write(json.dumps(document, indent=2) + "\n")
        else:
            out.write(hosts_table(cluster))
        return 0

    out = Out("hosts", output)
    finish(out, work)
