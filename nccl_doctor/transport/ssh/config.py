"""Reads OpenSSH's configuration for a host with ``ssh -G`` and expands tokens in the configured values.

Each known SSH option either does not affect the connection or login, is implemented in this package, or requires the
``ssh`` program. An unknown option requires the ``ssh`` program unless its value is the default that is compiled into
this machine's ssh.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import IO

from nccl_doctor.text.hostlist import grouped
from nccl_doctor.text.machine import thread_safe_cache
from nccl_doctor.transport.base import remaining

ConfigValues = dict[str, list[str]]  # keyword in lower case, and its values: some keywords occur more than once
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")

IMPLEMENTED = frozenset(
    """user hostname port identityfile identityagent identitiesonly certificatefile userknownhostsfile
    globalknownhostsfile hostkeyalias proxyjump proxycommand connecttimeout checkhostip ciphers macs kexalgorithms
    hostkeyalgorithms pubkeyacceptedalgorithms pubkeyacceptedkeytypes requiredrsasize controlpath""".split()  # noqa: SIM905 - words, not quotes
)
WITHOUT_BEARING = frozenset(
    """host batchmode canonicaldomains canonicalizefallbacklocal canonicalizehostname canonicalizemaxdots
    canonicalizepermittedcnames compression controlmaster controlpersist enablesshkeysign clearallforwardings
    exitonforwardfailure fingerprinthash forwardx11 forwardx11trusted forwardx11timeout gatewayports
    gssapiauthentication gssapidelegatecredentials gssapitrustdns gssapirenewalforcesrekey gssapikexalgorithms
    hashknownhosts kbdinteractiveauthentication challengeresponseauthentication kbdinteractivedevices
    passwordauthentication permitlocalcommand localcommand remotecommand requesttty sessiontype stdinnull
    forkafterauthentication streamlocalbindmask streamlocalbindunlink stricthostkeychecking tcpkeepalive tunnel
    tunneldevice visualhostkey updatehostkeys enableescapecommandline connectionattempts numberofpasswordprompts
    serveralivecountmax serveraliveinterval loglevel logverbose xauthlocation permitremoteopen addkeystoagent
    forwardagent escapechar ipqos rekeylimit syslogfacility sendenv setenv localforward remoteforward dynamicforward
    casignaturealgorithms hostbasedacceptedalgorithms hostbasedkeytypes securitykeyprovider tag obscurekeystroketiming
    channeltimeout ignoreunknown warnweakcrypto""".split()  # noqa: SIM905 - words, not quotes
)
"""Options that do not affect the connection or login.

Options for canonical names are included because the output of ``ssh -G`` already contains the canonical name.
Certificates, hardware keys and GSSAPI are left to the ssh program.
"""
_TOKEN = re.compile(r"%(.)|\$\{([^}]*)\}", re.DOTALL)


TELL_APART = ("host", "match", "include", "canonical", "proxy")
"""Prefixes of ssh_config keywords that can give different hosts different settings."""
MOST_INCLUDED = 4  # depth of files that include one another


class ConfigError(Exception):
    """Error raised if the ssh program rejects the configuration, with the program's messages in ``lines``."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        super().__init__(*lines)


class BeyondError(Exception):
    """Error raised for a configuration value or a key type that only the ssh program supports."""


class NoAccountError(Exception):
    """Error raised if the current user ID has no account on this machine; ssh refuses to run without an account."""


def exists(config: Path | None) -> bool:
    """Return whether an SSH configuration file exists."""
    return any(path.exists() for path in ([config] if config else [expand("~/.ssh/config"), SYSTEM_CONFIG]))


def ask(arguments: list[str], name: str, deadline: float) -> ConfigValues:
    """Return the options that ``ssh -G`` prints for ``name``.

    Raise ConfigError if ssh fails, or TimeoutError at the deadline, for example if a ``Match exec`` command is slow.
    """
    left = remaining(deadline)
    # files, not pipes: a background process of a Match exec would keep pipes open after ssh has exited
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaint:
        process = subprocess.Popen(
            ["ssh", "-G", *arguments, "--", name],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=complaint,
            env=os.environ | {"LC_ALL": "C"},
            start_new_session=True,
        )
        try:
            status = process.wait(left)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)  # with the Match exec
            process.wait()
            raise TimeoutError from error
        words, lines = (_lines(file) for file in (complaint, output))
    if status:
        raise ConfigError(words)
    options = (line.partition(" ") for line in lines)
    return grouped((key.lower(), value) for key, _, value in options)


def _lines(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="replace").strip().splitlines()


class SshConfigs:
    """A cache of ``ssh -G`` results, which all hosts share if no configuration file distinguishes between hosts.

    The cache saves time on large clusters, because each run of ``ssh -G`` takes 5 ms.
    """

    def __init__(self, config: Path | None) -> None:
        self._config = config
        self._shared: dict[tuple[str, ...], ConfigValues] = {}
        self._asking = threading.Lock()

    def of(self, arguments: list[str], name: str, deadline: float) -> ConfigValues:
        """Return the result of :func:`ask`, if possible from the cache.

        Raise TimeoutError if this query or the preceding query of another thread takes too long.
        """
        words = [*(["-F", str(self._config)] if self._config else []), *arguments]
        if "-o" in arguments or not self._alike:
            return ask(words, name, deadline)
        with self._asking:  # each query ends at its own deadline
            if (answer := self._shared.get(tuple(words))) is None:
                answer = ask(words, name, deadline)
                if answer.get("hostname") == [name]:
                    self._shared[tuple(words)] = answer
                return answer
        return {**answer, "host": [name], "hostname": [name]} if name == name.lower() else ask(words, name, deadline)

    @cached_property
    def _alike(self) -> bool:
        is_uniform = _names_no_host(self._config or expand("~/.ssh/config"), expand("~/.ssh"))
        return is_uniform and (self._config is not None or _names_no_host(SYSTEM_CONFIG, SYSTEM_CONFIG.parent))


def _names_no_host(path: Path, folder: Path, depth: int = 0) -> bool:
    """Return whether a configuration file is certain to give every host the same settings."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    for line in lines:
        keyword, _, value = re.sub(r"[\s=]+", " ", line.strip(), count=1).partition(" ")
        key = keyword.lower()
        if key == "include" and depth < MOST_INCLUDED and not re.search(r"[\"'$%]", value):
            patterns = (str(folder / expand(word)) for word in value.split())
            hits = (Path(hit) for pattern in patterns for hit in glob.glob(pattern))  # noqa: PTH207 - may be absolute
            same = all(_names_no_host(hit, folder, depth + 1) for hit in hits)
        elif key.startswith(TELL_APART):
            same = (key, value) in (("host", "*"), ("match", "all"))
        else:
            # a keyword may be quoted
            same = key.startswith("#") or bool(re.fullmatch("[a-z0-9]*", key) and not re.search(r"%|\$\{", value))
        if not same:
            return False
    return True


@thread_safe_cache
def compiled_in() -> ConfigValues:
    """Return the defaults that are compiled into this machine's ssh."""
    return ask(["-F", os.devnull], "host", time.monotonic() + 10)


USUAL = {
    "addressfamily": ["any"],
    "gssapikeyexchange": ["no"],
    "hostbasedauthentication": ["no"],
    "nohostauthenticationforlocalhost": ["no"],
    "proxyusefdpass": ["no"],
    "pubkeyauthentication": ["true"],
    "verifyhostkeydns": ["false"],
}
"""Values in the output of ``ssh -G`` that match paramiko's behaviour."""


def beyond(values: ConfigValues) -> tuple[str, ...]:
    """Return the configured options that only the ssh program supports."""
    unknown = values.keys() - IMPLEMENTED - WITHOUT_BEARING
    unusual = [key for key in unknown if values[key] != USUAL.get(key)]
    defaults = compiled_in() if unusual else {}
    return tuple(sorted(key for key in unusual if values[key] != defaults.get(key)))


def fill(text: str, tokens: dict[str, str], *, environment: bool = True) -> str:
    """Expand the percent tokens of ssh_config(5) and, if ``environment`` is true, ``${VARIABLE}``.

    Raise BeyondError for an unknown token or variable.
    """

    def replace(match: re.Match[str]) -> str:
        letter, variable = match.groups()
        if letter is None and not environment:
            return match[0]
        value = os.environ.get(variable) if letter is None else (tokens | {"%": "%"}).get(letter)
        if value is None:
            raise BeyondError(match[0])
        return value

    if re.search(r"(?<!%)(%%)*%$", text):
        raise BeyondError("%")
    return _TOKEN.sub(replace, text)


def files(values: Iterable[str], tokens: dict[str, str]) -> tuple[Path, ...]:
    """Return the paths in the values of an option.

    Raise BeyondError if a path is relative. A path with spaces is not supported, because values are split at spaces.
    """
    words = [fill(word, tokens) for value in values for word in value.split(" ")]
    paths = tuple(expand(word) for word in words if word not in ("", "none"))
    if not all(path.is_absolute() for path in paths):
        raise BeyondError(" ".join(words))
    return paths


def host_tokens(*, name: str, hostname: str, port: int, user: str, alias: str | None) -> dict[str, str]:
    """Return the values of the tokens that mean the same in every version of OpenSSH, unlike ``%C`` and ``%j``."""
    here = socket.gethostname()
    return {
        "d": account().pw_dir,
        "h": hostname,
        "i": str(os.getuid()),
        "k": alias or name,
        "L": here.split(".")[0],
        "l": here,
        "n": name,
        "p": str(port),
        "r": user,
        "u": account().pw_name,
    }


PROXY_TOKENS = frozenset("hnpr")  # tokens that ProxyCommand and ProxyJump accept


def expand(path: str) -> Path:
    """Expand ``~`` in a path as ssh does, with the home directory of the account instead of $HOME."""
    if path == "~" or path.startswith("~/"):
        return Path(account().pw_dir) / path[2:]
    try:
        return Path(path).expanduser()
    except RuntimeError:  # a user that does not exist
        return Path(path)


def account() -> pwd.struct_passwd:
    """Return the account of the current user, or raise NoAccountError."""
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError as error:
        raise NoAccountError from error
