"""NCCL_COMM_ID, which moves NCCL's bootstrap to the interface on the subnet of the address it names.

Rules of NCCL 2.4 to 2.30: src/misc/socket.cc ``ncclSocketGetAddrFromString`` and ``ncclFindInterfaceMatchSubnet``
(src/include/socket.h before 2.12.7).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from nccl_doctor.nccl.spec import is_read
from nccl_doctor.snapshot import InterfaceAddress, Interfaces, Resolver, Unknown, unknown
from nccl_doctor.text.inet import Address, address_of

INVALID = "Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port> or <hostname>:<port>"
"""NCCL's own words (src/bootstrap.cc)."""


@dataclass(frozen=True)
class Remote:
    """The address NCCL_COMM_ID means; ``scope_id`` 0 except for link-local IPv6."""

    address: Address
    port: int
    scope_id: int = 0

    def __str__(self) -> str:
        """As NCCL prints addresses: ``10.0.0.5<29600>``."""
        return f"{self.address}<{self.port}>"


def parse_comm_id(value: str, interfaces: Interfaces, names: Resolver) -> Remote | str | Unknown:
    """Reads the value.

    Args:
        value: of NCCL_COMM_ID.
        interfaces: of the host, for the scope of ``[fe80::1%eth0]``.
        names: what the host makes of names, where the value holds one.

    Returns:
        The address; NCCL's words where it refuses the value; Unknown where a name was never resolved there.
    """
    if not is_read(value):
        return INVALID
    if value.startswith("["):
        return _bracketed(value, interfaces)
    name, _, rest = value.partition(",")[0].partition(":")
    if not name:
        return INVALID
    port = _atoi(rest)
    literal = _ip(name)
    if literal is not None:
        return Remote(literal, port)
    seen = names.get(name)
    if seen is None:
        return unknown(f"NCCL_COMM_ID names {name}, which was not resolved on this host")
    first = _ip(seen.addresses[0].partition("%")[0]) if seen.addresses else None
    return Remote(first, port) if first is not None else INVALID


def _bracketed(value: str, interfaces: Interfaces) -> Remote | str | Unknown:
    inside, closed, rest = value[1:].partition("]")
    if not closed:
        return INVALID
    text, _, zone = inside.rpartition("%") if "%" in inside else (inside, "", "")
    address = _ip(text)
    if not isinstance(address, ipaddress.IPv6Address):
        return unknown("NCCL_COMM_ID holds no IPv6 address in its brackets; NCCL then reads uninitialised memory")
    scope = next((link.index for link in interfaces.links if link.name == zone), 0)
    return Remote(address, _atoi(rest[1:]), scope)


def on_subnet(entry: InterfaceAddress, remote: Remote) -> bool:
    """Whether the address's own netmask puts the remote one beside it (``matchSubnet``)."""
    local = _ip(entry.address)
    if local is None or entry.netmask is None or local.version != remote.address.version:
        return False
    mask = _ip(entry.netmask)
    if mask is None or mask.version != local.version:
        return False
    same = int(local) & int(mask) == int(remote.address) & int(mask)
    return same and (local.version == 4 or entry.scope_id == remote.scope_id)


def _ip(text: str) -> Address | None:
    try:
        return address_of(text)
    except ValueError:
        return None


def _atoi(text: str) -> int:
    digits = re.match(r"\s*[+-]?\d+", text)
    return int(digits.group()) % 65536 if digits is not None else 0
