"""Information about processes from /proc/PID, such as identity, open files, containers and jobs.

A process is identified by its PID and its start time in clock ticks since boot. This start time does not change when
the system clock is set.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from itertools import islice
from typing import Iterator, NamedTuple

from nccl_doctor.probe import netlink

MOST_FILES = 1 << 16  # descriptors of one process that are examined


FEW_FILES = 1024
"""Number of open files that are examined first for every process.

Any user can start, for example, 120 processes with 20,000 open files each. If a process has more open files than this
number, the remaining files are therefore examined last.
"""
MORE_FILES_S = 6.0


def pids_by_inode(inodes: set[int], within_s: float = MORE_FILES_S) -> tuple[dict[int, list[int]], bool]:
    """Return all visible processes that have one of the given sockets open.

    Several processes can have the same socket open because children inherit sockets.

    The first result is a dictionary that maps inodes of sockets to lists of PIDs. The second result is True if every
    open file was examined. If processes have more than FEW_FILES open files, the remaining files are examined for at
    most ``within_s`` seconds in total.
    """
    wanted = {f"socket:[{inode}]": inode for inode in inodes if inode}
    holders: dict[int, list[int]] = {}
    if not wanted:
        return holders, True

    def note(pid: int, target: str) -> None:
        inode = wanted.get(target)
        if inode is not None and pid not in holders.setdefault(inode, []):
            holders[inode].append(pid)

    crowded: set[int] = set()
    last = count = 0
    for pid, _, target in open_files(most=FEW_FILES):
        last, count = pid, count + 1 if pid == last else 1
        if count > FEW_FILES // 2:  # it may have more: some were closed meanwhile
            crowded.add(pid)
        note(pid, target)
    deadline = time.monotonic() + within_s
    for pid, _, target in open_files(crowded, first=FEW_FILES):
        if time.monotonic() >= deadline:
            return holders, False
        note(pid, target)
    return holders, True


def open_files(pids: set[int] | None = None, first: int = 0, most: int = MOST_FILES) -> Iterator[tuple[int, str, str]]:
    """Yield ``(pid, link, target)`` for each readable link in /proc/PID/fd of the given processes (by default, all).

    For each process, only links from position ``first`` up to, but not including, ``most`` are read.
    """
    everybody = (int(entry) for entry in os.listdir("/proc") if entry.isdigit()) if pids is None else pids
    for pid in sorted(everybody):
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                links = [entry.path for entry in islice(entries, first, most)]
        except OSError:  # gone, or another user's
            continue
        for link in links:
            try:
                yield pid, link, os.readlink(link)
            except OSError:  # closed meanwhile
                continue


PF_KTHREAD = 0x00200000  # include/linux/sched.h
STARTED = 19  # index of starttime, field 22 of /proc/PID/stat (proc_pid_stat(5)), after the command's parenthesis
STACK = 25  # index of startstack, field 28, which is 0 for those who may not trace the process
COMMAND_LIMIT = 500
TEXT_LIMIT = 1 << 18
"""Maximum number of bytes that are read from a file in /proc/PID.

The limit is needed because any process can declare an arbitrary amount of memory as its environment (PR_SET_MM_MAP of
prctl(2)). The environment of a training job rarely exceeds a tenth of the limit.
"""
KEPT_LIMIT = 1 << 25
"""Maximum total size, in bytes, of the environments that a process table caches. The cache is cleared when the limit is
exceeded.
"""


class Proc(NamedTuple):
    """A process as described in /proc/PID/stat."""

    pid: int
    name: str  # the kernel's name, at most 15 characters; a program can change its own
    state: str  # one letter; "Z" is a zombie
    ppid: int
    group: int
    session: int
    terminal: bool  # has a controlling terminal
    kernel: bool  # is a kernel thread
    started: int  # clock ticks since boot
    cpu_s: float = 0.0  # CPU seconds of all its threads
    status: int = 0  # of a zombie, as waitpid(2) returns it, if ``is_readable``
    is_readable: bool = False  # shows what its user alone may see, its stack's start; never of a zombie


def read_proc(pid: int) -> Proc | None:
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        data = os.read(file, 4096)
    except OSError:  # it ended meanwhile
        return None
    finally:
        os.close(file)
    # the name in parentheses may contain spaces and parentheses
    head, _, tail = data.rpartition(b")")
    fields = tail.split()
    return Proc(
        pid=pid,
        name=head.partition(b"(")[2].decode(errors="replace"),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        terminal=fields[4] != b"0",
        kernel=bool(int(fields[6]) & PF_KTHREAD),
        started=int(fields[STARTED]),
        cpu_s=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        status=int(fields[-1]),
        is_readable=fields[STACK] not in (b"0", b"1"),
    )


def cpu_s(pid: int) -> float | None:
    """Return the CPU time in seconds that all threads of a process have used, or None if the process has exited."""
    proc = read_proc(pid)
    return None if proc is None else proc.cpu_s


class ProcessTable:
    """The processes that existed when the object was created.

    Arguments, environment variables and users are read when they are needed, and are then cached.
    """

    def __init__(self) -> None:
        processes = (read_proc(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
        self.procs: dict[int, Proc] = {proc.pid: proc for proc in processes if proc is not None}
        self._children: dict[int, list[int]] = {}
        for proc in self.procs.values():
            self._children.setdefault(proc.ppid, []).append(proc.pid)
        self._argv: dict[int, tuple[str, ...]] = {}
        self._environ: dict[int, dict[str, str]] = {}
        self._environ_bytes = 0
        self._uids: dict[int, int] = {}

    def descendants(self, root: int) -> list[int]:
        """Return all descendants of a process. Each parent precedes its children."""
        pids: list[int] = []
        waiting = [root]
        while waiting:
            below = sorted(self._children.get(waiting.pop(0), []))
            pids += below
            waiting += below
        return pids

    def ancestors(self, pid: int) -> list[int]:
        pids: list[int] = []
        proc = self.procs.get(pid)
        while proc is not None and proc.ppid and proc.ppid not in pids:
            pids.append(proc.ppid)
            proc = self.procs.get(proc.ppid)
        return pids

    def argv(self, pid: int) -> tuple[str, ...]:
        """Return the arguments of a process, or an empty tuple for kernel threads, zombies and hidden processes."""
        if pid not in self._argv:
            words = self.text(pid, "cmdline").rstrip("\0").split("\0")
            self._argv[pid] = tuple(words) if words != [""] else ()
        return self._argv[pid]

    def command(self, pid: int) -> str:
        """Return a process's command line (at most COMMAND_LIMIT characters), or ``[NAME]`` if the line is empty."""
        name = self.procs[pid].name if pid in self.procs else "?"
        line = " ".join(self.argv(pid)) or f"[{name}]"
        return line if len(line) <= COMMAND_LIMIT else line[: COMMAND_LIMIT - 1] + "…"

    def environ(self, pid: int) -> dict[str, str]:
        """Return the initial environment variables of a process.

        The result is empty if the variables can't be read or exceed TEXT_LIMIT, because an incomplete environment could
        be misleading.
        """
        if pid not in self._environ:
            data = _read(pid, "environ")
            text = data.decode(errors="replace") if len(data) < TEXT_LIMIT else ""
            self._environ_bytes += len(data)
            if self._environ_bytes > KEPT_LIMIT:
                self._environ.clear()
                self._environ_bytes = len(data)
            entries = (entry.partition("=") for entry in text.split("\0"))
            self._environ[pid] = {name: value for name, mark, value in entries if mark}
        return self._environ[pid]

    def uid(self, pid: int) -> int:
        """Return the real user ID of a process, or -1 if the process has exited.

        The owner of /proc/PID is not used because root owns /proc/PID if the process is not dumpable (proc(5)).
        """
        if pid not in self._uids:
            value = self.status(pid, "Uid")
            self._uids[pid] = int(value.split()[0]) if value else -1
        return self._uids[pid]

    def status(self, pid: int, name: str) -> str | None:
        """Return a value from /proc/PID/status (proc_pid_status(5)), or None if the process has exited."""
        lines = self.text(pid, "status").splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith(name + ":")), None)

    def executable(self, pid: int) -> str:
        """Return the base name of a process's executable.

        If the ``exe`` link can't be read, return the base name of the first argument or, if there are no arguments, the
        kernel's name for the process.
        """
        path = self.link(pid, "exe")
        if path is None:
            argv = self.argv(pid)
            path = argv[0].partition(" ")[0] if argv else ""
        return os.path.basename(path.replace(" (deleted)", "")) or (self.procs[pid].name if pid in self.procs else "")

    def text(self, pid: int, name: str) -> str:
        """Return at most TEXT_LIMIT bytes of a file in /proc/PID as a string.

        Return an empty string if the file can't be read.
        """
        return _read(pid, name).decode(errors="replace")

    def opened(self, pid: int) -> list[str]:
        """Return the targets of all readable links in /proc/PID/fd."""
        return [target for _, _, target in open_files({pid})]

    def link(self, pid: int, name: str) -> str | None:
        """Return the target of a link in /proc/PID, such as "cwd", or None if the link can't be read."""
        try:
            return os.readlink(f"/proc/{pid}/{name}")
        except OSError:
            return None


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read(TEXT_LIMIT)
    return b""  # gone, or another user's


SLURM = re.compile(r"/job_(?P<job>[0-9]+)(?:/step_(?P<step>[0-9A-Za-z_]+))?")
"""Pattern of the control groups of Slurm jobs, such as slurm/uid_1000/job_77/step_0 and slurmstepd.scope/job_77/step_0.
"""
CONTAINER = re.compile(
    r"(?:^|[/:-])(?P<runtime>docker|libpod|cri-containerd|crio|lxc|machine)(?:[-/]|\.payload[./])(?!conmon-)"
    r"(?P<name>[0-9A-Za-z_.-]+)"
)
"""Pattern of the control groups of containers.

Examples of matches are docker-ID.scope and docker/ID (Docker), libpod-ID.scope (Podman), cri-containerd-ID.scope and
crio-ID.scope (Kubernetes), and lxc.payload.NAME (LXC). docker.service, machine.slice and Podman's monitor
(libpod-conmon-ID.scope) are no containers.
"""
USER_SLICE = re.compile(r"/user-(?P<uid>[0-9]+)\.slice(?:/|$)")
"""Pattern of the control group that a login gets through pam_systemd, such as
user.slice/user-1000.slice/session-3.scope (systemd.special(7)).
"""
SERVICE = re.compile(r".*/(?P<name>[^/]+)\.service(?:/|$)")
"""Pattern of the path of a control group in a systemd service.

The last service in the path is matched. The service's control group can have child groups (``Delegate=``,
systemd.resource-control(5)).
"""
LOGINS = frozenset({"ssh", "sshd", "user", "getty", "serial-getty", "cron", "crond", "atd", "slurmd"})
"""Services that start processes for users but do not supervise these processes. Without pam_systemd, a user's processes
stay in the control group of the service that started them (such as ssh).
"""
NO_LOGIN = 2**32 - 1  # /proc/PID/loginuid of a process that no login started (proc_pid_loginuid(5))
MOST_SPACES = 64  # network namespaces that are examined: any user may create as many as they like


def unit_of(pid: int, table: ProcessTable) -> str | None:
    """Return a process's Slurm job or container, such as "docker container 3f2a40b1c9d2".

    The Slurm job or container is determined from the process's control group or ``SLURM_JOB_ID`` environment variable.
    """
    job = SLURM.search(table.text(pid, "cgroup"))
    if job:
        return f"Slurm job {job['job']}" + (f".{job['step']}" if job["step"] else "")
    job_id = table.environ(pid).get("SLURM_JOB_ID", "")
    return _container(pid, table) or (f"Slurm job {job_id}" if job_id.isdigit() else None)


def is_contained(pid: int, table: ProcessTable) -> bool:
    """Return whether a process is in a different container from the probe.

    The control group and the PID namespace of the process are examined.
    """
    theirs, ours = table.link(pid, "ns/pid"), table.link(os.getpid(), "ns/pid")
    return _container(pid, table) is not None or (theirs is not None and theirs != ours)


def apart(pid: int, table: ProcessTable) -> str | None:
    """Return a phrase that describes what separates a process of the same user from the probe.

    Examples are a different container, Slurm job or login. Return None if nothing separates the process from the probe.

    Mount namespaces are compared only if the probe runs as root, because pam_namespace and Apptainer can give each
    login or job of a user its own mount namespace.
    """
    container = _container(pid, table)
    if container is not None:
        return f"is in {container}"
    for kind, words in (("pid", "another PID namespace"), ("mnt", "another mount namespace")):
        theirs, ours = table.link(pid, f"ns/{kind}"), table.link(os.getpid(), f"ns/{kind}")
        if theirs is None and kind == "pid":
            return "does not tell which container it is in"
        if theirs is None and _has_ended(pid):
            continue  # its mounts are gone first, and a zombie can't do harm
        if theirs != ours and (kind == "pid" or os.getuid() == 0):
            return f"is in {words}: a container's, or a service's own"
    job = _slurm_job(pid, table)
    if job is not None and job != _slurm_job(os.getpid(), table):
        return f"belongs to Slurm job {job}"
    login, own_login = _login(pid, table), _login(os.getpid(), table)
    if login is not None and login != (os.getuid() if own_login is None else own_login):
        return f"was started in the login of uid {login}"
    return None


def _has_ended(pid: int) -> bool:
    known = read_proc(pid)
    return known is None or known.state in "ZX"


def service_of(pid: int, table: ProcessTable) -> str | None:
    """Return the systemd service that supervises a process, or None if there is no such service.

    Services that only start login sessions are ignored.
    """
    for line in table.text(pid, "cgroup").splitlines():
        match = SERVICE.match(line)
        if match and re.split("[@.]", match["name"])[0] not in LOGINS:
            return f"{match['name']}.service"
    return None


def surroundings(pid: int, table: ProcessTable) -> tuple[str | None, ...]:
    """Return a process's container, namespaces and Slurm job, which all processes of one launcher share."""
    spaces = (table.link(pid, f"ns/{kind}") for kind in ("pid", "mnt"))
    return (_container(pid, table), *spaces, _slurm_job(pid, table))


def elsewhere(port: int, table: ProcessTable) -> list[dict[str, object]]:
    """Return one process for each network namespace, other than the probe's, in which the given port is in use."""
    spaces = {table.link(os.getpid(), "ns/net"), None}
    processes: list[dict[str, object]] = []
    for pid in sorted(table.procs):
        space = table.link(pid, "ns/net")
        if space in spaces:
            continue
        if len(spaces) > MOST_SPACES:
            break
        spaces.add(space)
        if port in _held_ports(pid):
            processes.append({"pid": pid, "command": table.command(pid), "unit": unit_of(pid, table)})
    return processes


def host_name() -> str:
    """Return the machine's host name up to the first dot."""
    return socket.gethostname().partition(".")[0]


def _container(pid: int, table: ProcessTable) -> str | None:
    match = CONTAINER.search(table.text(pid, "cgroup"))
    if match is None or match[0] in table.text(os.getpid(), "cgroup"):
        return None
    return f"{match['runtime']} container {match['name'].replace('.scope', '')[:12]}"


def _slurm_job(pid: int, table: ProcessTable) -> str | None:
    """Return a process's Slurm job.

    A job ID from the ``SLURM_JOB_ID`` environment variable is used only if the job's slurmstepd is running.
    """
    group = SLURM.search(table.text(pid, "cgroup"))
    if group:
        return group["job"]
    job_id = table.environ(pid).get("SLURM_JOB_ID", "")
    if not job_id.isdigit():
        return None
    return job_id if any(table.command(other).startswith(f"slurmstepd: [{job_id}.") for other in table.procs) else None


def _login(pid: int, table: ProcessTable) -> int | None:
    """Return the ID of the user who logged in, even if sudo has changed the user ID since the login.

    Return None if the process does not belong to a login.
    """
    match = USER_SLICE.search(table.text(pid, "cgroup"))
    if match:
        return int(match["uid"])
    login_uid = table.text(pid, "loginuid").strip()
    return int(login_uid) if login_uid.isdigit() and int(login_uid) != NO_LOGIN else None


def _held_ports(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):  # it is gone, or another user's
        yield from (
            flow.socket.local_port
            for flow in netlink.read_table(f"/proc/{pid}/net")
            if flow.socket.state in ("LISTEN", "BOUND")
        )
