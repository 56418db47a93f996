"""The host was reached, but the probe that nccl-doctor runs there returned no answer.

What it means: nothing is known about the host. The cause is usually a login that can't run commands (a shell like
nologin, a forced command, a profile that ends the shell or waits for input), a host that has run out of memory or
processes, or a defect of nccl-doctor.

How we know: the probe is sent to the host's Python over the SSH session and answers with a marker; the marker did not
arrive or was damaged, or the answers stopped before the last one. The evidence is the stage that the probe reached and
its last output. If short messages pass and the first long ones do not, in either direction, large packets may be
getting lost: this machine or the host has a larger MTU than the path, and the ICMP message about it is filtered. To
confirm this, a second connection is opened, on which the host sends only small packets. The loss is reported if the
host then shows that its kernel keeps retransmitting the answer on the first connection while acknowledging our packets;
a host that is merely slow would have sent nothing.

Fix: run `ssh HOST python3 -c 'print(1)'`, which must print 1 at once. If it does and the diagnosis remains, nccl-doctor
is at fault; please report this with the output of `nccl-doctor check -v`.

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
    "See whether ssh to the host runs a command ({python} -c 'print(1)') without waiting; the login shell, its "
    "start-up files or a forced command prevent it."
)
_STARTED = (
    "See whether {python} -c 'print(1)' works on the host, and whether the host is out of memory or processes or its "
    "disk hangs. If none of this explains it, report this with the output of check -v."
)
_LARGE = (
    "Short packets pass between this machine and the host, but long ones may not: test with ping -M do -s 1472 from "
    "either side. If the pings are lost, lower the interface's MTU (ip link set dev NAME mtu 1400, as root), or have "
    "ICMP allowed on the path. If not, see whether the host is out of memory or processes or its disk hangs."
)
_SAID = {
    r"(?i)password change required|password has expired|change your password": "The user's password has expired: ssh "
    "-t to the host asks for a new one. Until it is set, no command runs there.",
    r"account is currently not available": "The user's login shell is nologin: name a user who may run commands (ssh: "
    "user in the hosts file), or have an administrator give this one a shell (usermod -s /bin/bash).",
}
"""Messages of sshd (session.c), PAM and nologin(8) when they refuse a login, and the remedy for each."""


@check("NCD106", severity=Severity.ERROR, explains=FOLLOWS)
def probe_failed(view: View) -> Findings:
    """Yield a finding for each way in which hosts failed; a host with malformed facts can't be judged."""
    yield from findings(view, ProbeFailed, _remedy, joint=":")
    for host, facts in view.facts:
        malformed = [(field, value) for field, value in facts if isinstance(value, Unknown) and value.malformed]
        for field, value in malformed[:1]:
            yield Unjudged((host.name,), f"its answer for {field} is {value.reason}")


def _remedy(failures: tuple[ProbeFailed, ...]) -> Fix:
    facts = failures[0].facts
    summary = _LARGE if facts.late and facts.ran and facts.stage in ("start", "facts") else _STARTED
    if facts.stage in ("connect", "login"):
        said = "\n".join(failures[0].evidence)
        summary = next((remedy for words, remedy in _SAID.items() if re.search(words, said)), _LOGIN)
    return Fix(summary=summary.format(python=facts.python or "python3"))
