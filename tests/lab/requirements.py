"""What the lab needs of the machine that it runs on, and the sentence for each thing that is missing."""

import os
import shutil

from tests.lab.errors import LabError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Debian's package names; other distributions call them alike.
PACKAGES = {
    "ip": "iproute2",
    "ss": "iproute2",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "nft": "nftables",
    "iptables": "iptables",
    "ufw": "ufw",
    "firewalld": "firewalld",
    "firewall-cmd": "firewalld",
    "dbus-daemon": "dbus",
    "sleep": "coreutils",
    "slurmctld": "slurm-wlm",
    "munged": "munge",
    "mpirun": "openmpi-bin",
    "podman": "podman",
    "crun": "crun",
}


def find_tool(tool: str) -> str:
    """Path of a program, or `LabError` with the package that has it."""
    path = shutil.which(tool, path=SYSTEM_PATH)
    if path is None:
        raise LabError(f"The lab needs the program '{tool}': install the package '{PACKAGES[tool]}'.")
    return path


def require_lab() -> None:
    """Raise `LabError` unless this process may build a lab here."""
    if os.geteuid() != 0:
        raise LabError("The lab needs root for network namespaces: run as root, or leave its tests out: -m 'not lab'.")
    for tool in ("ip", "ss", "sshd", "ssh", "ssh-keygen", "nft"):
        find_tool(tool)
