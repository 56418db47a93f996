"""The host's key is not in any known_hosts file on the machine that runs nccl-doctor.

What it means: SSH can't verify the identity of the machine that answered. Even if StrictHostKeyChecking is off,
nccl-doctor verifies every host key and never accepts a new key automatically. If the host key is unknown, tools that
use ssh, such as mpirun and pdsh, also hang or fail, unless StrictHostKeyChecking is set to no, off or accept-new.

How we know: the user's and the system's known_hosts files have no key for the name that ssh would use. nccl-doctor also
considers hashed names, names with a port, HostKeyAlias and wildcards. The evidence shows the key's type and SHA256
fingerprint.

Fix: compare the fingerprint with the output of ``ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`` on the host's
console, and only then add the key. The command in the report adds exactly the key with this fingerprint, whereas
ssh-keyscan would fetch a key that has not been verified. If the report contains no command because nccl-doctor
connected with the ``ssh`` program, run ``ssh HOST``, which shows the fingerprint and asks whether to accept the key.

References: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT". ssh_config(5): UserKnownHostsFile, HostKeyAlias.
"""

import base64
import binascii
import hashlib
import re

from nccl_doctor.checks.access._failures import FOLLOWS, findings
from nccl_doctor.checks.view import Findings, View, check, pasted
from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, not_logged_in
from nccl_doctor.model.finding import Fix, Severity, on
from nccl_doctor.snapshot.access import HostKeyUnknown
from nccl_doctor.text.shell import line

_LINE = re.compile(r"[\w.:\[\]-]+ (?P<type>[a-z0-9@.-]+) (?P<key>[A-Za-z0-9+/]+={0,2})", re.ASCII)
"""Pattern for a known_hosts line with a single plain name and a key, without markers or wildcards."""


@check("NCD103", severity=Severity.ERROR, explains=FOLLOWS, scope="ssh")
def ssh_host_key_unknown(view: View) -> Findings:
    return findings(view, HostKeyUnknown, _remedy)


def _remedy(failures: tuple[HostKeyUnknown, ...]) -> Fix:
    keys: dict[str, list[str]] = {}
    for facts in (failure.facts for failure in failures):
        known = facts.known_hosts_line
        if known is None or not facts.known_hosts.startswith("/") or not _is_of(known, facts.fingerprint):
            return Fix(
                summary="Log in once with ssh, compare the fingerprint that it shows with the host's, and accept it."
            )
        keys.setdefault(facts.known_hosts, []).append(known)
    new = {failure.facts.known_hosts for failure in failures if not failure.facts.known_hosts_directory}
    folders = [line("install -d -m 700 {folder}", folder=file.rpartition("/")[0]) for file in sorted(new)]
    adding = [
        line("printf '%s\\n' {*known} >> {file}", known=list(dict.fromkeys(known)), file=file)
        for file, known in keys.items()
    ]
    kind = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(str(failures[0].facts.key_type), "ecdsa")
    return pasted(
        "Compare the fingerprint above with the host's own (on its console: ssh-keygen -lf "
        f"/etc/ssh/ssh_host_{kind}_key.pub); only if they are the same, add the key that was seen:",
        on(None, *dict.fromkeys(folders), *adding),
    )


def _is_of(known: str, fingerprint: str) -> bool:
    """Return whether a known_hosts line consists of one plain name and the key with the given fingerprint."""
    match = _LINE.fullmatch(known)
    if match is None:
        return False
    try:
        key = base64.b64decode(match["key"], validate=True)
    except binascii.Error:
        return False
    return fingerprint == "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


# Messages of OpenSSH's client.
RULES = (root(r"Host key verification failed", "Host key verification failed."),)
ADVICE = not_logged_in("its host key is not known", "Compare its fingerprint, then add the key to known_hosts.")
SIGNS = LogSigns(RULES, ADVICE)
