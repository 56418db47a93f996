"""No known_hosts file of this machine holds the host's key.

What it means: SSH can't tell whether the machine that answered is the one that was meant. nccl-doctor verifies every
host key and accepts none by itself, whatever StrictHostKeyChecking says; mpirun, pdsh and the like hang or fail on
the same.

How we know: the key that the host showed is looked for in the user's and the system's known_hosts files (hashed
names, names with a port, HostKeyAlias and wildcards included), under the name that ssh would use. The evidence gives
its type and its SHA256 fingerprint.

Fix: compare the fingerprint with that of the host itself, ``ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`` on its
console, and add the key. ssh-keyscan fetches it again and can't know whose it is: it is the comparison that makes
this safe. A host behind a jump host can't be scanned; the line is then given as it was seen.

References: ssh-keyscan(1). sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT". ssh_config(5): UserKnownHostsFile, HostKeyAlias.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from nccl_doctor.checks.access._failures import FOLLOWS, findings
from nccl_doctor.checks.registry import View, check
from nccl_doctor.model import Command, Finding, Fix, Severity
from nccl_doctor.snapshot import AccessFailure


@check("NCD103", severity=Severity.ERROR, explains=FOLLOWS)
def ssh_host_key_unknown(view: View) -> Iterator[Finding]:
    """One finding, and one command, for all hosts on the same port with keys of the same type."""
    return findings(view, "ssh-host-key-unknown", _remedy)


def _remedy(failures: tuple[AccessFailure, ...]) -> Fix:
    lines: dict[str, None] = {}
    scans: dict[tuple[int, str, str], list[str]] = {}
    for facts in (failure.facts for failure in failures):
        file = facts["known_hosts"]
        if not facts["known_hosts_directory"]:
            lines[shlex.join(["install", "-d", "-m", "700", file.rpartition("/")[0]])] = None
        if facts["known_hosts_line"] is not None:
            lines[f"{shlex.join(['echo', facts['known_hosts_line']])} >> {shlex.quote(file)}"] = None
        elif facts["via"] or not facts["key_type"]:
            return Fix(
                summary="Log in once with ssh, compare the fingerprint that it shows with the host's, and accept it."
            )
        else:
            scans.setdefault((facts["port"], _scan_type(facts["key_type"]), file), []).append(facts["address"])
    for (port, kind, file), addresses in scans.items():
        scan = shlex.join(["ssh-keyscan", "-p", str(port), "-t", kind, *dict.fromkeys(addresses)])
        lines[f"{scan} >> {shlex.quote(file)}"] = None
    return Fix(
        summary="Compare the fingerprint with the host's own (ssh-keygen -lf on its /etc/ssh/ssh_host_*_key.pub); "
        "if they are the same, add the key:",
        risk="safe",
        commands=tuple(Command(host=None, command=line) for line in lines),
    )


def _scan_type(key_type: str) -> str:
    """ssh-keyscan's word for a key type: "ssh-ed25519" is ed25519, "ecdsa-sha2-nistp256" ecdsa."""
    return "ecdsa" if key_type.startswith("ecdsa") else key_type.removeprefix("ssh-")
