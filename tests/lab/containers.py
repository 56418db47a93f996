"""Real containers on a host of the lab: podman with crun, over the host's own root."""

from __future__ import annotations

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


def start(host: LabHost, name: str, *options: str) -> None:
    """Starts a container that sleeps, over a throw-away layer on the host's root; ``options`` are podman run's."""
    mounts = [word for path in shared_directories() for word in ("-v", f"{path}:{path}:ro")]
    host.run(["podman", "run", "-d", "--name", name, *mounts, *options, "--rootfs", "/:O", "sleep", "infinity"])


def end(host: LabHost, name: str) -> None:
    """Ends a container and forgets it."""
    host.run(["podman", "rm", "-f", "-t", "0", name])
