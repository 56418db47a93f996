"""Where NCCL's variables come from, and which definition wins.

NCCL reads ``$NCCL_CONF_FILE`` (from 2.23.4) or else ``~/.nccl.conf``, then ``/etc/nccl.conf``, and sets what is not set
yet: so the process environment wins over both, and the first definition over later ones (src/misc/param.cc ``initEnv``
and ``setEnvFile``, in 2.3 to 2.30; src/param/param.cc beside it from 2.29.7).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from nccl_doctor.nccl.versions import CONF_FILE, Version, behaviour, show
from nccl_doctor.snapshot import ConfigFile, Unknown, unknown

SYSTEM_FILE = "/etc/nccl.conf"
USER_FILE = "/.nccl.conf"
"""What the path of the user's own file ends with; NCCL takes the home directory out of the password database."""

LONGEST = 1023
"""Bytes of a name or a value in a config file; NCCL cuts off the rest."""

_DOUBT = f"NCCL reads NCCL_CONF_FILE from {show(CONF_FILE)} on, and which one runs there is not known"

HOSTS_FILE = "hosts file"
ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Variable:
    """A variable as NCCL has it, and where its value stands: "hosts file", "environment" or "/etc/nccl.conf:3".

    Attributes:
        doubt: why the job may not have it so.
    """

    name: str
    value: str
    origin: str
    doubt: str | None = None


@dataclass(frozen=True)
class Definition:
    """A line of a config file that defines something; ``line`` counts from 1."""

    name: str
    value: str
    line: int


def parse_config(text: str) -> Iterator[Definition]:
    """Reads a config file as NCCL does: NAME=VALUE, nothing trimmed, "#" a comment in the first column only."""
    for number, line in enumerate(text.split("\n"), start=1):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#") and name:
            yield Definition(_cut(name), _cut(value), number)


def _cut(text: str) -> str:
    return text.partition("\0")[0].encode(errors="surrogateescape")[:LONGEST].decode(errors="surrogateescape")


def resolve(
    hosts_file: Mapping[str, str],
    environment: Mapping[str, str],
    files: tuple[ConfigFile, ...],
    version: Version | None,
) -> dict[str, Variable] | Unknown:
    """Every variable NCCL would see in the job, by name.

    Args:
        hosts_file: the node's ``env``: what the job's launcher will set.
        environment: of a process started over SSH.
        files: every file NCCL may read, those that do not exist included.
        version: of NCCL; None where nobody knows: what hangs on it has a doubt.

    Returns:
        The variables; Unknown where a file that NCCL reads was not looked at.
    """
    process = {name: Variable(name, value, ENVIRONMENT) for name, value in environment.items()}
    process |= {name: Variable(name, value, HOSTS_FILE) for name, value in hosts_file.items()}
    named = process.get("NCCL_CONF_FILE")
    if named is None or not named.value:
        return _with_files(process, None, files)
    if version is not None:
        return _with_files(process, named.value if behaviour(version).conf_file else None, files)
    new, old = _with_files(process, named.value, files), _with_files(process, None, files)
    if isinstance(new, Unknown) or isinstance(old, Unknown):
        return new
    alike = {name for name in new if new[name] == old.get(name)}
    return {name: one if name in alike else replace(one, doubt=_DOUBT) for name, one in (old | new).items()}


def _with_files(
    process: Mapping[str, Variable], named: str | None, files: tuple[ConfigFile, ...]
) -> dict[str, Variable] | Unknown:
    found = dict(process)
    if named is not None and all(file.path != named for file in files):
        return unknown(f"NCCL_CONF_FILE={named} was not looked at")
    user = [file for file in files if (file.path == named if named is not None else file.path.endswith(USER_FILE))]
    for file in (*user, *(file for file in files if file.path == SYSTEM_FILE)):
        for line in parse_config(file.text or ""):
            found.setdefault(line.name, Variable(line.name, line.value, f"{file.path}:{line.line}"))
    return found
