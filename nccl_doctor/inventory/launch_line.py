"""Builds the cluster of a job from its launch command, which determines the master if no other source does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nccl_doctor.inventory.build import Overrides
from nccl_doctor.launch.line import LaunchLine, joined, read_line
from nccl_doctor.launch.shell_variables import is_of_shell
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.servers.advertise import PROGRAMS
from nccl_doctor.text.inet import is_loopback

PLACES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES",
          "GROUP_RANK")  # fmt: skip
"""Variables that define a rank's place in the job.

If a launch command sets variables in ``PLACES``, their values are checked together with the command.
"""


def with_line(reader: Callable[[Mapping[str, str]], Cluster], words: Sequence[str]) -> Cluster:
    """Return the cluster after adding the launch command ``words`` and its variables, script and server.

    ``reader`` builds the cluster from the hosts, given additional environment variables.
    """
    cluster, line = reader({}), read_line(words)
    first = cluster.nodes[0]
    master = {name: value for name, value in line.master.items() if value}
    address = master.get("MASTER_ADDR", first.name)
    if len(cluster.nodes) > 1 and (address == "localhost" or is_loopback(address)):
        master.pop("MASTER_ADDR", None)  # the line is at fault, but its port is meant anyway
        address = first.name
    if address in (first.name, first.address):  # otherwise the line itself is at fault
        cluster = reader(master)
        origins = {name: "the line" if text in master else text for name, text in cluster.variables.items()}
        cluster = cluster.model_copy(update={"variables": origins})
    cluster = Overrides(line=_of_the_job(line, cluster)).applied(cluster)
    script = [_where(word, cluster) for word in line.script[:1] if word.endswith(".py") or word.startswith("/")]
    server = line.launcher if line.launcher in PROGRAMS and PROGRAMS[line.launcher].is_server else None
    update = {"line": str(joined(words)), "same": (*cluster.same, *script), "engine": cluster.engine or server}
    return cluster.model_copy(update=update)


def _where(script: str, cluster: Cluster) -> str:
    """Return the script's path on the hosts. The path is absolute if this machine is a host and has the script."""
    here = Path.cwd() / script
    return str(here) if any(node.local for node in cluster.nodes) and here.is_file() else script


def _of_the_job(line: LaunchLine, cluster: Cluster) -> dict[str, str]:
    """Return the variables that a launch command sets, except variables for a rank's place and for a host's GPUs."""
    per_host = any(node.cuda_visible_devices or node.nproc_per_node for node in cluster.nodes)
    left = {*PLACES, *(("CUDA_VISIBLE_DEVICES",) if per_host else ())}
    return {name: value for name, value in line.variables.items() if name not in left and not is_of_shell(value)}
