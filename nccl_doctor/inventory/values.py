"""Validates single values in hosts files and options."""

from __future__ import annotations

import re
import shlex

from nccl_doctor.inventory.sources import SourceLocation
from nccl_doctor.model.base import CONTAINER_NAME
from nccl_doctor.model.engines.containers import RUNTIMES, InsideOptions
from nccl_doctor.model.ports import LAST_PORT, as_port
from nccl_doctor.servers import SERVERS
from nccl_doctor.text.hostlist import has_control, quoted
from nccl_doctor.text.inet import numeric

MAX_NPROC = 1024  # no machine has more GPUs; a larger number is a typo, and would start as many processes

_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_SCOPE = re.compile(r"[A-Za-z0-9_.-]{1,15}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEVICE = re.compile(r"[0-9]{1,4}|GPU-[0-9A-Fa-f-]+|MIG-[0-9A-Za-z/-]+")
_SSH_VALUE = {"-o": "", "-J": "ProxyJump=", "-i": "IdentityFile=", "-p": "Port=", "-l": "User=", "-S": "ControlPath="}
_SSH_FLAGS: dict[str, tuple[str, ...]] = {
    "-4": ("AddressFamily=inet",),
    "-6": ("AddressFamily=inet6",),
    **{f"-{letters}": () for letters in ("v", "vv", "vvv", "t", "tt", *"CqaAxXYTnkK")},
}
"""Flags of ssh(1) with the equivalent values for ``-o``.

Flags without an equivalent value are ignored.
"""


def host(text: str, place: SourceLocation) -> str:
    """Return the text if it is an IP address or a host name (RFC 1123, with "_" as an additional character)."""
    if text.startswith("-"):
        raise place.error(f'{quoted(text)} is not a host name: it begins with "-", which ssh would read as an option')
    if ":" in text:
        address, percent, scope = text.partition("%")
        if numeric(address) is None or (percent and not _SCOPE.fullmatch(scope)):
            raise place.error(f"{quoted(text)} is not an IPv6 address, and a port can't stand in a host's name")
    elif re.fullmatch(r"[0-9.]+", text):
        if numeric(text) is None:
            raise place.error(f'{quoted(text)} is not an IPv4 address: four numbers from 0 to 255, joined by "."')
    elif len(text) > 253 or not all(_LABEL.fullmatch(label) for label in text.split(".")):
        rule = 'letters, digits, "-" and "_" in parts of up to 63, joined by "."; or an IPv4 or IPv6 address'
        raise place.error(f"{quoted(text)} is not a host name: {rule}")
    return text


def user(text: str, place: SourceLocation) -> str:
    if not _USER.fullmatch(text):
        rule = 'up to 64 letters, digits, "_", ".", "-", "+" and "@", a letter, digit or "_" first'
        raise place.error(f"{quoted(text)} is not a user name: {rule}")
    return text


def port(text: str, place: SourceLocation) -> int:
    """Parse a TCP port from 1 to 65535."""
    number = as_port(text)
    if number is None:
        raise place.error(f"{quoted(text)} is not a valid port (1 to {LAST_PORT})")
    return number


def nproc(text: str, place: SourceLocation, words: tuple[str, ...] = ()) -> int:
    """Parse the number of ranks on one host (at least 1); return 0 if the text is among ``words``."""
    if text in words:
        return 0
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= MAX_NPROC:
        allowed = ", ".join((f"1 to {MAX_NPROC}", *words))
        raise place.error(f"{quoted(text)} is not a valid number of processes ({allowed})")
    return int(text)


def nproc_per_node(text: str, place: SourceLocation) -> int:
    """Parse the number of ranks on one host; return 0 for torchrun's ``gpu`` and ``auto`` (one rank per GPU)."""
    return nproc(text, place, ("gpu", "auto"))


def path(text: str, place: SourceLocation) -> str:
    """Return the text if it is a file path, which may be absolute, relative, or in the home directory (``~/``)."""
    if not text or has_control(text) or text.startswith("-"):
        raise place.error(f'{quoted(text)} is not a file path: it is empty, has control characters, or begins with "-"')
    return text


def ssh_options(text: str, place: SourceLocation) -> tuple[str, ...]:
    """Convert command-line arguments of ssh(1) to values for ``-o``, dropping irrelevant flags."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise place.error(f"{quoted(text)} are not arguments of ssh: {error}") from error
    options, rest = [], iter(words)
    for word in rest:
        if word[:2] in _SSH_VALUE:
            value = word[2:] or next(rest, "")
            if not value or has_control(value):
                raise place.error(f"{quoted(word[:2])} of ssh needs a value")
            options.append(_SSH_VALUE[word[:2]] + value)
        elif word in _SSH_FLAGS:
            options += _SSH_FLAGS[word]
        else:
            raise place.error(f"{quoted(word)} is not understood among ssh's arguments; put it into ~/.ssh/config")
    return tuple(options)


def python(text: str, place: SourceLocation) -> str:
    """Return the text if it is an interpreter without arguments, given as a name on PATH or as a path."""
    path(text, place)
    if any(char.isspace() for char in text) and not text.startswith(("/", "~/")):
        rule = "a name such as python3.11 or a path such as /opt/train/bin/python, without arguments"
        raise place.error(f"{quoted(text)} is not an interpreter: {rule}")
    return text


def inside(runtime: str, name: str, place: SourceLocation) -> InsideOptions:
    """Return the options for a container, which is given by its runtime and name, or by "enter" and a PID."""
    kind = next((candidate for candidate in RUNTIMES if candidate == runtime), None)
    if kind is None:
        rule = f"allowed are {', '.join(RUNTIMES)}"
        raise place.error(f"{quoted(runtime)} is not a known container runtime; {rule}")
    if kind == "enter" and not (_NUMBER.fullmatch(name) and int(name) > 0):
        raise place.error(f"{quoted(name)} is not a PID: enter takes the number of a process on the host")
    if not CONTAINER_NAME.fullmatch(name):
        rule = 'letters, digits, "_", "." and "-", a letter or digit first'
        raise place.error(f"{quoted(name)} is not a container name: {rule}")
    return InsideOptions(runtime=kind, name=name)


def variable(text: str, place: SourceLocation) -> str:
    """Return the text if it is a name that shells accept for an environment variable."""
    if not _VARIABLE.fullmatch(text):
        rule = 'letters, digits and "_", not beginning with a digit'
        raise place.error(f"{quoted(text)} is not a variable name: {rule}")
    return text


def variable_value(text: str, place: SourceLocation) -> str:
    """Return the text if it is a valid value for an environment variable, without line breaks or control characters."""
    if has_control(text.replace("\t", " ")):
        raise place.error(
            f"{quoted(text)} can't be a variable's value: control characters and line breaks are not allowed"
        )
    return text


def engine(text: str, place: SourceLocation) -> str:
    """Return the text if it is a supported value of ``--engine``."""
    if text not in SERVERS:
        raise place.error(f"{quoted(text)} is not a known engine; allowed are {', '.join(SERVERS)}")
    return text


def devices(text: str, place: SourceLocation) -> str:
    """Validate a value of CUDA_VISIBLE_DEVICES, and return it without spaces. An empty value hides all GPUs.

    A valid value of CUDA_VISIBLE_DEVICES is a comma-separated list of indexes, or of ``GPU-…`` and ``MIG-…``
    identifiers. An invalid or duplicate entry is refused, because CUDA would ignore this entry and all later entries
    (CUDA C++ Programming Guide, "CUDA Environment Variables").
    """
    tokens = device_list(text)
    if not all(_DEVICE.fullmatch(token) for token in tokens):
        rule = 'indexes such as "0,1", or identifiers that begin with GPU- or MIG-'
        raise place.error(f"{quoted(text)} is not a list of GPUs: {rule}")
    if len(set(tokens)) < len(tokens):
        raise place.error(f"{quoted(text)} names a GPU twice; name each once")
    return ",".join(tokens)


def device_list(text: str) -> list[str]:
    return [token.strip() for token in text.split(",")] if text.strip() else []


def shared_devices(first: str, other: str) -> list[str]:
    """Return the GPUs that are in both values of CUDA_VISIBLE_DEVICES.

    As in CUDA, an abbreviated identifier matches every identifier that begins with the abbreviation.
    """
    return [
        a
        for a in device_list(first)
        for b in device_list(other)
        if a == b or (not a.isdigit() and not b.isdigit() and (a.startswith(b) or b.startswith(a)))
    ]
