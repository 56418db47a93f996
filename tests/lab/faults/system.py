"""The host itself: its shell, its interpreter, its limits and disks, its life."""

import sys
from pathlib import Path

from tests.lab.cluster import Lab, hosts_python
from tests.lab.faults.catalogue import register
from tests.lab.faults.ssh import start_sshd, stop_sshd
from tests.lab.host import LabHost
from tests.lab.plan import shared_directories

_NOISE = "echo 'Welcome! Today is patch day {\"ok\": true}'\necho 'bash: module: command not found' >&2\n"


def _replace_python(host: LabHost, script: str | None) -> None:
    """Put a script in the place of every interpreter on the host, or nothing."""
    named = {str(Path(path).parent) for path in (sys.executable, hosts_python[-1]())}
    directories = {"/usr/bin", "/usr/local/bin", *named}
    for directory in sorted(directories):
        if any(directory == shared or directory.startswith(shared + "/") for shared in shared_directories()):
            host.run(["mount", "-t", "tmpfs", "none", directory])  # it is read-only, so cover it
        for name in ("python", "python3", Path(sys.executable).name):
            host.run(["rm", "-f", f"{directory}/{name}"])
            if script is not None:
                host.write(f"{directory}/{name}", script, 0o755)


@register("noisy-bashrc")
def add_noisy_bashrc(lab: Lab, host: LabHost) -> None:
    """.bashrc prints to both outputs in every session, also in those that run one command."""
    for home in ("/root", "/home/alice"):
        host.write(f"{home}/.bashrc", _NOISE)


@register("python-missing")
def remove_python(lab: Lab, host: LabHost) -> None:
    """No Python interpreter is where it is on the other hosts."""
    _replace_python(host, None)


@register("python-hangs")
def hang_python(lab: Lab, host: LabHost) -> None:
    """The interpreter starts and never does anything, as on a hung network file system."""
    _replace_python(host, "#!/bin/sh\nexec sleep 86400\n")


@register("disk-full")
def fill_disks(lab: Lab, host: LabHost) -> None:
    """No byte is left in /tmp and in /root."""
    for directory in ("/tmp", "/root"):
        host.run(["mount", "-o", "remount,size=1m", directory])
        host.run(f"dd if=/dev/zero of={directory}/core bs=4k", check=False)


@register("shm-small")
def shrink_shm(lab: Lab, host: LabHost) -> None:
    """/dev/shm has 4 MB."""
    host.run(["mount", "-o", "remount,size=4m", "/dev/shm"])


@register("nofile-low")
def lower_nofile(lab: Lab, host: LabHost) -> None:
    """Processes started over SSH may open 256 files."""
    stop_sshd(host)
    start_sshd(host, before="ulimit -n 256")


@register("host-dead")
def kill_host(lab: Lab, host: LabHost) -> None:
    """The host loses its power, in the middle of whatever it does."""
    lab.kill(host)
