"""The host was reached, but nccl-doctor's probe on the host did not return a complete answer.

What it means: nccl-doctor could not examine the host. Usually, the SSH user can't run commands because of a login shell
such as nologin, a forced command, or a profile that waits for input. Other possible causes are a host without free
memory or process slots, and a bug in nccl-doctor.

How we know: nccl-doctor sends the probe to the host's Python over SSH, and the probe answers with a marker. The probe's
marker did not arrive or was damaged, or some of the probe's answers were missing. The message describes how the probe
failed, and the evidence quotes the last output lines. If short messages between nccl-doctor and the probe arrive but
the first long message does not, the network path might lose large packets. Large packets are lost if a host's MTU is
larger than the MTU of the path and ICMP messages are filtered. To confirm that large packets are lost, nccl-doctor
opens a second SSH connection on which the host sends only small packets. The loss is confirmed if, on the first SSH
connection, the host's kernel keeps retransmitting the probe's answer but acknowledges nccl-doctor's packets.

Fix: run `ssh HOST "python3 -c 'print(1)'"`, which must print 1 immediately. If the command works but the diagnosis
remains, please report a bug in nccl-doctor with the output of `nccl-doctor check -v`.

References: sshd(8), "LOGIN PROCESS". nologin(8). sshd_config(5): ForceCommand.
"""

import re

from nccl_doctor.checks.access._failures import FOLLOWS, findings
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.finding import Fix, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.snapshot.access import ProbeFailed

_LOGIN = (
    "See whether ssh to the host runs a command such as hostname without waiting; the login shell, its start-up files "
    "or a forced command prevent it."
)
_STARTED = (
    "See whether {python} -c 'print(1)' works on the host, and whether the host is out of memory or processes or its "
    "disk hangs. If none of this explains it, report this with the output of check -v."
)
_LARGE = (
    "Short packets pass between this machine and the host, but long ones might not: test with ping -M do -s 1472 "
    "(8972 with an MTU of 9000) from either side. If the pings are lost, lower the interface's MTU (ip link set dev "
    "NAME mtu 1400, as root), or have ICMP allowed on the path. If not, see whether the host is out of memory or "
    "processes or its disk hangs."
)
_SAID = {
    r"(?i)password change required|password has expired|change your password": "The user's password has expired: ssh "
    "-t to the host asks for a new one. Until it is set, no command runs there.",
    r"account is currently not available": "The user's login shell is nologin: name a user who may run commands (ssh: "
    "user in the hosts file), or have an administrator give this one a shell (usermod -s /bin/bash).",
}
"""Remedies for refused logins, keyed by a pattern for the message of sshd (session.c), PAM or nologin(8)."""


@check("NCD106", severity=Severity.ERROR, explains=FOLLOWS)
def probe_failed(view: View) -> Findings:
    """Yield a finding for each group of hosts on which the probe failed in the same way."""
    yield from findings(view, ProbeFailed, _remedy, joint=":")
    for host, facts in view.facts:
        malformed = [(field, value) for field, value in facts if isinstance(value, Unknown) and value.malformed]
        for field, value in malformed[:1]:
            yield Unjudged((host.name,), f"its answer for {field} is {value.reason}")


def _remedy(failures: tuple[ProbeFailed, ...]) -> Fix:
    facts = failures[0].facts
    summary = _LARGE if facts.late and facts.ran and facts.stage in ("start", "facts") else _STARTED
    if facts.stage in ("connect", "login"):
        evidence = "\n".join(failures[0].evidence)
        summary = next((remedy for words, remedy in _SAID.items() if re.search(words, evidence)), _LOGIN)
    return Fix(summary=summary.format(python=facts.python or "python3"))
