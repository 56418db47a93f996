"""Whose a process is beyond its user: the container, Slurm job, login and systemd unit that it runs in."""

from __future__ import annotations

import os
import re
import socket
from typing import Iterator

from nccl_doctor.probe.procs import Table
from nccl_doctor.probe.reading import read

SLURM = re.compile(r"/job_(?P<job>[0-9]+)(?:/step_(?P<step>[0-9A-Za-z_]+))?")
"""Slurm's plug-ins name a control group after the job: slurm/uid_1000/job_77/step_0, slurmstepd.scope/job_77/step_0."""
CONTAINER = re.compile(
    r"(?:^|[/:-])(?P<runtime>docker|libpod|cri-containerd|crio|lxc|machine)[-/.](?:payload[./])?(?P<name>[0-9A-Za-z_.-]+)"
)
"""docker-ID.scope and docker/ID (Docker), libpod-ID.scope (Podman), cri-containerd-ID.scope and crio-ID.scope
(Kubernetes), lxc.payload.NAME (LXC)."""
USER_SLICE = re.compile(r"/user-(?P<uid>[0-9]+)\.slice(?:/|$)")
"""Where pam_systemd puts a login: user.slice/user-1000.slice/session-3.scope (systemd.special(7))."""
SERVICE = re.compile(r".*/(?P<name>[^/]+)\.service(?:/|$)")
"""The innermost: a service may have groups of its own below it (Delegate= of systemd.resource-control(5))."""
LOGINS = frozenset({"ssh", "sshd", "user", "getty", "serial-getty", "cron", "crond", "atd", "slurmd"})
"""Services that start what people ask for and do not look after it; without pam_systemd it stays in their group."""
NO_LOGIN = 2**32 - 1
"""/proc/PID/loginuid of what no login started (proc_pid_loginuid(5))."""
MOST_SPACES = 64
"""Network namespaces that are looked into: any user may make as many as they like."""
LISTEN, CLOSE = "0A", "07"
"""include/net/tcp_states.h, as /proc/net/tcp prints them; 07 with a port is one that is only bound (Linux 6.8)."""


def unit_of(pid: int, table: Table) -> str | None:
    """Its Slurm job or container in words ("docker container 3f2a40b1c9d2"); None for neither.

    By its control group; where that says nothing of Slurm, by the variable that Slurm gives to jobs.
    """
    job = SLURM.search(table.text(pid, "cgroup"))
    if job:
        return f"Slurm job {job['job']}" + (f".{job['step']}" if job["step"] else "")
    told = table.environ(pid).get("SLURM_JOB_ID", "")
    return _container(pid, table) or (f"Slurm job {told}" if told.isdigit() else None)


def is_contained(pid: int, table: Table) -> bool:
    """Whether it is in a container that is not ours: by its control group, or by a PID namespace of its own."""
    theirs, ours = table.link(pid, "ns/pid"), table.link(os.getpid(), "ns/pid")
    return _container(pid, table) is not None or (theirs is not None and theirs != ours)


def apart(pid: int, table: Table) -> str | None:
    """What sets a process of our user apart from us: a container, Slurm job or login that is not ours.

    A mount namespace counts for root alone: pam_namespace and Apptainer give one to each of a user's own logins and
    jobs, whereas root sees the processes of everybody's containers.
    """
    container = _container(pid, table)
    if container is not None:
        return f"is in {container}"
    for kind, words in (("pid", "another PID namespace"), ("mnt", "another mount namespace")):
        theirs, ours = table.link(pid, f"ns/{kind}"), table.link(os.getpid(), f"ns/{kind}")
        if theirs is None and kind == "pid":
            return "does not tell which container it is in"
        if theirs != ours and (kind == "pid" or os.getuid() == 0):
            return f"is in {words}: a container's, or a service's own"
    job = _slurm_job(pid, table)
    if job is not None and job != _slurm_job(os.getpid(), table):
        return f"belongs to Slurm job {job}"
    login, own = _login(pid, table), _login(os.getpid(), table)
    if login is not None and login != (os.getuid() if own is None else own):
        return f"was started in the login of uid {login}"
    return None


def service_of(pid: int, table: Table) -> str | None:
    """The systemd service that looks after it; None where there is none, or one that only lets people in."""
    for line in table.text(pid, "cgroup").splitlines():
        found = SERVICE.match(line)
        if found and re.split("[@.]", found["name"])[0] not in LOGINS:
            return f"{found['name']}.service"
    return None


def surroundings(pid: int, table: Table) -> tuple[str | None, ...]:
    """What all that one launcher started has in common: container, namespaces and Slurm job."""
    spaces = (table.link(pid, f"ns/{kind}") for kind in ("pid", "mnt"))
    return (_container(pid, table), *spaces, _slurm_job(pid, table))


def elsewhere(port: int, table: Table) -> list[dict[str, object]]:
    """Processes of other network namespaces in which the port is taken, one a namespace, as far as we may look.

    A port that is taken in one is free in another: containers have their own unless they share the host's.
    """
    seen = {table.link(os.getpid(), "ns/net"), None}
    found: list[dict[str, object]] = []
    for pid in sorted(table.procs):
        space = table.link(pid, "ns/net")
        if space in seen:
            continue
        if len(seen) > MOST_SPACES:
            break
        seen.add(space)
        if port in _held_ports(pid):
            found.append({"pid": pid, "command": table.command(pid), "unit": unit_of(pid, table)})
    return found


def host_name() -> str:
    """The machine's own name up to the first dot."""
    return socket.gethostname().partition(".")[0]


def _container(pid: int, table: Table) -> str | None:
    found = CONTAINER.search(table.text(pid, "cgroup"))
    if found is None or found[0] in table.text(os.getpid(), "cgroup"):
        return None
    return f"{found['runtime']} container {found['name'].replace('.scope', '')[:12]}"


def _slurm_job(pid: int, table: Table) -> str | None:
    """The Slurm job that has it; one that it only remembers in its variables counts while a slurmstepd serves it."""
    group = SLURM.search(table.text(pid, "cgroup"))
    if group:
        return group["job"]
    told = table.environ(pid).get("SLURM_JOB_ID", "")
    if not told.isdigit():
        return None
    return told if any(table.command(one).startswith(f"slurmstepd: [{told}.") for one in table.procs) else None


def _login(pid: int, table: Table) -> int | None:
    """The user who logged in, whoever sudo made of them since; None where nobody did."""
    found = USER_SLICE.search(table.text(pid, "cgroup"))
    if found:
        return int(found["uid"])
    told = table.text(pid, "loginuid").strip()
    return int(told) if told.isdigit() and int(told) != NO_LOGIN else None


def _held_ports(pid: int) -> Iterator[int]:
    """Local ports that a listener, or a socket that is only bound, has in a process's network namespace."""
    for name in ("tcp", "tcp6"):
        for line in (read(f"/proc/{pid}/net/{name}") or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 3 and fields[3] in (LISTEN, CLOSE):
                yield int(fields[1].rpartition(":")[2], 16)
