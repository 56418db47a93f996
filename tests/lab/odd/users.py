"""Users: what accounts, keys and sshd's rules make of a login."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.lab.odd.row import READY, Make, Row
from tests.lab.odd.sshd import configure, pam, restart, sshd

AS_ALICE: Mapping[str, Any] = {"ssh": {"user": "alice"}}
DENIED = (255, "Permission denied")


def runs(*commands: str) -> Make:
    """A host on which root has run these."""

    def make(_lab: Lab, host: LabHost) -> None:
        for command in commands:
            host.run(command)

    return make


def restarted(*commands: str, by: str = "") -> Make:
    """A host whose sshd, and so every login, was started after these commands, by way of a prefix."""

    def make(lab: Lab, host: LabHost) -> None:
        runs(*commands)(lab, host)
        restart(host, by)

    return make


def sudoers(rule: str) -> Make:
    """alice may run something as root."""

    def make(_lab: Lab, host: LabHost) -> None:
        host.write("/etc/sudoers.d/alice", f"alice ALL=(root) NOPASSWD: {rule}\n", 0o440)

    return make


def bob(*more: str) -> Make:
    """A user of this host alone, who has alice's keys."""
    home = "mkdir -p /home/bob && cp -a /home/alice/.ssh /home/bob/ && chown -R bob: /home/bob"
    return restarted("useradd -u 1001 -s /bin/bash bob && usermod -p '*' bob", home, *more)


def key(host: LabHost, controller: LabHost, options: str = "", form: str = "-t ed25519 -N ''") -> str:
    """A key of the controller's that this host alone knows, and its path."""
    path = f"/root/.ssh/for-{host.name}"
    controller.run(f"ssh-keygen -q {form} -f {path}")
    public = controller.run(["ssh-keygen", "-y", "-P", "secret" if "secret" in form else "", "-f", path]).stdout
    host.write("/root/.ssh/authorized_keys", f"{options}{public}", 0o600)
    return path


def configured(host: LabHost, controller: LabHost, *lines: str) -> None:
    """What the controller's ~/.ssh/config says of a host; each has its own file, for they are made side by side."""
    text = "".join(f"  {line}\n" for line in lines)
    controller.write(f"/root/.ssh/of/{host.name}", f"Host {host.name}\n{text}", 0o600)


def keyed(form: str, *lines: str, options: str = "") -> Make:
    """A host that takes a key of its own; ~/.ssh/config names it, {key}."""

    def make(lab: Lab, host: LabHost) -> None:
        path = key(host, lab.controller, options, form)
        configured(host, lab.controller, *(line.format(key=path) for line in lines))

    return make


def agent(keys: int, *sshd_lines: str, own: bool = True, lines: tuple[str, ...] = ()) -> Make:
    """An agent with so many keys that no host knows, and then the one that this host takes, or without that."""

    def make(lab: Lab, host: LabHost) -> None:
        path, controller = key(host, lab.controller), lab.controller
        socket, strangers = f"/root/.ssh/agent-{host.name}", f"/root/.ssh/strangers-{host.name}"
        controller.run(f"mkdir {strangers}")
        controller.background(["ssh-agent", "-D", "-a", socket])
        controller.wait_until(lambda: controller.run(["test", "-S", socket], check=False).returncode == 0, "an agent")
        make_all = [f"ssh-keygen -q -t ed25519 -N '' -f {strangers}/{number}" for number in range(keys)]
        all_keys = [f"{strangers}/{number}" for number in range(keys)] + ([path] if own else [])
        adding = [f"SSH_AUTH_SOCK={socket} ssh-add -q {one}" for one in all_keys]
        hidden = [f"rm {path} {path}.pub"] if own else []
        controller.run(" && ".join([*make_all, *adding, *hidden]))
        configured(host, controller, f"IdentityAgent {socket}", *(line.format(key=path) for line in lines))
        if sshd_lines:
            configure(host, *sshd_lines)

    return make


def certified(validity: str) -> Make:
    """A host that trusts a CA, which has signed the controller's key for that time."""

    def make(lab: Lab, host: LabHost) -> None:
        keyed("-t ed25519 -N ''", "IdentityFile {key}", "IdentitiesOnly yes")(lab, host)
        path = f"/root/.ssh/for-{host.name}"
        authority = f"/root/.ssh/ca-{host.name}"
        sign = f"ssh-keygen -q -s {authority} -I somebody -n root -V {validity} {path}.pub"
        lab.controller.run(f"ssh-keygen -q -t ed25519 -N '' -f {authority} && {sign}")
        host.write("/etc/ssh/ca.pub", lab.controller.read(f"{authority}.pub"))
        host.write("/root/.ssh/authorized_keys", "", 0o600)
        configure(host, "TrustedUserCAKeys /etc/ssh/ca.pub")

    return make


def read_by_others(lab: Lab, host: LabHost) -> None:
    """The right key, with the mode that a copy from elsewhere left it."""
    keyed("-t ed25519 -N ''", "IdentityFile {key}")(lab, host)
    lab.controller.run(f"chmod 644 /root/.ssh/for-{host.name}")


def unknown_pem(lab: Lab, host: LabHost) -> None:
    """A cloud's key, which the host does not know; root has a password."""
    keyed("-t rsa -b 2048 -m PEM -N ''", "IdentityFile {key}")(lab, host)
    lab.controller.run(f"rm /root/.ssh/for-{host.name}.pub")
    lab.controller.write("/root/askpass", "#!/bin/sh\necho secret\n", 0o700)
    host.write("/root/.ssh/authorized_keys", "", 0o600)
    host.run("echo root:secret | chpasswd -c SHA512")
    configure(host, "PasswordAuthentication yes", "PermitRootLogin yes")


def drops(*more: str) -> Make:
    """A host that drops what comes to the ports of a job, by rules that a user may not read."""
    return runs("nft add table inet f", "nft add chain inet f i '{ type filter hook input priority 0; }'",
                "nft add rule inet f i tcp dport != 22 ct state new drop", *more)  # fmt: skip


ROWS = (
    Row("an ordinary user without sudo", READY, entry=AS_ALICE),
    Row("an ordinary user who may all by sudo", READY, sudoers("ALL"), entry=AS_ALICE),
    Row("a sudo for nft alone", READY, sudoers("/usr/sbin/nft"), entry=AS_ALICE),
    Row("a sudo for iptables-save alone", READY, sudoers("/usr/sbin/iptables-save"), entry=AS_ALICE),
    Row("another user here than elsewhere", READY, bob(), entry={"ssh": {"user": "bob"}}),
    Row(
        "a user without a home",
        READY,
        bob("cp -r /home/bob/.ssh /opt/keys && chown -R bob: /opt/keys && rm -r /home/bob "
            "&& sed -i 's|^AuthorizedKeysFile.*|AuthorizedKeysFile /opt/keys/authorized_keys|' /etc/ssh/sshd_config"),
        (0, "Could not chdir to home directory"),
        {"ssh": {"user": "bob"}},
    ),
    Row(
        "an expired password",
        ("probe-failed", "Password change required", "ssh -t to the host asks for a new one"),
        pam("account required pam_unix.so", "chage -d 0 alice"),
        (1, "Password change required but no TTY available"),
        AS_ALICE,
    ),
    Row(
        "nologin as the shell",
        ("probe-failed", 'said "This account is currently not available."', "login shell is nologin"),
        runs("usermod -s /usr/sbin/nologin alice"),
        (1, "This account is currently not available"),
        AS_ALICE,
    ),
    Row(
        "/etc/nologin while it is serviced",
        ("ssh-auth-failed", 'barred the account and said "Back at noon', "The key is right"),
        pam("account required pam_nologin.so", "echo 'Back at noon' >/etc/nologin"),
        (255, "Back at noon"),
        AS_ALICE,
    ),
    Row(
        "a shell that is not there",
        ("ssh-auth-failed", "refused the login of user alice"),
        runs("usermod -s /bin/nosuch alice"),
        DENIED,
        AS_ALICE,
    ),
    Row("AllowUsers without us", ("ssh-auth-failed", "refused the login of user alice", "AllowUsers"),
        sshd("AllowUsers root"), DENIED, AS_ALICE),
    Row("PermitRootLogin no", ("ssh-auth-failed", "refused the login of user root", "PermitRootLogin"),
        sshd("PermitRootLogin no"), DENIED),
    Row("a locked account without PAM", ("ssh-auth-failed", "refused the login of user alice"),
        runs("usermod -p '!' alice"), DENIED, AS_ALICE),
    Row(
        "a home that the group may write to",
        ("ssh-auth-failed", "refused the login of user alice", "authorized_keys"),
        runs("chmod 777 /home/alice"),
        DENIED,
        AS_ALICE,
    ),
    Row("MaxSessions 1", READY, sshd("MaxSessions 1")),
    Row("MaxSessions 0", ("ssh-unreachable", "accepted the login but did not run any command", "MaxSessions"), sshd("MaxSessions 0"), (255, "")),
    Row("ForceCommand true", ("probe-failed", "forced command"), sshd("ForceCommand true")),
    Row(
        "a key for one command",
        ("probe-failed", 'said "backup only"', "forced command"),
        keyed("-t ed25519 -N ''", "IdentityFile {key}", options='command="echo backup only",restrict '),
        (0, "backup only"),
    ),
    Row("PermitTTY no", READY, sshd("PermitTTY no")),
    Row("AllowTcpForwarding no on the host itself", READY, sshd("AllowTcpForwarding no", "AllowStreamLocalForwarding no")),
    Row(
        "a banner of two pages with control characters",
        READY,
        restarted("printf 'Authorized use only \\033[2J\\007\\n%.0s' $(seq 100) >/etc/issue.net",
                  "sed -i '1i Banner /etc/issue.net' /etc/ssh/sshd_config"),
    ),
    Row(
        "two factors",
        ("ssh-auth-failed", "accepted the SSH key of user root but also requires a second factor", "ControlMaster auto"),
        sshd("AuthenticationMethods publickey,keyboard-interactive", "KbdInteractiveAuthentication yes", "UsePAM yes"),
        DENIED,
    ),
    Row(
        "passwords alone",
        ("ssh-auth-failed", "does not allow SSH key authentication for user root", "the server takes: password", "ControlMaster auto"),
        sshd("PubkeyAuthentication no", "PasswordAuthentication yes"),
        DENIED,
    ),
    Row(
        "a key with a passphrase and no agent",
        ("ssh-auth-failed", "needs a passphrase, and no agent holds it", "ssh-add"),
        keyed("-t ed25519 -N secret", "IdentityFile {key}", "IdentityAgent none"),
        DENIED,
    ),
    Row("a key in the agent alone", READY, agent(0)),
    Row("an agent with four other keys before it", READY, agent(4)),
    Row(
        "an agent full of other keys",
        ("ssh-auth-failed", "too many", "IdentitiesOnly"),
        agent(4, "MaxAuthTries 3", own=False, lines=("IdentityFile {key}",)),
        (255, "Too many authentication failures"),
    ),
    Row(
        "a key that others may read",
        ("ssh-auth-failed", "others may read /root/.ssh/for-", "chmod 600"),
        read_by_others,
        (255, "bad permissions"),
        mended=True,
    ),
    Row(
        "an RSA key in PEM without its public half, where passwords are taken",
        ("ssh-auth-failed", "refused the login of user root", "ssh-keygen -y", "ssh-copy-id"),
        unknown_pem,
        DENIED,
        mended=True,
    ),
    Row("a key that a CA has signed", READY, certified("-1d:+1d")),
    Row("a key whose certificate has expired", ("ssh-auth-failed", "-cert.pub expired on ", "renewed"), certified("-3d:-1d"), DENIED),
    Row("an RSA key in PEM", READY, keyed("-t rsa -b 2048 -m PEM -N ''", "IdentityFile {key}")),
    Row("kinds of keys that the server does not take", ("ssh-auth-failed", "refused the login of user root"),
        sshd("PubkeyAcceptedAlgorithms rsa-sha2-512"), DENIED),
)  # fmt: skip

DROPS = (
    Row(
        "a drop that the user may not read",
        ("port-unreachable", "could not be judged", "nft list ruleset", "as root first"),
        drops(),
        entry=AS_ALICE,
    ),
    Row(
        "a drop that the user may read, by a sudo for nft alone",
        ("firewall-blocks-ephemeral", "rule    node", "tcp dport != 22 ct state new drop"),
        drops("echo 'alice ALL=(root) NOPASSWD: /usr/sbin/nft' >/etc/sudoers.d/alice"),
        entry=AS_ALICE,
    ),
)
"""Looked at with --sudo."""
