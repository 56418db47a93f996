"""Whose a process is beyond its user: the container or the Slurm job that it runs in, and its network namespace."""

from __future__ import annotations

import os
import re
import socket
from typing import Iterator

from nccl_doctor.probe.kernel_files import read
from nccl_doctor.probe.procs import Table

SLURM = re.compile(r"/job_(?P<job>[0-9]+)(?:/step_(?P<step>[0-9A-Za-z_]+))?")
"""Slurm's plug-ins name a control group after the job: slurm/uid_1000/job_77/step_0, slurmstepd.scope/job_77/step_0."""
CONTAINER = re.compile(
    r"(?:^|[/:-])(?P<runtime>docker|libpod|cri-containerd|crio|lxc|machine)[-/.](?:payload[./])?(?P<name>[0-9A-Za-z_.-]+)"
)
"""docker-ID.scope and docker/ID (Docker), libpod-ID.scope (Podman), cri-containerd-ID.scope and crio-ID.scope
(Kubernetes), lxc.payload.NAME (LXC)."""
LISTEN, CLOSE = "0A", "07"
"""include/net/tcp_states.h, as /proc/net/tcp prints them; 07 with a port is one that is only bound (Linux 6.8)."""


def unit_of(pid: int, table: Table) -> str | None:
    """Its Slurm job or container in words ("docker container 3f2a40b1c9d2"); None for neither.

    By its control group; where that says nothing of Slurm, by the variable that Slurm gives to jobs.
    """
    group = read(f"/proc/{pid}/cgroup") or ""
    job = SLURM.search(group)
    if job:
        return f"Slurm job {job['job']}" + (f".{job['step']}" if job["step"] else "")
    found = CONTAINER.search(group)
    own = read("/proc/self/cgroup") or ""
    if found and found[0] not in own:
        return f"{found['runtime']} container {found['name'].replace('.scope', '')[:12]}"
    told = table.environ(pid).get("SLURM_JOB_ID", "")
    return f"Slurm job {told}" if told.isdigit() else None


def elsewhere(port: int, table: Table) -> list[dict[str, object]]:
    """Processes of other network namespaces in which the port is taken, one a namespace, as far as we may look.

    A port that is taken in one is free in another: containers have their own unless they share the host's.
    """
    try:
        seen = {os.readlink("/proc/self/ns/net")}
    except OSError:
        return []
    found: list[dict[str, object]] = []
    for pid in sorted(table.procs):
        try:
            space = os.readlink(f"/proc/{pid}/ns/net")
        except OSError:  # gone, or not ours to look at
            continue
        if space in seen:
            continue
        seen.add(space)
        if port in _taken(pid):
            found.append({"pid": pid, "command": table.command(pid), "unit": unit_of(pid, table)})
    return found


def _taken(pid: int) -> Iterator[int]:
    """Local ports that a listener, or a socket that is only bound, has in a process's network namespace."""
    for name in ("tcp", "tcp6"):
        for line in (read(f"/proc/{pid}/net/{name}") or "").splitlines()[1:]:
            fields = line.split()
            if fields[3] in (LISTEN, CLOSE):
                yield int(fields[1].rpartition(":")[2], 16)


def host_name() -> str:
    """The machine's own name up to the first dot."""
    return socket.gethostname().partition(".")[0]
