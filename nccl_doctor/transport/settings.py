"""What ~/.ssh/config means for one host: asked of the OpenSSH client itself, ``ssh -G``, or its defaults."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nccl_doctor.model import SshOptions
from nccl_doctor.transport import failures
from nccl_doctor.transport.base import remaining

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
DEFAULT_KEYS = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")
"""OpenSSH's own names and order (readconf.c, fill_default_options); DSA and XMSS are gone from it."""

_HOST = re.compile(r"[\w.:%][\w.:%-]*")
_USER = re.compile(r"[^-\s'\"`$\\;&<>|(){}\x00-\x1f\x7f][^\s'\"`$\\;&<>|(){}\x00-\x1f\x7f]*")
_TELLING = re.compile(
    r"^\s*(match|hostname|port|user|identityfile|identityagent|identitiesonly|certificatefile|proxyjump|proxycommand"
    r"|userknownhostsfile|globalknownhostsfile|knownhostscommand|hostkeyalias|connecttimeout|canonicalizehostname)\b",
    re.IGNORECASE | re.MULTILINE,
)
_INCLUDE = re.compile(r"^\s*include\s+(.+)$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class HostSettings:
    """How to reach and log in to one host.

    Attributes:
        name: what ssh was asked for; ``hostname`` is what that means.
        chosen_keys: the user named these key files; the others are defaults, missing without a word.
        identity_agent: a path, "none", or None for $SSH_AUTH_SOCK.
        proxy_jump: "[user@]host[:port]", comma-separated; None where the host is reached directly.
        connect_timeout: seconds, where the user set one.
    """

    name: str
    hostname: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    chosen_keys: bool
    user_known_hosts: tuple[Path, ...]
    global_known_hosts: tuple[Path, ...]
    identities_only: bool = False
    identity_agent: str | None = None
    certificate_files: tuple[Path, ...] = ()
    host_key_alias: str | None = None
    proxy_jump: str | None = None
    proxy_command: str | None = None
    connect_timeout: float | None = None

    @property
    def via(self) -> bool:
        """Not reached by a TCP connection of our own."""
        return bool(self.proxy_jump or self.proxy_command)

    def target(self, *, hop: bool = False) -> failures.Target:
        """The host as failures name it."""
        return failures.Target(self.name, self.hostname, self.port, self.user, hop=hop, via=self.via)


def check_name(name: str, options: SshOptions) -> None:
    """Turns away names that ssh or a shell would take for something else.

    Raises:
        AccessError: the address or the user is none.
    """
    target = failures.Target(name, name, options.port or 22, options.user or "")
    if not _HOST.fullmatch(name):
        raise failures.unreachable(target, "invalid-name", f"has an address that is none: {name!r}")
    if options.user is not None and not _USER.fullmatch(options.user):
        raise failures.unreachable(target, "invalid-name", f"has an SSH user that is none: {options.user!r}")


def resolve(name: str, options: SshOptions, deadline: float, config: Path | None = None) -> HostSettings:
    """The settings for ``name``; what ``options`` say wins.

    Raises:
        AccessError: the name is none, or ~/.ssh/config can't be read.
    """
    check_name(name, options)
    if shutil.which("ssh") is None or not _is_configured(config):
        return _settings(name, options, {})
    argv = ["ssh", "-G", *(["-F", str(config)] if config else []), *arguments(options), "--", name]
    target = failures.Target(name, name, options.port or 22, options.user or "")
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=remaining(deadline),
            env=os.environ | {"LC_ALL": "C"},
            check=False,
        )
    except (subprocess.TimeoutExpired, TimeoutError) as error:
        raise failures.unreachable(target, "ssh-config", "could not be looked up: ssh -G took too long") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        detail = "could not be looked up in the SSH configuration"
        raise failures.unreachable(target, "ssh-config", detail, tuple(said[-5:]))
    return _settings(name, options, _parse(done.stdout.decode(errors="replace")))


def arguments(options: SshOptions) -> list[str]:
    """Options of the hosts file as the ssh program takes them."""
    argv = []
    if options.port is not None:
        argv += ["-p", str(options.port)]
    if options.user is not None:
        argv += ["-l", options.user]
    if options.identity_file is not None:
        argv += ["-i", str(expand(options.identity_file))]
    return argv


def expand(path: str) -> Path:
    """A path with ``~`` as $HOME, as it is now; unchanged where it begins with a user that does not exist."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _is_configured(config: Path | None) -> bool:
    """Whether any file says something that matters here: most say nothing, and a process a host is saved."""
    files = [config] if config else [expand("~/.ssh/config"), SYSTEM_CONFIG]
    return any(_TELLING.search(text) for file in files for text in _texts(file, depth=0))


def _texts(file: Path, depth: int) -> Iterator[str]:
    """The file and what it includes; OpenSSH stops at a depth of 16."""
    try:
        text = file.read_text("utf-8", errors="replace")
    except OSError:
        return
    yield text
    base = SYSTEM_CONFIG.parent if file.is_relative_to(SYSTEM_CONFIG.parent) else expand("~/.ssh")
    for pattern in (word.strip('"') for line in _INCLUDE.findall(text) for word in line.split()):
        path = base / expand(pattern)
        for included in path.parent.glob(path.name):
            if depth < 16:
                yield from _texts(included, depth + 1)


def _parse(text: str) -> dict[str, list[str]]:
    """The lines of ``ssh -G``: a keyword in lower case and its value, some keywords more than once."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key, []).append(value)
    return values


def _settings(name: str, options: SshOptions, values: dict[str, list[str]]) -> HostSettings:
    def first(key: str) -> str | None:
        value = next(iter(values.get(key, [])), None)
        return None if value in (None, "", "none") else value

    user = options.user or first("user") or _login()
    port = options.port or int(first("port") or 22)
    hostname = first("hostname") or name
    alias = first("hostkeyalias")
    tokens = {"h": hostname, "n": name, "p": str(port), "r": user, "u": _login(), "k": alias or name}
    tokens["d"] = str(expand("~"))

    def paths(key: str, default: tuple[str, ...]) -> tuple[Path, ...]:
        words = [word for value in values.get(key, default) for word in value.split(" ")]
        return tuple(expand(fill(word, tokens)) for word in words if word not in ("", "none", "/dev/null"))

    defaults = tuple(expand(f"~/.ssh/{key}") for key in DEFAULT_KEYS)
    identities = tuple(expand(fill(value, tokens)) for value in values.get("identityfile", []) if value != "none")
    chosen = bool(identities) and not set(identities) >= set(defaults)
    if options.identity_file is not None:
        given = expand(options.identity_file)
        identities, chosen = (given, *(path for path in identities if chosen and path != given)), True
    timeout = first("connecttimeout")
    command = first("proxycommand")
    return HostSettings(
        name=name,
        hostname=hostname,
        port=port,
        user=user,
        identity_files=identities if chosen else defaults,
        chosen_keys=chosen,
        user_known_hosts=paths("userknownhostsfile", ("~/.ssh/known_hosts ~/.ssh/known_hosts2",))
        or (expand("~/.ssh/known_hosts"),),
        global_known_hosts=paths("globalknownhostsfile", ("/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",)),
        identities_only=first("identitiesonly") == "yes",
        identity_agent="none" if values.get("identityagent") == ["none"] else first("identityagent"),
        certificate_files=paths("certificatefile", ()),
        host_key_alias=alias,
        proxy_jump=first("proxyjump"),
        proxy_command=fill(command, tokens) if command else None,
        connect_timeout=float(timeout) if timeout else None,
    )


def fill(text: str, tokens: dict[str, str]) -> str:
    """Replaces the %-tokens of ssh_config(5) that are known; ``%%`` is a percent sign."""
    return re.sub(r"%(.)", lambda match: "%" if match[1] == "%" else tokens.get(match[1], match[0]), text)


@cache
def _login() -> str:
    return getpass.getuser()
