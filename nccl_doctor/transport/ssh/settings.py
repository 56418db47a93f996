"""Determines the settings for a connection from the hosts file, OpenSSH's configuration, and OpenSSH's defaults."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nccl_doctor.errors import ControllerError
from nccl_doctor.model.engines.ssh import SshOptions
from nccl_doctor.transport.base import AccessError
from nccl_doctor.transport.ssh import config as ssh_config
from nccl_doctor.transport.ssh import failures
from nccl_doctor.transport.ssh.config import BeyondError, ConfigValues, expand
from nccl_doctor.transport.ssh.failures import SshDestination

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
"""Algorithms that the OpenSSH 10.0 client offers by default according to ssh_config(5), in order of preference.

Algorithms for certificates and hardware keys are omitted, because such keys are left to the ssh program. Unlike
OpenSSH, paramiko by default also accepts CBC ciphers, MD5 and truncated MACs.
"""


@dataclass(frozen=True)
class HostSettings:
    """The settings for connecting and logging in to a host."""

    name: str  # as given to ssh; ``hostname`` is what it resolves to
    hostname: str
    port: int
    user: str
    # in ssh's order; ``chosen_keys``: not ssh's defaults, which may be missing silently; ``identity_file`` is the one
    # in the hosts file
    identity_files: tuple[Path, ...]
    chosen_keys: bool
    user_known_hosts: tuple[Path, ...]
    global_known_hosts: tuple[Path, ...]
    identity_file: Path | None = None
    identities_only: bool = False
    identity_agent: str | None = None  # a path, "none", or None for $SSH_AUTH_SOCK
    host_key_alias: str | None = None
    proxy_jump: str | None = None  # "[user@]host[:port]", comma-separated; None if the host is reached directly
    proxy_command: str | None = None
    connect_timeout: float | None = None
    # allowed ones, best first, by paramiko's name for the kind: each that OPENSSH_ALGORITHMS has
    algorithms: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: OPENSSH_ALGORITHMS)
    least_rsa_bits: int = LEAST_RSA_BITS
    # a host key must also match the one known for the host's address, if any
    check_host_ip: bool = False
    beyond: tuple[str, ...] = ()  # options that only the ssh program supports

    @property
    def via(self) -> bool:
        """True if the host is reached through a jump host or a proxy command."""
        return bool(self.proxy_jump or self.proxy_command)

    @property
    def known_hosts(self) -> tuple[Path, ...]:
        return self.user_known_hosts + self.global_known_hosts

    @property
    def own_known_hosts(self) -> Path:
        usable = [path for path in self.user_known_hosts if path != Path(os.devnull)]
        return next(iter((*usable, *self.global_known_hosts)), expand("~/.ssh/known_hosts"))

    def target(self, *, hop: bool = False) -> SshDestination:
        return SshDestination(self.name, self.hostname, self.port, self.user, hop=hop, via=self.via)


def check_name(name: str, options: SshOptions) -> None:
    """Raise AccessError if ssh or a shell would misinterpret the host name or the user name."""
    target = asked(name, options)
    if not _HOST.fullmatch(name):
        raise failures.unreachable(target, "invalid-name", f"has an address that is none: {name!r}")
    if options.user is not None and not _USER.fullmatch(options.user):
        raise failures.unreachable(target, "invalid-name", f"has an SSH user that is none: {options.user!r}")


def arguments(options: SshOptions) -> list[str]:
    """Return the hosts file's options as arguments for the ssh program."""
    argv = []
    if options.port is not None:
        argv += ["-p", str(options.port)]
    if options.user is not None:
        argv += ["-l", options.user]
    if options.identity_file is not None:
        # before an agent's other keys, which might reach the server's limit
        argv += ["-i", str(expand(options.identity_file)), "-o", "IdentitiesOnly=yes"]
    return argv + [word for option in options.options for word in ("-o", option)]


def asked(name: str, options: SshOptions) -> SshDestination:
    """Return the SSH destination that a name and options specify, without reading the SSH configuration."""
    return SshDestination(name, name, options.port or 22, options.user or "")


_ALIAS_S = 5.0

DEFAULT_KEYS = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")
"""OpenSSH's default key files in the order in which OpenSSH tries them (fill_default_options in readconf.c). DSA and
XMSS keys are omitted, because OpenSSH no longer supports them.
"""
_ALGORITHMS = {
    "ciphers": ("ciphers",),
    "digests": ("macs",),
    "kex": ("kexalgorithms",),
    "key_types": ("hostkeyalgorithms",),
    "pubkeys": ("pubkeyacceptedalgorithms", "pubkeyacceptedkeytypes"),  # the second until OpenSSH 8.4
}


def resolve(
    name: str,
    options: SshOptions,
    deadline: float,
    config: Path | None = None,
    answers: ssh_config.SshConfigs | None = None,
) -> HostSettings:
    """Return the settings for the host ``name``.

    ``options`` take precedence over the SSH configuration. Raise AccessError if the name is invalid, or if ``ssh -G``
    fails or takes too long. ``ssh -G`` is run if the OpenSSH client is installed and either a configuration exists or
    ``options`` contains SSH options. Without the OpenSSH client, no configuration is read, and OpenSSH's defaults and
    the hosts file apply.
    """
    check_name(name, options)
    target = asked(name, options)
    try:
        if shutil.which("ssh") is None or not (options.options or ssh_config.exists(config)):
            return _read(name, options, {})
        values = (answers or ssh_config.SshConfigs(config)).of(arguments(options), name, deadline)
        return _read(name, options, values)
    except ssh_config.NoAccountError:
        raise ControllerError(
            f"the user id {os.getuid()} has no name on this machine, and ssh works for none without: add a line for it "
            "to /etc/passwd, or start the container without --user"
        ) from None
    except ssh_config.ConfigError as error:
        detail = "could not be looked up in the SSH configuration"
        raise failures.unreachable(target, "ssh-config", detail, tuple(error.lines[-5:])) from None
    except TimeoutError as error:
        detail = "could not be looked up: ssh -G took too long"
        raise failures.unreachable(target, "ssh-config", detail, late=True) from error


def ssh_alias(name: str) -> str | None:
    """Return the HostName that the SSH configuration sets for a name, or None if no HostName is found."""
    try:
        hostname = resolve(name, SshOptions(), time.monotonic() + _ALIAS_S).hostname
    except (AccessError, ControllerError):
        return None
    return hostname if hostname != name else None


def unread_configuration(config: Path | None = None) -> bool:
    """Return whether there is an SSH configuration but no OpenSSH client to read it."""
    return shutil.which("ssh") is None and ssh_config.exists(config)


def _read(name: str, options: SshOptions, values: ConfigValues) -> HostSettings:
    """Return the settings in ``values`` (the output of ``ssh -G``), or the defaults if ``values`` is empty."""
    beyond = list(ssh_config.beyond(values))

    def first(key: str) -> str | None:
        value = next(iter(values.get(key, [])), None)
        return None if value in (None, "", "none") else value

    def fill(key: str, value: str, among: dict[str, str], *, environment: bool = True) -> str | None:
        try:
            return ssh_config.fill(value, among, environment=environment)
        except BeyondError:
            beyond.append(key)
            return None

    def files(key: str, *default: str) -> tuple[Path, ...]:
        try:
            return ssh_config.files(values.get(key, () if values else default), tokens)
        except BeyondError:
            beyond.append(key)
            return ()

    hostname, alias = first("hostname") or name, first("hostkeyalias")
    port, user = options.port or int(first("port") or 22), options.user or first("user") or ssh_config.account().pw_name
    tokens = ssh_config.host_tokens(name=name, hostname=hostname, port=port, user=user, alias=alias)
    default_keys = tuple(expand(f"~/.ssh/{key}") for key in DEFAULT_KEYS)
    # an answer without paths, or with "none", means that there are none
    lines = [value for value in values.get("identityfile", []) if value != "none"]
    own_keys = tuple(expand(filled) for line in lines if (filled := fill("identityfile", line, tokens)))
    identities = own_keys if values else default_keys
    identity_file = expand(options.identity_file) if options.identity_file else None
    if identity_file is not None and identity_file not in identities:
        identities = (identity_file, *identities) if values else (identity_file,)
    if any(Path(f"{path}-cert.pub").exists() for path in identities) or files("certificatefile"):
        beyond.append("certificatefile")
    control = first("controlpath")
    if control and ("%" in control or expand(control).is_socket()):
        beyond.append("controlpath")
    user_hosts = files("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
    system = files("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
    agent = next(iter(values.get("identityagent", [])), "SSH_AUTH_SOCK")
    if agent not in ("none", "SSH_AUTH_SOCK"):
        variable = re.match(r"\$(?!\{)", agent)  # the older form: the whole value is a variable
        named = os.environ.get(agent[1:]) if variable else fill("identityagent", agent, tokens)
        agent = named or "none" if variable else str(expand(named or "none"))
    among = {token: tokens[token] for token in ssh_config.PROXY_TOKENS}
    jump, command = (
        fill(key, value, among, environment=False) if (value := first(key)) else None
        for key in ("proxyjump", "proxycommand")
    )
    algorithms = {
        sort: tuple(value.split(","))
        for sort, keys in _ALGORITHMS.items()
        if (value := next((setting for key in keys if (setting := first(key))), None))
    }
    timeout = first("connecttimeout")
    return HostSettings(
        name=name,
        hostname=hostname,
        port=port,
        user=user,
        identity_files=identities,
        chosen_keys=not set(identities) >= set(default_keys),
        identity_file=identity_file,
        user_known_hosts=user_hosts,
        global_known_hosts=system,
        identities_only=first("identitiesonly") == "yes",
        identity_agent=None if agent == "SSH_AUTH_SOCK" else agent,
        host_key_alias=alias,
        proxy_jump=jump,
        proxy_command=command,
        connect_timeout=float(timeout) if timeout else None,
        algorithms={**OPENSSH_ALGORITHMS, **algorithms},
        least_rsa_bits=int(first("requiredrsasize") or LEAST_RSA_BITS),
        check_host_ip=first("checkhostip") == "yes",
        beyond=tuple(beyond),
    )


MAX_HANDSHAKES = 8
"""Maximum number of simultaneous handshakes through a jump host.

With the default MaxStartups (10:30:100), sshd might drop the eleventh connection.
"""
PLACE_S = 2.0
"""Maximum number of seconds for which a host occupies one of the handshake slots in :class:`Places`.

If a handshake takes longer than this maximum, the cause of the delay is behind the jump host, because the jump host
itself needs less time.
"""
QUEUE = 6.0  # how many times its own limit a host may wait for its turn at a jump host


class Places:
    """Slots for simultaneous handshakes through one jump host.

    A host that takes longer than :data:`PLACE_S` seconds loses its slot.
    """

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(MAX_HANDSHAKES)

    @contextmanager
    def place(self, target: SshDestination, seconds: float) -> Iterator[None]:
        """Occupy a slot for at most :data:`PLACE_S` seconds; raise AccessError if no slot becomes free in time."""
        if not self._free.acquire(timeout=max(0.0, seconds)):
            raise failures.stalled(target, "waiting for its turn at the jump host", seconds)
        once = threading.Lock()

        def give_back() -> None:
            if once.acquire(blocking=False):
                self._free.release()

        timer = threading.Timer(PLACE_S, give_back)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            give_back()


def split_jump(jumps: str) -> tuple[str, str, SshOptions]:
    """Split off the last jump host of a ProxyJump value.

    For example, "a,ops@b:2222" is split into the jump host "a" and the last jump host "b" with user "ops" and port
    2222.

    IPv6 addresses must be in brackets.
    """
    before, _, last = jumps.rpartition(",")
    user, _, place = last.strip().removeprefix("ssh://").rpartition("@")
    name, separator, port = place.rpartition(":")
    if not separator or not port.isdigit() or (":" in name and not name.endswith("]")):
        name, port = place, ""
    return before, name.strip("[]"), SshOptions(user=user or None, port=int(port) if port else None)
