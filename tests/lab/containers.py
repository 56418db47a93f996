"""Real containers on a host of the lab: podman with crun, over the host's own root."""

from __future__ import annotations

import sys

from tests.lab.host import LabHost
from tests.lab.plan import shared_directories
from tests.lab.requirements import find_tool

CONFIGURATION = {
    "/etc/containers/containers.conf": """\
[containers]
cgroups = "disabled"
[engine]
cgroup_manager = "cgroupfs"
runtime = "crun"
events_logger = "none"
""",
    "/etc/containers/storage.conf": """\
[storage]
driver = "vfs"
graphroot = "/run/containers/storage"
runroot = "/run/containers/run"
""",
}
"""The lab's hosts have neither systemd nor control groups to give away, and their root is an overlay already."""


def prepare(host: LabHost) -> None:
    """Lets podman run there; its default network, 10.88.0.0/16, is none of the lab's."""
    for tool in ("podman", "crun"):
        find_tool(tool)
    for path, text in CONFIGURATION.items():
        host.write(path, text)
    host.run("umount -R /sys/fs/cgroup 2>/dev/null; mount -t cgroup2 cgroup2 /sys/fs/cgroup")


def start(host: LabHost, name: str, *options: str, lacks: str = "") -> None:
    """Starts a container that sleeps, over a throw-away layer on the host's root.

    Args:
        host: the host.
        name: the container's.
        options: of podman run.
        lacks: "python" is this project's interpreter, "programs" all that lies in /usr/bin.
    """
    lacking = {"python": shared_directories(), "programs": ["/usr/bin"]}.get(lacks, [])
    mounts = ["--tmpfs=/root:mode=711,notmpcopyup"]  # root's home here may be closed to others
    mounts += [f"--volume={path}:{path}:ro" for path in shared_directories() if path not in lacking]
    mounts += [f"--tmpfs={path}:notmpcopyup" for path in lacking]
    sleep = [sys.executable, "-c", "import time; time.sleep(86400)"] if lacks == "programs" else ["sleep", "infinity"]
    host.run(["podman", "run", "-d", "--name", name, *mounts, *options, "--rootfs", "/:O", *sleep])


def end(host: LabHost, name: str) -> None:
    """Ends a container and forgets it; the bridge of the last one goes with it."""
    host.run(["podman", "rm", "-f", "-t", "0", name])
    host.run("for name in cni-podman0 podman0; do ip link delete $name 2>/dev/null; done; true")


def feign_gpu(host: LabHost) -> None:
    """Gives the host a /dev of its own, in which /dev/nvidia0 opens for root alone."""
    host.run(
        "mkdir /run/dev && mount -t tmpfs -o mode=755 tmpfs /run/dev && cd /run/dev && "
        "cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty . && ln -s /proc/self/fd fd && "
        "ln -s pts/ptmx ptmx && mkdir pts shm && mount --bind /dev/pts pts && mount --bind /dev/shm shm && "
        "mknod -m 600 nvidia0 c 1 3 && mount --move /run/dev /dev"
    )
