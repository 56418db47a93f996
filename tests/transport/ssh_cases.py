"""What people write into ~/.ssh/config and known_hosts, with what ``ssh`` makes of it.

In a case's texts ``{K}`` is the folder of the keys, ``{D}`` the case's own, ``{host}`` the plain server's ed25519 key
as known_hosts holds it, and so on (``variables`` of the comparison). Servers: node1 listens on 22 and 2201 with three
kinds of host keys, and on 2202 with a certificate for the name "node1"; node2 is reached on 22 and also lets in the
controller's own default key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["in", "host-key", "login", "unreached"]

NODE1 = "Host target\n  HostName node1\n"
KNOWN = "node1 {host}\n"
BOTH = KNOWN + "node1 {host_rsa}\n"
OWN_FILES = "  UserKnownHostsFile {D}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"


@dataclass(frozen=True)
class Case:
    """One configuration, read before what all of them end with.

    Attributes:
        identity: the IdentityFile at the end; None where the case is about just that.
        include: all that the configuration itself says; its text stands in ``a/ssh`` then.
        known: text of known_hosts.
        files: others in the case's folder.
    """

    name: str
    verdict: Verdict
    config: str = NODE1
    known: str = KNOWN
    include: str | None = None
    identity: str | None = "{K}/id"
    agent: str = "none"
    files: dict[str, str] = field(default_factory=dict)
    prepare: str = "true"

    def texts(self) -> dict[str, str]:
        """Every file of the case, by its path in the case's folder."""
        identity = f"  IdentityFile {self.identity}\n" if self.identity else ""
        config = f"{self.config}\nHost *\n{OWN_FILES}  IdentityAgent {self.agent}\n{identity}"
        including = {"config": config} if self.include is None else {"config": self.include, "a/ssh": config}
        return {**including, "known_hosts": self.known, **self.files}


def _on(port: int, more: str = "") -> str:
    return f"{NODE1}  Port {port}\n{more}"


def _with(more: str) -> str:
    return f"{NODE1}  {more}\n"


HOST_KEYS = [
    Case("known", "in"),
    Case("unknown", "host-key", known=""),
    Case("changed", "host-key", known="node1 {other}\n"),
    Case("hashed", "in", prepare="ssh-keygen -q -H -f {D}/known_hosts && rm {D}/known_hosts.old"),
    Case(
        "hashed with a port",
        "in",
        _on(2201),
        "[node1]:2201 {host}\n",
        prepare="ssh-keygen -q -H -f {D}/known_hosts && rm {D}/known_hosts.old",
    ),
    Case("revoked", "host-key", known=KNOWN + "@revoked * {host}\n"),
    Case("revoked, other port", "host-key", _on(2201), "[node1]:2201 {host}\n@revoked * {host}\n"),
    Case("revoked under the plain name, other port", "host-key", _on(2201), KNOWN + "@revoked node1 {host}\n"),
    Case("known with its port, revoked without", "in", _on(2201), "[node1]:2201 {host}\n@revoked node1 {host}\n"),
    Case("known without its port", "in", _on(2201)),
    Case("another key without its port", "host-key", _on(2201), "node1 {other}\n"),
    Case("known and revoked, another type known", "in", known=KNOWN + "node1 {host_rsa}\n@revoked * {host}\n"),
    Case("known and revoked, two other types known", "in", known=BOTH + "node1 {host_ecdsa}\n@revoked node1 {host}\n"),
    Case(
        "known and revoked, another type's key changed",
        "host-key",
        known=KNOWN + "node1 {other_rsa}\n@revoked * {host}\n",
    ),
    Case("all known, all revoked", "host-key", known=BOTH + "@revoked * {host}\n@revoked * {host_rsa}\n"),
    Case("revoked, another of its type known", "host-key", known="node1 {other}\n" + BOTH + "@revoked * {host}\n"),
    Case(
        "known and revoked, and no other type wanted",
        "host-key",
        _with("HostKeyAlgorithms ssh-ed25519"),
        BOTH + "@revoked * {host}\n",
    ),
    Case("RevokedHostKeys", "host-key", _with("RevokedHostKeys {D}/revoked"), files={"revoked": "{host}\n"}),
    Case("RevokedHostKeys of another", "in", _with("RevokedHostKeys {D}/revoked"), files={"revoked": "{other}\n"}),
    Case("RevokedHostKeys missing", "host-key", _with("RevokedHostKeys {D}/nowhere")),
    Case("no known_hosts of the user's", "host-key", _with("UserKnownHostsFile /dev/null")),
    Case("UserKnownHostsFile none", "host-key", _with("UserKnownHostsFile none")),
    Case(
        "known to the system",
        "in",
        _with("UserKnownHostsFile /dev/null\n  GlobalKnownHostsFile {D}/system"),
        files={"system": KNOWN},
    ),
    Case("second file", "in", _with("UserKnownHostsFile {D}/none {D}/b"), "", files={"b": KNOWN}),
    Case("file with a blank", "in", _with('UserKnownHostsFile "{D}/a b"'), "", files={"a b": KNOWN}),
    Case("file by token", "in", _with("UserKnownHostsFile {D}/%k-%h-%p"), "", files={"target-node1-22": KNOWN}),
    Case("KnownHostsCommand", "in", _with('KnownHostsCommand /bin/echo "node1 {host}"'), ""),
    Case("KnownHostsCommand of another", "host-key", _with('KnownHostsCommand /bin/echo "node1 {other}"'), ""),
    Case("HostKeyAlias", "in", _with("HostKeyAlias Grande"), "grande {host}\n"),
    Case("HostKeyAlias on a port", "in", _on(2201, "  HostKeyAlias grande\n"), "grande {host}\n"),
    Case("HostKeyAlias, known by name", "host-key", _with("HostKeyAlias grande")),
    Case("pattern", "in", known="node? {host}\n"),
    Case("negated pattern", "host-key", known="*,!node1 {host}\n"),
    Case("line that lies of its type", "host-key", known="node1 ssh-rsa {blob}\n"),
    Case("type that nobody knows", "host-key", known="node1 ssh-foo {blob}\n"),
    Case("known by ECDSA", "in", known="node1 {host_ecdsa}\n"),
    Case("known by RSA", "in", known="node1 {host_rsa}\n"),
    Case("other RSA key", "host-key", known="node1 {other_rsa}\n"),
    Case("HostKeyAlgorithms", "host-key", _with("HostKeyAlgorithms ssh-ed25519"), "node1 {host_rsa}\n"),
    Case("CheckHostIP, other key there", "host-key", _with("CheckHostIP yes"), KNOWN + "{address} {other}\n"),
    Case("CheckHostIP, nothing there", "in", _with("CheckHostIP yes")),
    Case("RequiredRSASize of the host", "unreached", _with("RequiredRSASize 4096"), "node1 {host_rsa}\n"),
]

CA = "@cert-authority node1 {ca}\n"
CERTIFICATES = [
    Case("host certificate", "in", _on(2202), "@cert-authority [node1]:2202 {ca}\n"),
    Case("host CA under the plain name", "in", _on(2202), CA),
    Case("host CA of another", "host-key", _on(2202), "@cert-authority * {other}\n"),
    Case("host CA, no certificate", "host-key", known=CA),
    Case(
        "host CA, other name",
        "host-key",
        "Host target\n  HostName {address}\n  Port 2202\n",
        "@cert-authority * {ca}\n",
    ),
    Case("host CA revoked", "host-key", _on(2202), "@cert-authority * {ca}\n@revoked * {ca}\n"),
    Case("host CA and key", "in", _on(2202), CA + "[node1]:2202 {certified}\n"),
    Case("certified, known by key", "in", _on(2202), "[node1]:2202 {certified}\n"),
    Case("user certificate beside", "in", identity="{K}/signed"),
    Case("CertificateFile", "in", _with("CertificateFile {K}/signed-cert.pub"), identity="{K}/signed_plain"),
    Case("key without its certificate", "login", identity="{K}/signed_plain"),
    Case("certificate in the agent", "in", agent="{K}/agent-cert", identity="{K}/other"),
    Case("agent's key, certificate on disk", "in", agent="{K}/agent-signed", identity="{K}/signed"),
]

INNER = "Host target\n  HostName node2\n"
INNER_KNOWN = KNOWN + "node2 {inner}\n"
DEFAULT_KEYS = [
    Case("a default key", "in", INNER, INNER_KNOWN, identity=None),
    Case("no file, though a default key is there", "login", INNER, INNER_KNOWN, identity="none"),
    Case("other file, though a default key is there", "login", INNER, INNER_KNOWN, identity="{K}/other"),
    Case(
        "IdentitiesOnly, a default key and an agent",
        "in",
        INNER + "  IdentitiesOnly yes",
        INNER_KNOWN,
        identity=None,
        agent="{K}/agent-id",
    ),
]

MANY = "{K}/agent-many"
LOGINS = [
    Case("other key", "login", identity="{K}/other"),
    Case("second key", "in", _with("IdentityFile {K}/other"), identity="{K}/id"),
    Case("RSA in PEM", "in", identity="{K}/pem"),
    Case("ECDSA", "in", identity="{K}/ecdsa"),
    Case("passphrase", "login", identity="{K}/locked"),
    Case("passphrase, in the agent", "in", agent="{K}/agent-locked", identity="{K}/locked"),
    Case("others may read it", "login", identity="{K}/open"),
    Case("pub of another", "login", identity="{K}/stale"),
    Case("missing key", "login", identity="{K}/nowhere"),
    Case("agent", "in", agent="{K}/agent-id", identity="{K}/other"),
    Case("agent by variable", "in", agent="$DIFF_AGENT", identity="{K}/other"),
    Case("agent by braces", "in", agent="${{DIFF_AGENT}}", identity="{K}/other"),
    Case("agent by an unset variable", "login", agent="$DIFF_NOTHING", identity="{K}/other"),
    Case("agent in the environment", "in", agent="SSH_AUTH_SOCK", identity="{K}/other"),
    Case("agent and no file", "in", agent="{K}/agent-id", identity="none"),
    Case("no file", "login", identity="none"),
    Case("IdentitiesOnly without files", "login", _with("IdentitiesOnly yes"), agent="{K}/agent-id", identity=None),
    Case(
        "IdentitiesOnly, other file", "login", _with("IdentitiesOnly yes"), agent="{K}/agent-id", identity="{K}/other"
    ),
    Case("IdentitiesOnly, by pub", "in", _with("IdentitiesOnly yes"), agent=MANY, identity="{K}/public.pub"),
    Case("agent full of others", "login", agent=MANY, identity="{K}/id2"),
    Case("agent full of others, its own file", "in", agent=MANY, identity="{K}/public"),
    Case("file by variable", "in", identity="${{DIFF_KEYS}}/id"),
    Case("file by an unset variable", "unreached", identity="${{DIFF_NOTHING}}/id"),
    Case(
        "file by tokens",
        "in",
        identity="{D}/%u-%i-%L-%l-%r-%n-%%",
        prepare="cp {K}/id {D}/root-0-ctl-ctl-root-target-%",
    ),
    Case("file by home", "in", identity="%d/diff/keys/id"),
    Case(
        "file by hash",
        "in",
        identity="{D}/%C",
        prepare='cp {K}/id {D}/$(printf ctlnode122root | sha1sum | cut -d" " -f1)',
    ),
    Case("PubkeyAcceptedAlgorithms", "login", _with("PubkeyAcceptedAlgorithms rsa-sha2-512")),
    Case("RequiredRSASize of the user", "login", _with("RequiredRSASize 4096"), identity="{K}/pem"),
    Case("PubkeyAuthentication no", "login", _with("PubkeyAuthentication no")),
    Case("PreferredAuthentications", "login", _with("PreferredAuthentications password")),
    Case("User without keys", "login", _with("User alice")),
    Case(
        "open ControlMaster",
        "in",
        _with("ControlPath {D}/master"),
        identity="{K}/other",
        prepare="ssh -F {D}/config -i {K}/id -o ControlMaster=yes -o StrictHostKeyChecking=yes -fN target 2>{D}/log",
    ),
]

CONFIGURATIONS = [
    Case("Include by glob", "in", "Include {D}/*.conf", files={"a.conf": NODE1}),
    Case("Include with =", "in", 'Include="{D}/a.conf"', files={"a.conf": NODE1}),
    Case("nothing but an Include by a glob of folders", "in", include="Include {D}/*/ssh"),
    Case("nothing but an Include with =", "in", include="Include={D}/a/ssh"),
    Case("Include within Host", "in", "Host target\n  Include {D}/a", files={"a": "HostName node1\n"}),
    Case("Match host", "in", "Match host target\n  HostName node1"),
    Case("Match exec", "in", 'Match exec "test %n = target"\n  HostName node1'),
    Case("Match exec that fails", "unreached", "Match exec false\n  HostName node1"),
    Case("Match final", "login", f"{NODE1}Match final host node1\n  User alice"),
    Case("Match originalhost and user", "in", "Match originalhost target user root\n  HostName node1"),
    Case("Host negated", "in", "Host * !other\n  HostName node1"),
    Case("HostName by token", "in", "Host target\n  HostName %h\n  ProxyCommand nc node1 %p", "target {host}\n"),
    Case("keyword = value", "in", "Host=target\nHOSTNAME = node1"),
    Case("no such option", "unreached", "Host target\n  HostNam node1"),
    Case("IgnoreUnknown", "in", "IgnoreUnknown Use*\nUseKeychain yes\n" + NODE1),
    Case("Ciphers", "in", _with("Ciphers aes256-ctr")),
    Case("Ciphers that only ssh has", "in", _with("Ciphers chacha20-poly1305@openssh.com")),
    Case("KexAlgorithms that only ssh has", "in", _with("KexAlgorithms diffie-hellman-group18-sha512")),
    Case("KexAlgorithms that the server lacks", "unreached", _with("KexAlgorithms diffie-hellman-group1-sha1")),
    Case("AddressFamily", "unreached", _with("AddressFamily inet6")),
    Case("BindAddress", "unreached", _with("BindAddress 192.0.2.1")),
    Case("RemoteCommand and tty", "in", _with("RequestTTY force")),
]

JUMPS = [
    Case("ProxyJump", "in", INNER + "  ProxyJump node1", INNER_KNOWN),
    Case(
        "ProxyJump by an alias with a port",
        "in",
        INNER + "  ProxyJump j\nHost j\n  HostName node1\n  Port 2201",
        INNER_KNOWN,
    ),
    Case(
        "ProxyJump by tokens",
        "in",
        INNER + "  ProxyJump %r@bastion-%n\nHost bastion-target\n  HostName node1",
        INNER_KNOWN,
    ),
    Case("ProxyJump, two", "in", INNER + "  ProxyJump node1:2201,node1", INNER_KNOWN),
    Case("ProxyJump none", "in", NODE1 + "  ProxyJump none\nHost *\n  ProxyJump node2"),
    Case("unknown jump host", "host-key", INNER + "  ProxyJump node1", "node2 {inner}\n"),
    Case("unknown behind", "host-key", INNER + "  ProxyJump node1"),
    Case("jump host by CA, host by key", "in", INNER + "  ProxyJump node1:2202", CA + "node2 {inner}\n"),
    Case("jump host that takes no key", "login", INNER + "  ProxyJump alice@node1", INNER_KNOWN),
    Case("jump host refuses", "unreached", INNER + "  ProxyJump node1:9", INNER_KNOWN),
    Case("ProxyCommand", "in", _with("ProxyCommand nc %h %p")),
    Case("ProxyCommand none", "in", _with("ProxyCommand none")),
    Case("ProxyCommand that fails", "unreached", _with("ProxyCommand false")),
]

CASES = [*HOST_KEYS, *CERTIFICATES, *DEFAULT_KEYS, *LOGINS, *CONFIGURATIONS, *JUMPS]
