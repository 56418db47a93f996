"""What can be wrong between the controller and a host's sshd."""

import sys

from tests.lab.cluster import Lab
from tests.lab.faults.catalogue import register
from tests.lab.host import LabHost

_SILENT = """\
import socket
listener = socket.create_server(("0.0.0.0", 22))
connections = []
while True:
    connections.append(listener.accept())
"""


def _listens(host: LabHost) -> bool:
    return any(port == 22 for _, port in host.listeners())


def stop_sshd(host: LabHost) -> None:
    """End a host's sshd; sessions that it has begun go on."""
    host.run('kill "$(cat /run/sshd.pid)"')
    host.wait_until(lambda: not _listens(host), "sshd's end")


def start_sshd(host: LabHost, before: str = ":") -> None:
    """Start a host's sshd, after a shell command that may change the limits it passes on."""
    host.run(f'{before} && exec "$(command -v sshd)"')
    host.wait_until(lambda: _listens(host), "sshd's start")


@register("sshd-dead")
def kill_sshd(lab: Lab, host: LabHost) -> None:
    """sshd does not run: port 22 refuses."""
    stop_sshd(host)


@register("sshd-silent")
def silence_sshd(lab: Lab, host: LabHost) -> None:
    """Something accepts on port 22 and never sends a banner, as a hung sshd does."""
    stop_sshd(host)
    host.background([sys.executable, "-c", _SILENT])
    host.wait_until(lambda: _listens(host), "the silent listener's start")


@register("ssh-key-refused")
def refuse_key(lab: Lab, host: LabHost) -> None:
    """sshd knows no key of ours."""
    for home in ("/root", "/home/alice"):
        host.write(f"{home}/.ssh/authorized_keys", "", 0o600)


@register("host-key-changed")
def change_host_key(lab: Lab, host: LabHost) -> None:
    """The host was installed anew: its key is not the one in known_hosts."""
    stop_sshd(host)
    key = "/etc/ssh/ssh_host_ed25519_key"
    host.run(f"rm -f {key} && ssh-keygen -q -t ed25519 -N '' -f {key}")
    start_sshd(host)


@register("host-key-unknown")
def forget_host_key(lab: Lab, host: LabHost) -> None:
    """The controller has never seen this host: its key is missing from known_hosts."""
    for home in ("/root", "/home/alice"):
        path = f"{home}/.ssh/known_hosts"
        lines = lab.controller.read(path).splitlines(keepends=True)
        others = [line for line in lines if not line.startswith(f"{host.name},")]
        lab.controller.write(path, "".join(others), 0o600)
