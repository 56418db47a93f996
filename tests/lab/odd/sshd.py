"""sshd as administrators set it up."""

from __future__ import annotations

from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.lab.odd.row import Make
from tests.lab.plan import SSHD_CONFIG


def configure(host: LabHost, *lines: str) -> None:
    """These lines go before the lab's own, so that they count (sshd_config(5))."""
    host.write("/etc/ssh/sshd_config", "".join(f"{line}\n" for line in lines) + SSHD_CONFIG)
    restart(host)


def restart(host: LabHost, prefix: str = "") -> None:
    """Ends sshd and starts it, by way of `prefix`; it listens when this returns, for it writes its PID then."""
    end = (
        "pid=$(cat /run/sshd.pid); kill $pid; while kill -0 $pid 2>/dev/null; do sleep 0.01; done; rm -f /run/sshd.pid"
    )
    host.run(f'{end}; {prefix} "$(command -v sshd)" && until test -s /run/sshd.pid; do sleep 0.01; done')


def sshd(*lines: str) -> Make:
    """A host whose sshd has these lines."""

    def make(_lab: Lab, host: LabHost) -> None:
        configure(host, *lines)

    return make


def with_pam(host: LabHost, rule: str, program: str = "") -> None:
    """sshd asks PAM, as it does on people's hosts; `program` is the text of /opt/adopt, which a rule may run."""
    if program:
        host.write("/opt/adopt", program, 0o755)
    host.write("/etc/pam.d/sshd", f"auth required pam_permit.so\n{rule}\nsession required pam_permit.so\n")
    configure(host, "UsePAM yes")


def pam(rule: str, *commands: str) -> Make:
    """A host whose sshd asks PAM, and where these commands were run."""

    def make(_lab: Lab, host: LabHost) -> None:
        for command in commands:
            host.run(command)
        with_pam(host, rule)

    return make
