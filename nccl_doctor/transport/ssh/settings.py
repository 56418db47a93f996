"""How to reach and log in to one host."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nccl_doctor.transport.ssh import failures
from nccl_doctor.transport.ssh.config import expand
from nccl_doctor.transport.ssh.options import SshOptions
from nccl_doctor.transport.ssh.target import Target

_HOST = re.compile(r"[\w.:%][\w.:%-]*")
_USER = re.compile(r"[^-\s'\"`$\\;&<>|(){}\x00-\x1f\x7f][^\s'\"`$\\;&<>|(){}\x00-\x1f\x7f]*")
LEAST_RSA_BITS = 1024

_SIGNATURES = (
    *("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    *("rsa-sha2-512", "rsa-sha2-256"),
)
OPENSSH_ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "kex": (
        *("mlkem768x25519-sha256", "sntrup761x25519-sha512", "sntrup761x25519-sha512@openssh.com"),
        *("curve25519-sha256", "curve25519-sha256@libssh.org"),
        *("ecdh-sha2-nistp256", "ecdh-sha2-nistp384", "ecdh-sha2-nistp521"),
        *("diffie-hellman-group-exchange-sha256", "diffie-hellman-group16-sha512", "diffie-hellman-group18-sha512"),
        "diffie-hellman-group14-sha256",
    ),
    "key_types": _SIGNATURES,
    "pubkeys": _SIGNATURES,
    "ciphers": (
        *("chacha20-poly1305@openssh.com", "aes128-gcm@openssh.com", "aes256-gcm@openssh.com"),
        *("aes128-ctr", "aes192-ctr", "aes256-ctr"),
    ),
    "digests": (
        *("umac-64-etm@openssh.com", "umac-128-etm@openssh.com", "hmac-sha2-256-etm@openssh.com"),
        *("hmac-sha2-512-etm@openssh.com", "hmac-sha1-etm@openssh.com", "umac-64@openssh.com", "umac-128@openssh.com"),
        *("hmac-sha2-256", "hmac-sha2-512", "hmac-sha1"),
    ),
}
"""What OpenSSH 10.0's client offers by itself (ssh_config(5), "The default is"), best first, without certificates and
hardware keys, which go through the ssh program. paramiko alone would also take CBC, MD5 and shortened MACs."""


@dataclass(frozen=True)
class HostSettings:
    """How to reach and log in to one host.

    Attributes:
        name: what ssh was asked for; ``hostname`` is what that means.
        identity_files: in ssh's order; ``chosen_keys`` says that they are not its defaults, which may be missing
            without a word, and ``identity_file`` is the one that the hosts file names.
        identity_agent: a path, "none", or None for $SSH_AUTH_SOCK.
        proxy_jump: "[user@]host[:port]", comma-separated; None where the host is reached directly.
        connect_timeout: seconds, where the user set one.
        algorithms: those allowed, best first, by paramiko's name for the sort: each that OPENSSH_ALGORITHMS has.
        least_rsa_bits: shorter RSA keys are refused, the host's and the user's.
        check_host_ip: a host key must also be the one that the host's address is known by, where it is known.
        beyond: the options that only the ssh program honours.
    """

    name: str
    hostname: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    chosen_keys: bool
    user_known_hosts: tuple[Path, ...]
    global_known_hosts: tuple[Path, ...]
    identity_file: Path | None = None
    identities_only: bool = False
    identity_agent: str | None = None
    host_key_alias: str | None = None
    proxy_jump: str | None = None
    proxy_command: str | None = None
    connect_timeout: float | None = None
    algorithms: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: OPENSSH_ALGORITHMS)
    least_rsa_bits: int = LEAST_RSA_BITS
    check_host_ip: bool = False
    beyond: tuple[str, ...] = ()

    @property
    def via(self) -> bool:
        """Whether the host is reached through a jump host or a proxy command."""
        return bool(self.proxy_jump or self.proxy_command)

    @property
    def known_hosts(self) -> tuple[Path, ...]:
        """Every file that may know the host."""
        return self.user_known_hosts + self.global_known_hosts

    @property
    def own_known_hosts(self) -> Path:
        """The file that a new key of the host belongs into."""
        usable = [path for path in self.user_known_hosts if path != Path(os.devnull)]
        return next(iter((*usable, *self.global_known_hosts)), expand("~/.ssh/known_hosts"))

    def target(self, *, hop: bool = False) -> Target:
        """The host as failures name it."""
        return Target(self.name, self.hostname, self.port, self.user, hop=hop, via=self.via)


def check_name(name: str, options: SshOptions) -> None:
    """Turns away names that ssh or a shell would take for something else.

    Raises:
        AccessError: the address or the user is none.
    """
    target = asked(name, options)
    if not _HOST.fullmatch(name):
        raise failures.unreachable(target, "invalid-name", f"has an address that is none: {name!r}")
    if options.user is not None and not _USER.fullmatch(options.user):
        raise failures.unreachable(target, "invalid-name", f"has an SSH user that is none: {options.user!r}")


def arguments(options: SshOptions) -> list[str]:
    """Options of the hosts file as the ssh program takes them."""
    argv = []
    if options.port is not None:
        argv += ["-p", str(options.port)]
    if options.user is not None:
        argv += ["-l", options.user]
    if options.identity_file is not None:
        # before an agent's other keys, which might use up the server's patience
        argv += ["-i", str(expand(options.identity_file)), "-o", "IdentitiesOnly=yes"]
    return argv + [word for option in options.options for word in ("-o", option)]


def asked(name: str, options: SshOptions) -> Target:
    """The host as it was asked for, before anything is known of it."""
    return Target(name, name, options.port or 22, options.user or "")
