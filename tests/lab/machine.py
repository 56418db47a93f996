"""Turn the calling process, PID 1 of a new PID namespace, into a lab host: root, network, name, sshd."""

import os
import resource
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.lab import kernel
from tests.lab.errors import LabError
from tests.lab.plan import File, HostPlan, shared_directories
from tests.lab.requirements import SYSTEM_PATH, find_tool
from tests.patience import LONG_S

FIRST_INDEX = 10
"""Interface index of eth0: it leaves room for interfaces that a kernel lists, and NCCL therefore sees, before it."""

_STAGE = "/run"
_OWN_DIRECTORIES = {
    "/home": "mode=755",
    "/root": "mode=711",  # alice must get through, where the interpreter lives below it
    "/run": "mode=755",
    "/tmp": "mode=1777",
}


def become(plan: HostPlan, switch: int) -> None:
    """Leave this machine's namespaces and set the host up; its sshd answers when this returns.

    Args:
        plan: what the host is to be.
        switch: descriptor of the switch's network namespace.
    """
    kernel.die_with_parent(signal.SIGKILL)
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC)
    os.umask(0o022)
    socket.sethostname(plan.name)
    _enter_own_root(plan)
    for file in plan.files:
        _write(file)
    _connect(plan, switch)
    _raise_limits()
    _start_sshd()


def rest() -> None:
    """Become the host's init for good: it does nothing, and the kernel reaps orphans whose parent ignores SIGCHLD."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.execv(find_tool("sleep"), ["sleep", "infinity"])


def _enter_own_root(plan: HostPlan) -> None:
    """An overlay over this machine's root takes all writes; what is private or live is mounted on top of it."""
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", _STAGE, "tmpfs", options="mode=755")
    root = f"{_STAGE}/root"
    for directory in ("upper", "work", "root"):
        Path(_STAGE, directory).mkdir()
    layers = f"lowerdir=/,upperdir={_STAGE}/upper,workdir={_STAGE}/work"
    kernel.mount("overlay", root, "overlay", options=layers)
    for directory, options in _OWN_DIRECTORIES.items():
        Path(root + directory).mkdir(exist_ok=True)
        kernel.mount("tmpfs", root + directory, "tmpfs", options=options)
    for directory in shared_directories():
        Path(root + directory).mkdir(parents=True, exist_ok=True)
        kernel.mount(directory, root + directory, flags=kernel.MS_BIND)
        read_only = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
        kernel.mount("none", root + directory, flags=read_only)
    kernel.mount("proc", root + "/proc", "proc")
    kernel.mount("sysfs", root + "/sys", "sysfs")
    kernel.mount("/dev", root + "/dev", flags=kernel.MS_BIND)
    kernel.mount("devpts", root + "/dev/pts", "devpts", options="newinstance,ptmxmode=0666,mode=620,gid=5")
    kernel.mount("tmpfs", root + "/dev/shm", "tmpfs", options=f"mode=1777,size={plan.shm_size}")
    os.chdir(root)
    kernel.mount(root, "/", flags=kernel.MS_MOVE)
    os.chroot(".")
    os.chdir("/")


def _write(file: File) -> None:
    path = Path(file.path)
    for directory in reversed(path.parents):
        if not directory.exists():
            directory.mkdir()
            os.chown(directory, file.uid, file.uid)
    path.unlink(missing_ok=True)  # it may be a symbolic link to a place that is not there
    path.write_text(file.text)
    path.chmod(file.mode)
    os.chown(path, file.uid, file.uid)


def _connect(plan: HostPlan, switch: int) -> None:
    for scope in ("all", "default"):
        check = Path(f"/proc/sys/net/ipv6/conf/{scope}/accept_dad")
        if check.exists():  # not where IPv6 is off; elsewhere link-local addresses would be tentative for a second
            check.write_text("0")
    script = f"""\
link set lo up
link add name eth0 index {FIRST_INDEX} type veth peer name {plan.name} netns /proc/self/fd/{switch}
address add {plan.interface} broadcast {plan.interface.network.broadcast_address} dev eth0
link set eth0 up
route add default via {plan.gateway.ip}
"""
    ip_batch(script, pass_fds=(switch,))


def ip_batch(script: str, pass_fds: tuple[int, ...] = ()) -> None:
    """Run lines of iproute2 commands at once in the calling process's network namespace."""
    done = subprocess.run(
        [find_tool("ip"), "-batch", "-"],
        input=script,
        text=True,
        capture_output=True,
        pass_fds=pass_fds,
        timeout=LONG_S,
        check=False,
    )
    if done.returncode:
        raise LabError(f"ip -batch failed: {done.stderr.strip()}")


def runs(pid: int, interface: str) -> bool:
    """Whether an interface of a process's network is IFF_RUNNING, which is what NCCL goes by.

    A link that came or went shows in it a moment later, with much else to tell a second or more: the kernel collects
    such changes of all namespaces, and tells of a hundred a second (net/core/link_watch.c).
    """
    return Path(f"/proc/{pid}/root/sys/class/net/{interface}/operstate").read_text() == "up\n"


def _raise_limits() -> None:
    """As on a machine set up for training, as far as this one allows: a container may not raise its hard limits."""
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (hard, hard))


def _start_sshd() -> None:
    Path("/run/sshd").mkdir()
    environment = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}
    # without -r it would start itself anew for each connection, which takes a fifth of what one takes
    subprocess.run([find_tool("sshd"), "-r"], env=environment, check=True, capture_output=True, timeout=LONG_S)
    deadline = time.monotonic() + LONG_S
    # sshd writes its PID once it listens (sshd.c, main), later than its parent's exit.
    while not Path("/run/sshd.pid").exists():
        if time.monotonic() > deadline:
            raise LabError(f"sshd did not begin to listen within {LONG_S:.0f} s.")
        time.sleep(0.005)
