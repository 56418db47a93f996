"""The machine, whom we are there, its interpreter and its limits."""

from __future__ import annotations

import os
import pwd
import resource
import socket
import sys
from typing import Any, Callable

from nccl_doctor.probe import kernel_files

RUNTIME_MARKS = (("/run/.containerenv", "podman"), ("/.dockerenv", "docker"), ("/.singularity.d", "apptainer"))
CGROUP_MARKS = (("kubepods", "kubernetes"), ("libpod", "podman"), ("docker", "docker"), ("/lxc", "lxc"))
"""What the path of pid 1's control group names, where the runtime does not hide it in a cgroup namespace."""

read = kernel_files.read
port_range = kernel_files.port_range


def identity() -> dict[str, Any]:
    """snapshot.Identity."""
    system = os.uname()
    return {
        "hostname": socket.gethostname(),
        "user": user_name(),
        "uid": os.getuid(),
        "machine": system.machine,
        "kernel": system.release,
        "boot_id": read("/proc/sys/kernel/random/boot_id"),
        "container": container(),
    }


def user_name() -> str:
    """The login name, or the uid as text where no name is known for it (containers with a foreign uid)."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def container(root: str = "") -> str | None:
    """The container runtime that we are in, or None; ``root`` stands before every path.

    Sources: the files that Docker, Podman and Apptainer put in, Kubernetes' variable and mount (a login over SSH lacks
    the variable), systemd's container interface (https://systemd.io/CONTAINER_INTERFACE), pid 1's control group.
    """
    if "KUBERNETES_SERVICE_HOST" in os.environ or os.path.exists(root + "/run/secrets/kubernetes.io"):
        return "kubernetes"
    for mark, runtime in RUNTIME_MARKS:
        if os.path.exists(root + mark):
            return runtime
    told = read(root + "/run/systemd/container")
    if told:
        return told
    group = read(root + "/proc/1/cgroup") or ""
    return next((runtime for mark, runtime in CGROUP_MARKS if mark in group), None)


def python(failure: Callable[[], str | None]) -> dict[str, Any]:
    """snapshot.PythonInfo; ``failure`` is what the interpreter says where it ends as training would start it."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    return {"executable": sys.executable, "version": version, "prefix": sys.prefix, "failure": failure()}


def limits() -> dict[str, Any]:
    """snapshot.ResourceLimits."""
    nofile = resource.getrlimit(resource.RLIMIT_NOFILE)
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    names = ("nofile_soft", "nofile_hard", "memlock_soft", "memlock_hard")
    return {name: None if one == resource.RLIM_INFINITY else one for name, one in zip(names, nofile + memlock)}


def shm(path: str = "/dev/shm") -> dict[str, Any]:  # noqa: S108 - POSIX shared memory is there
    """snapshot.Shm."""
    try:
        found = os.statvfs(path)
    except FileNotFoundError:
        return {"total_bytes": 0, "free_bytes": 0, "problem": "missing"}
    sizes = {"total_bytes": found.f_frsize * found.f_blocks, "free_bytes": found.f_frsize * found.f_bavail}
    return {**sizes, "problem": None if os.access(path, os.W_OK | os.X_OK) else "forbidden"}
