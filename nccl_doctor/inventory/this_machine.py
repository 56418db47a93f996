"""Which host of a list is the machine that we run on."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nccl_doctor.errors import DoctorError
from nccl_doctor.inventory.parsed import SourceLocation
from nccl_doctor.inventory.values import host
from nccl_doctor.text.inet import is_loopback


@dataclass(frozen=True)
class ThisMachine:
    """The names and addresses of this machine, in the form that :func:`canonical` gives."""

    names: frozenset[str]
    addresses: frozenset[str]

    def answers_to(self, named: str) -> str | None:
        """Why ``named`` is this machine: a phrase, or None where it is not. No name is looked up."""
        text = canonical(named)
        if text == "localhost" or is_loopback(text):
            return "a loopback address is this machine"
        if text in self.addresses:
            return "one of this machine's addresses"
        if text in self.names:
            return "this machine's name"
        return None


def this_machine() -> ThisMachine:
    """The machine that we run on; names come from the kernel alone, so that no name server is waited for."""
    name = canonical(socket.gethostname())
    return ThisMachine(frozenset({name, name.partition(".")[0]} - {""}), own_addresses())


def own_addresses() -> frozenset[str]:
    """All IPv4 and IPv6 addresses of this machine's interfaces."""
    import netifaces

    found = set()
    for interface in netifaces.interfaces():
        addresses = netifaces.ifaddresses(interface)  # empty for one that went away since it was listed
        for family in (netifaces.InterfaceType.AF_INET, netifaces.InterfaceType.AF_INET6):
            found |= {canonical(entry["addr"]) for entry in addresses.get(family, []) if "addr" in entry}
    return frozenset(found)


def canonical(named: str) -> str:
    """One spelling a host: addresses as RFC 5952 has them, without the scope; names in small letters."""
    try:
        return str(ipaddress.ip_address(named.partition("%")[0]))
    except ValueError:
        return named.lower()


def own_name() -> str:
    """This machine's name up to the first dot; "localhost" where the kernel's is no valid host name."""
    name = socket.gethostname().partition(".")[0]
    try:
        return host(name, SourceLocation("this machine", is_file=False))
    except DoctorError:
        return "localhost"


def training_python(environ: Mapping[str, str]) -> tuple[str, str]:
    """The interpreter that a training here would use, and why.

    An active environment decides through PATH. Without one, ``.venv/bin/nccl-doctor check`` is asked about that
    environment; but one that pipx or uv made for a tool alone (by the file that each leaves in it) trains nothing.
    """
    prefix = Path(sys.prefix)
    in_venv = sys.prefix != sys.base_prefix
    for_a_tool = (prefix / "pipx_metadata.json").exists() or (prefix / "uv-receipt.toml").exists()
    if environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX") or not in_venv or for_a_tool:
        return "python3", "default"
    return os.fspath(sys.executable), "default: the environment that nccl-doctor runs in"
