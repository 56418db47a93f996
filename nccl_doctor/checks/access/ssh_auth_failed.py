"""The SSH server accepted none of the user's keys.

What it means: the host is up and has the expected host key, but it accepts none of the offered keys. Because
nccl-doctor connects to many hosts at once, it never asks for a password or passphrase. A launcher such as mpirun can't
ask for a password either.

How we know: nccl-doctor offered the key from the hosts file first, if there is one, and then the user's keys in
OpenSSH's order (keys of the agent that match a configured identity file, other keys of the agent, keys that are only in
files). The server refused each offered key. The evidence lists the offered keys, unused keys (such as
passphrase-protected keys that are not in the agent), and the authentication methods that the server accepts.

If a server accepts a key but then disconnects, it does not allow this account to log in. Either the account has expired
or is locked, or logins are denied by /etc/nologin or by a PAM module such as pam_slurm_adopt ("you have no active jobs
on this node"). The diagnosis quotes the server's message.

nccl-doctor can't log in to a server that requires a second factor or accepts only passwords, unless ~/.ssh/config
configures a shared ssh connection (ControlMaster) that is already open. Servers limit the number of offered keys, so an
agent with many keys can reach the limit before the right key is offered.

Fix: if other users have permission to read the key file, remove this permission. If the key has a passphrase, load the
key into the agent. If a certificate has expired, have the certificate renewed. If a certificate is not valid yet, check
the clock of the machine that runs nccl-doctor. If the clock is right, wait until the certificate becomes valid. If the
server accepts passwords, install the public key with ssh-copy-id, which asks for the password once. If no other remedy
applies, someone who can log in to the host must add the public key to ~/.ssh/authorized_keys there. If a different user
or key is needed, set the user or key in the hosts file (ssh: user, identity_file) or in ~/.ssh/config.

References: ssh_config(5): IdentityFile, User. sshd_config(5): AuthorizedKeysFile, PermitRootLogin, MaxAuthTries. RFC
4252, section 7.
"""

import re

from nccl_doctor.checks.access._failures import FOLLOWS, findings
from nccl_doctor.checks.view import Findings, View, check, pasted
from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, not_logged_in
from nccl_doctor.model.finding import Fix, Severity, on
from nccl_doctor.model.operations.system import OwnFileMode
from nccl_doctor.snapshot.access import SshAuthFailed
from nccl_doctor.text.shell import Line, line, script

_LOGIN = re.compile(r"\w[\w.+-]*@\w[\w.:%-]*", re.ASCII)
"""Pattern for logins (``user@host``) that are safe in commands even though ssh passes logins to shells unquoted."""

_TYPED = (
    "A password or a second factor can't be entered here, but an open login can be shared: give the host "
    "ControlMaster auto, ControlPath ~/.ssh/cm-%C and ControlPersist 1h in ~/.ssh/config, log in once with ssh, and "
    "check again. A launcher needs a login without prompts: ask the host's administrator."
)
_TOO_MANY = (
    "Name the right key: under ssh: identity_file in the hosts file or, for the ssh program too, with IdentityFile and "
    "IdentitiesOnly yes in ~/.ssh/config. The agent's other keys use up the host's limit (MaxAuthTries)."
)
_INTENDED = "Check that user and key are the intended ones (ssh: user, identity_file in the hosts file)."
_CHECKED = (
    "must check that the public key is in that user's ~/.ssh/authorized_keys, that "
    "no other user may write to it or to the home directory, and that AllowUsers and PermitRootLogin let the user in. "
    "On the host, journalctl -u ssh -u sshd shows which of these it was."
)
_REFUSED = f"The host accepts no password, so somebody with access {_CHECKED}"
_INSTALLED = f"Somebody with access {_CHECKED}"
_NO_KEY = (
    "Make a key with ssh-keygen -t ed25519, and add its public half to ~/.ssh/authorized_keys of that user on the "
    "host; or name the key in the hosts file (ssh: identity_file)."
)
_RENEW = "Have the certificate renewed by whatever signs it for you (the site's login tool, the CA), and check again."
_EARLY = (
    "A certificate is not valid yet: check this machine's clock (date -u), which might be slow. If it is right, wait "
    "until the certificate becomes valid."
)
_SLURM = re.compile("(?i)slurm|no active job")
"""Pattern for messages of pam_slurm and pam_slurm_adopt."""
_BY_SLURM = "Slurm lets users in only where they have a job: ask for the nodes first (salloc or sbatch), then check."
_ACCOUNT = (
    "The key is right, but the account is expired, locked, or not allowed on that host (PAM's account rules, nologin). "
    "Ask its administrator; on the host, journalctl -u ssh -u sshd names the rule."
)
_PASSWORDS = {"password", "keyboard-interactive"}


@check("NCD102", severity=Severity.ERROR, explains=FOLLOWS, scope="ssh")
def ssh_auth_failed(view: View) -> Findings:
    return findings(view, SshAuthFailed, _remedy)


def _remedy(failures: tuple[SshAuthFailed, ...]) -> Fix:
    facts = failures[0].facts
    by_slurm = facts.barred and _SLURM.search(failures[0].detail)
    typed = facts.partial or (facts.methods and "publickey" not in facts.methods)
    prose = _BY_SLURM if by_slurm else _ACCOUNT if facts.barred else _TYPED if typed else _TOO_MANY
    if facts.barred or typed or facts.aborted:
        return Fix(summary=prose)
    if facts.exposed:
        files = sorted({path for failure in failures for path in failure.facts.exposed})
        return pasted("Make the key private, as ssh requires:", on(None, OwnFileMode("600", tuple(files))))
    if facts.encrypted:
        agent = () if facts.agent else (script('eval "$(ssh-agent -s)"'),)
        files = sorted({path for failure in failures for path in failure.facts.encrypted})
        summary = "Load the key that needs a passphrase into the agent, and check again from the same shell:"
        return pasted(summary, on(None, *agent, line("ssh-add {*files}", files=files)))
    if facts.out_of_time or facts.early:
        return Fix(summary=_RENEW if facts.out_of_time else _EARLY)
    takes_password = not _PASSWORDS.isdisjoint(facts.methods)
    if facts.identity_file is None or not takes_password:
        if facts.identity_file is None and not facts.offered:
            prose = _NO_KEY
        else:
            # if only keys of the agent were offered, ssh-copy-id has no file to install
            prose = f"{_INTENDED} {_INSTALLED if takes_password else _REFUSED}"
        return Fix(summary=prose)
    lines: list[Line | None] = []
    for facts in (failure.facts for failure in failures):
        login = f"{facts.user}@{facts.target}"
        fit = _LOGIN.fullmatch(login) is not None
        if fit and not facts.public:  # ssh-copy-id needs the file
            lines.append(line("ssh-keygen -y -f {key} >> {key}.pub", key=facts.identity_file))
        copy = line("ssh-copy-id -p {port} -i {key} {login}", port=facts.port, key=facts.identity_file, login=login)
        lines.append(copy if fit else None)
    summary = "Install the public key on the host; ssh-copy-id asks for the user's password there:"
    return pasted(summary, on(None, *dict.fromkeys(lines)))


# Messages of OpenSSH's client.
RULES = (
    root(
        r"Permission denied(?: \((?:publickey|password|gssapi|keyboard)|, please try again)",
        "gpu-17: Permission denied (publickey,password).",
    ),
)

ADVICE = not_logged_in("no key was accepted", "Put the public key of the launching host into authorized_keys there.")
SIGNS = LogSigns(RULES, ADVICE)
