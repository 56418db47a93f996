"""Facts about the machine, such as user, Python interpreter, resource limits, kernel settings and container runtime."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import resource
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any, Iterator

from nccl_doctor.probe import netlink
from nccl_doctor.probe.procs import SLURM
from nccl_doctor.probe.tools import Unavailable, fact, read, under

if TYPE_CHECKING:
    from nccl_doctor.probe.facts.software import Interpreter


RUNTIME_MARKS = (("/run/.containerenv", "podman"), ("/.dockerenv", "docker"), ("/.singularity.d", "apptainer"))
CGROUP_MARKS = (("kubepods", "kubernetes"), ("libpod", "podman"), ("docker", "docker"), ("/lxc", "lxc"))
"""Substrings of the control group path of PID 1, and the container runtime that each substring identifies.

In a cgroup namespace, the path of PID 1 does not show the container runtime.
"""


@fact("identity")
def identity() -> dict[str, Any]:
    system = os.uname()
    user = str(os.getuid())
    with contextlib.suppress(KeyError):  # a container with a uid without a name
        user = pwd.getpwuid(os.getuid()).pw_name
    return {
        "hostname": socket.gethostname(),
        "user": user,
        "uid": os.getuid(),
        "machine": system.machine,
        "kernel": system.release,
        "boot_id": read("/proc/sys/kernel/random/boot_id"),
        "container": container(),
    }


def container() -> str | None:
    """Return the name of the runtime of the container in which the probe runs, or None outside a container.

    Kubernetes is identified by an environment variable or, because SSH sessions lack this variable, by a mount. Docker,
    Podman and Apptainer are identified by files that they create in containers. The name of any other runtime is read
    from /run/systemd/container (https://systemd.io/CONTAINER_INTERFACE) or derived from the control group of PID 1.
    """
    if "KUBERNETES_SERVICE_HOST" in os.environ or os.path.exists(under("/run/secrets/kubernetes.io")):
        return "kubernetes"
    for mark, runtime in RUNTIME_MARKS:
        if os.path.exists(under(mark)):
            return runtime
    name = read(under("/run/systemd/container"))
    if name:
        return name
    group = read(under("/proc/1/cgroup")) or ""
    return next((runtime for mark, runtime in CGROUP_MARKS if mark in group), None)


@fact("python")
def python(interpreter: Interpreter) -> dict[str, Any]:
    """Return a ``snapshot.PythonInfo``.

    ``failure`` is the reason why the Python interpreter of the training job can't start, or None.
    """
    version = ".".join(str(part) for part in sys.version_info[:3])
    folder = os.path.dirname(os.path.abspath(sys.executable))
    above = os.path.dirname(folder)
    # as the module site, without which the probe runs, interprets it (site.venv)
    prefix = above if any(os.path.isfile(f"{place}/pyvenv.cfg") for place in (folder, above)) else sys.prefix
    return {"executable": sys.executable, "version": version, "prefix": prefix, "failure": interpreter.failure()}


CAP_IPC_LOCK = 14  # linux/capability.h
ALL_USERS = ["0", "0", "4294967295"]  # /proc/PID/uid_map in the machine's first user namespace


@fact("limits")
def limits() -> dict[str, Any]:
    memory, folder = read(under("/proc/meminfo")) or "", under("/proc/self")
    kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_AS)
    values = [value for kind in kinds for value in resource.getrlimit(kind)]
    names = ("nofile_soft", "nofile_hard", "memlock_soft", "memlock_hard", "address_space")
    rlimits = {name: None if limit == resource.RLIM_INFINITY else limit for name, limit in zip(names, values)}
    cma = dict(re.findall(r"^(CmaTotal|CmaFree): +(\d{1,15}) kB$", memory, re.MULTILINE))
    pages = [int(cma[name]) for name in ("CmaTotal", "CmaFree")] if len(cma) == 2 else None
    powers = re.search(r"^CapEff:\s+([0-9a-f]{16})$", read(f"{folder}/status") or "", re.MULTILINE)
    whole = (read(f"{folder}/uid_map") or "").split() == ALL_USERS  # the kernel checks this in the first user namespace
    may = whole and bool(int(powers[1], 16) >> CAP_IPC_LOCK & 1) if powers else None
    sums = dict(re.findall(r"^(CommitLimit|Committed_AS): +(\d{1,15}) kB$", memory, re.MULTILINE))
    strict = (read(under("/proc/sys/vm/overcommit_memory")) or "").strip() == "2" and len(sums) == 2
    room = max(0, int(sums["CommitLimit"]) - int(sums["Committed_AS"])) << 10 if strict else None
    return {**rlimits, "cma_kib": pages, "ipc_lock": may, "commit_bytes": room}


@fact("shm")
def shm() -> dict[str, Any]:
    path = under("/dev/shm")  # noqa: S108 - POSIX shared memory is there
    try:
        usage = os.statvfs(path)
    except FileNotFoundError:
        return {"total_bytes": 0, "free_bytes": 0, "problem": "missing"}
    sizes = {"total_bytes": usage.f_frsize * usage.f_blocks, "free_bytes": usage.f_frsize * usage.f_bavail}
    sizes["memory_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {**sizes, "problem": None if os.access(path, os.W_OK | os.X_OK) else "forbidden"}


FOLDERS = ("/tmp", "/var/tmp")  # noqa: S108 - as tempfile.gettempdir has them where no variable names one


@fact("temporary")
def temporary() -> list[dict[str, Any]]:
    """Return a ``snapshot.TemporaryFolder`` for each existing directory for temporary files.

    The candidates are $TMPDIR, /tmp, /var/tmp and the home directory.
    """
    folders = []
    for path in dict.fromkeys((os.environ.get("TMPDIR") or FOLDERS[0], *FOLDERS, os.path.expanduser("~"))):
        try:
            room = os.statvfs(path)
        except FileNotFoundError:
            continue
        free_files = room.f_favail if room.f_files else None  # btrfs does not count files
        noexec = bool(room.f_flag & os.ST_NOEXEC)
        free = room.f_frsize * room.f_bavail
        folders.append({"path": path, "free_bytes": free, "free_files": free_files, "noexec": noexec})
    return folders


# The files below /proc/sys/net/ipv4/neigh exist only in the machine's first network namespace; rtnetlink reports the
# one table to all, in containers too (net/core/neighbour.c, neightbl_dump_info).
RTM_GETNEIGHTBL = 66
NDTA_NAME, NDTA_THRESH1, NDTA_THRESH2, NDTA_THRESH3 = 1, 2, 3, 4
TIMEOUT_S = 2.0
_NDTMSG = struct.Struct("=BBH")
_SETTINGS = (("gc_thresh1", NDTA_THRESH1), ("gc_thresh2", NDTA_THRESH2), ("gc_thresh3", NDTA_THRESH3))


def thresholds() -> dict[str, str]:
    """Return gc_thresh1, gc_thresh2 and gc_thresh3 of the IPv4 neighbour table (arp(7)), keyed by full sysctl name.

    Raise OSError if the kernel rejects the request.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(TIMEOUT_S)
        for body in netlink.dump(kernel, RTM_GETNEIGHTBL, _NDTMSG.pack(socket.AF_INET, 0, 0)):
            if values := parse_thresholds(body):
                return values
    return {}


def parse_thresholds(body: bytes) -> dict[str, str]:
    """Return gc_thresh1, gc_thresh2 and gc_thresh3 from a ``struct ndtmsg`` with attributes.

    Return an empty dictionary if the message describes another neighbour table or only a single device.
    """
    attributes = netlink.attributes(body[_NDTMSG.size :])
    if attributes.get(NDTA_NAME, b"").rstrip(b"\0") != b"arp_cache":
        return {}
    return {
        f"net.ipv4.neigh.default.{name}": str(netlink.NUMBER.unpack(attributes[kind])[0])
        for name, kind in _SETTINGS
        if kind in attributes
    }


ROOT = "/proc/sys/net/ipv4/conf"
KEYS = ("rp_filter", "arp_ignore", "arp_announce")
TTL = "/proc/sys/net/ipv4/ip_default_ttl"


@fact("sysctls")
def read_sysctls() -> dict[str, str]:
    """Return the relevant kernel settings (ip-sysctl.rst), keyed by names such as "net.ipv4.conf.all.rp_filter"."""
    settings: dict[str, str] = {}
    if (ttl := read(TTL)) is not None:
        settings["net.ipv4.ip_default_ttl"] = ttl.strip()
    with contextlib.suppress(OSError):  # a sandbox with its own kernel has no such table: its limits stay unknown
        settings.update(thresholds())
    for interface in sorted(os.listdir(ROOT)):
        for key in KEYS:
            try:
                with open(f"{ROOT}/{interface}/{key}") as file:
                    settings[f"net.ipv4.conf.{interface}.{key}"] = file.read().strip()
            except FileNotFoundError:  # the interface was removed meanwhile
                continue
    return settings


CONNTRACK = "/proc/sys/net/netfilter/nf_conntrack_"


@fact("conntrack")
def read_conntrack() -> dict[str, int] | None:
    """Return a ``snapshot.ConntrackTable``, or None if the kernel tracks no connections or has no limit.

    The count is that of this network namespace, and a limit of 0 means no limit (net/netfilter/nf_conntrack_core.c,
    ``__nf_conntrack_alloc``).
    """
    most, used = (read(under(CONNTRACK + name)) for name in ("max", "count"))
    return None if most is None or used is None or not int(most) else {"most": int(most), "used": int(used)}


MANY = 32768
"""Number of tasks that is sufficient for any job. If ``ulimit -u`` is ``MANY`` or higher, the user's threads are not
counted.
"""


@fact("tasks")
def read_tasks() -> list[dict[str, Any]]:
    """Return a ``snapshot.TaskLimit`` for each ``pids.max``, and for a low ``ulimit -u`` if the user is not root."""
    soft, user = resource.getrlimit(resource.RLIMIT_NPROC)[0], os.getuid()
    task_limits = []
    if user and 0 <= soft < MANY:  # RLIM_INFINITY is -1; root is exempt (kernel/fork.c, copy_process)
        task_limits.append({"name": "ulimit -u", "most": soft, "used": _threads_of(user)})
    for folder in _groups("pids"):
        most, used = ((read(f"{folder}/pids.{name}") or "").strip() for name in ("max", "current"))
        if most.isdigit():
            if not used.isdigit():
                raise Unavailable(f"{folder}/pids.current can't be read")
            name = folder.partition("/sys/fs/cgroup")[2] or "/"
            task_limits.append({"name": f"pids.max of the control group {name}", "most": int(most), "used": int(used)})
    return task_limits


def _threads_of(user: int) -> int:
    count, processes = 0, under("/proc")
    for pid in filter(str.isdigit, os.listdir(processes)):
        with contextlib.suppress(OSError):  # the process has ended
            if os.stat(f"{processes}/{pid}").st_uid == user:
                count += len(os.listdir(f"{processes}/{pid}/task"))
    return count


UNBOUNDED = 1 << 60  # version 1 of control groups writes the largest number of pages for "no limit", about 2^63 bytes


@fact("step")
def read_step() -> dict[str, Any] | None:
    """Return a ``snapshot.StepLimits``, or None if the probe has no memory limit and does not run in a Slurm job."""
    is_job = "SLURM_JOB_ID" in os.environ or bool(SLURM.search(read(under("/proc/self/cgroup")) or ""))
    memory = [
        int(limit)
        for folder in _groups("memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (limit := read(f"{folder}/{name}") or "").isdigit() and int(limit) < UNBOUNDED
    ]
    if not is_job and not memory:
        return None
    quotas = [_quota(folder) for folder in _groups("cpu")]
    cpus = [len(os.sched_getaffinity(0)), *(quota for quota in quotas if quota is not None)]
    return {"cpus": min(cpus), "memory_bytes": min(memory, default=None), "is_job": is_job}


def _groups(controller: str) -> Iterator[str]:
    """Yield the directories of this process's control group and of its parent groups, whose limits also apply."""
    # "NUMBER:CONTROLLERS:PATH" (cgroups(7)), v2's with no controller
    lines = (line.split(":", 2) for line in (read(under("/proc/self/cgroup")) or "").splitlines())
    paths = {name: path for _, names, path in lines for name in names.split(",")}
    key = controller if controller in paths else ""
    folder = under(f"/sys/fs/cgroup/{key}{paths.get(key, '')}".replace("//", "/").rstrip("/"))
    while "/sys/fs/cgroup" in folder:
        yield folder
        folder = folder.rpartition("/")[0]


def _quota(folder: str) -> int | None:
    """Return a control group's limit on CPU time as a number of CPUs, rounded up, or None if there is no limit."""
    words = (read(f"{folder}/cpu.max") or "").split()
    if not words:
        words = [read(f"{folder}/cpu.cfs_quota_us") or "", read(f"{folder}/cpu.cfs_period_us") or ""]
    if len(words) != 2 or not all(word.isdigit() for word in words) or not int(words[1]):
        return None
    return max(1, -(-int(words[0]) // int(words[1])))


PATTERNS = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/infiniband/uverbs*")


@fact("surroundings")
def read_surroundings(inside: bool) -> dict[str, Any] | None:
    """Return a ``snapshot.Surroundings``.

    Outside a container, return None without opening any device, because opening a GPU's device wakes the GPU.
    """
    if not inside:
        return None
    import glob  # 1 ms, and most hosts are no container

    paths = sorted(path for pattern in PATTERNS for path in glob.glob(pattern))
    return {"network": os.readlink("/proc/self/ns/net"), "devices": {path: problem(path) for path in paths}}


def problem(path: str) -> str | None:
    """Try to open a device in the same mode as CUDA and libibverbs.

    Return the name of the error, or None if the device can be opened.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return None
