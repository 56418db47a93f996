"""The host presented a revoked key, or a key that differs from the known key.

What it means: the host was reinstalled, its address now belongs to another machine, or an attacker is intercepting the
connection. SSH can't distinguish these cases, so nccl-doctor does not log in.

How we know: the known_hosts line that the message names has a different key for the host, or marks the presented key as
@revoked. The evidence shows the fingerprint of the presented key and, unless this key is revoked, the fingerprint of
the known key. As in OpenSSH, a key of a different type counts as changed if any key of the host is known. nccl-doctor
first requests keys of the known types, so an unchanged host with several keys causes no error.

Fix: find out whether the host was reinstalled, and compare the fingerprint with the output of ``ssh-keygen -lf
/etc/ssh/ssh_host_ed25519_key.pub`` on the host's console. Only if the fingerprints agree, remove the line from the
known_hosts file and add the new key as described for ssh-host-key-unknown. Do not use a revoked key again; generate a
new host key.

References: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT". ssh-keygen(1): -R, -F. OpenSSH hostfile.c, check_key_in_hostkeys.
"""

from nccl_doctor.checks.access._failures import FOLLOWS, findings
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, not_logged_in
from nccl_doctor.model.finding import Fix, Severity
from nccl_doctor.snapshot.access import HostKeyChanged


@check("NCD104", severity=Severity.ERROR, explains=FOLLOWS, scope="ssh")
def ssh_host_key_changed(view: View) -> Findings:
    return findings(view, HostKeyChanged, _remedy)


def _remedy(failures: tuple[HostKeyChanged, ...]) -> Fix:
    facts = failures[0].facts
    if facts.revoked:
        return Fix(summary="Somebody marked this key as stolen or withdrawn: create a new host key before you log in.")
    place = f"line {facts.line} of {facts.file}"
    return Fix(
        summary="Find out whether the host was reinstalled, and compare the fingerprint with the one shown on its "
        f"console. Only if they agree, delete {place} and check again: the new key is then unknown and can be added."
    )


# Messages of OpenSSH's client.
RULES = (root(r"REMOTE HOST IDENTIFICATION HAS CHANGED", "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @"),)
ADVICE = not_logged_in("its host key has changed", "Find out why before you remove the old key:")
SIGNS = LogSigns(RULES, ADVICE)
