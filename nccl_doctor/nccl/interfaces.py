"""Model of NCCL's choice of interfaces, for all versions since 2.4.

NCCL considers interfaces in the order of getifaddrs(3), with all IPv4 addresses before all IPv6 addresses. The
bootstrap listens on the first interface that NCCL accepts. NET/Socket uses all interfaces that NCCL accepts, but at
most 16. If NCCL_COMM_ID is set, the bootstrap uses the interface in the subnet of the address in NCCL_COMM_ID. The
model is based on the source code of NCCL 2.4 to 2.30. See ``ncclSocketGetAddrFromString`` and
``ncclFindInterfaceMatchSubnet`` in src/misc/socket.cc (in src/include/socket.h before 2.12.7). The syntax of
NCCL_SOCKET_IFNAME is ``[^][=]TOKEN[,TOKEN…]``. "^" means that NCCL must not use the listed interfaces, and "=" means
that the tokens are complete names instead of prefixes. "^" and "=" apply to the whole list. Spaces and case are
significant, but the order of the tokens is not.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from nccl_doctor.model.base import Unknown, unknown
from nccl_doctor.nccl import versions
from nccl_doctor.nccl.versions import Behaviour, VersionNumbers
from nccl_doctor.snapshot.network import InterfaceAddress, Interfaces, Names, Resolver
from nccl_doctor.text.bounds import whole_number
from nccl_doctor.text.hostlist import quoted
from nccl_doctor.text.inet import Address, numeric

MAX_TOKENS = 16  # NCCL 2.4 to 2.30, src/include/socket.h ``MAX_IFS``: further tokens are ignored


@dataclass(frozen=True)
class Spec:
    """An interface list (for example NCCL_SOCKET_IFNAME), as NCCL parses it. An empty list matches every interface."""

    exclude: bool
    exact: bool
    tokens: tuple[str, ...]

    def listed(self, name: str) -> bool:
        """Return whether a name matches the list, regardless of "^" (src/misc/utils.cc, ``matchIfList``)."""
        return not self.tokens or (name in self.tokens if self.exact else name.startswith(self.tokens))

    def accepts(self, name: str) -> bool:
        return self.listed(name) != self.exclude


def parse_spec(text: str, *, both_signs: bool = True) -> Spec:
    """Parse an interface list as NCCL does (``findInterfaces`` and ``parseStringList`` in src/misc)."""
    exclude = text.startswith("^")
    rest = text[1:] if exclude else text
    exact = rest.startswith("=") and (both_signs or not exclude)
    # NCCL keeps "name:port" lists in the same syntax
    names = (token.partition(":")[0] for token in (rest[1:] if exact else rest).split(","))
    return Spec(exclude, exact, tuple(name for name in names if name)[:MAX_TOKENS])


def is_read(value: str | None) -> bool:
    """Return whether NCCL reads a value of NCCL_SOCKET_IFNAME or NCCL_COMM_ID.

    NCCL reads only values of at least two bytes (``strlen(env) > 1``).
    """
    return value is not None and len(value.encode(errors="surrogateescape")) > 1


INVALID = "Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port> or <hostname>:<port>"
"""NCCL's message for an invalid NCCL_COMM_ID (src/bootstrap.cc)."""


@dataclass(frozen=True)
class Remote:
    """The address in NCCL_COMM_ID. ``scope_id`` is 0 unless the address is a link-local IPv6 address."""

    address: Address
    port: int
    scope_id: int = 0

    def __str__(self) -> str:
        """Return the address as NCCL prints it, such as ``10.0.0.5<29600>``."""
        return f"{self.address}<{self.port}>"


def parse_comm_id(value: str, interfaces: Interfaces, names: Resolver) -> Remote | str | Unknown:
    """Return the address in NCCL_COMM_ID, NCCL's error message for an invalid value, or Unknown.

    The result is Unknown if the host's facts do not determine the address.
    """
    if not is_read(value):
        return INVALID
    if value.startswith("["):
        return _bracketed(value, interfaces)
    name, _, rest = value.partition(",")[0].partition(":")
    if not name:
        return INVALID
    port = _atoi(rest)
    literal = numeric(name)
    if literal is not None:
        return Remote(literal, port)
    resolution = names.get(name)
    if resolution is None:
        return unknown(f"NCCL_COMM_ID names {name}, which was not resolved on this host")
    first = numeric(resolution.addresses[0].partition("%")[0]) if resolution.addresses else None
    return Remote(first, port) if first is not None else INVALID


def _bracketed(value: str, interfaces: Interfaces) -> Remote | str | Unknown:
    inside, closed, rest = value[1:].partition("]")
    if not closed:
        return INVALID
    text, _, zone = inside.rpartition("%") if "%" in inside else (inside, "", "")
    address = numeric(text)
    if not isinstance(address, ipaddress.IPv6Address):
        return unknown("NCCL_COMM_ID holds no IPv6 address in its brackets; NCCL then reads uninitialized memory")
    scope = next((link.index for link in interfaces.links if link.name == zone), 0)
    return Remote(address, _atoi(rest[1:]), scope)


def on_subnet(entry: InterfaceAddress, remote: Remote) -> bool:
    """Return whether the remote address is in the subnet of a local address (NCCL's ``matchSubnet``)."""
    local = numeric(entry.address)
    if local is None or entry.netmask is None or local.version != remote.address.version:
        return False
    mask = numeric(entry.netmask)
    if mask is None or mask.version != local.version:
        return False
    same = int(local) & int(mask) == int(remote.address) & int(mask)
    return same and (local.version == 4 or entry.scope_id == remote.scope_id)


def _atoi(text: str) -> int:
    digits = re.match(r"\s*([+-]?[0-9]+)", text)
    return whole_number(digits[1]) % 65536 if digits is not None else 0


MAX_INTERFACES = 16  # NCCL 2.4 to 2.30, src/include/socket.h ``MAX_IFS``: NET/Socket uses no more

OFF_SUBNET = "NET/Socket : No usable listening interface found"
"""NCCL's message if no interface is in the subnet of NCCL_COMM_ID (src/bootstrap.cc).

Up to version 2.26.6, NCCL prints a line about the remote address before this message.
"""

INVALID_ARGUMENT, SYSTEM_ERROR = 4, 2  # ncclResult_t (src/nccl.h.in)


@dataclass(frozen=True)
class Chosen:
    """An interface that NCCL uses, its address, and the reason for the choice as a phrase."""

    name: str
    address: str
    reason: str


@dataclass(frozen=True)
class NcclFailure:
    """A failure of NCCL or gloo, with its message and the reason. ``result`` is the ncclResult_t, or None for gloo."""

    words: str
    reason: str
    result: int | None = None


@dataclass(frozen=True)
class ChosenInterfaces:
    """The interfaces that NCCL chooses on a host, for the bootstrap and for NET/Socket."""

    bootstrap: Chosen | NcclFailure
    net_socket: tuple[Chosen, ...]


_NO_NAMES: Resolver = Names(own={})


def choose(
    interfaces: Interfaces, variables: Mapping[str, str], version: VersionNumbers, names: Resolver = _NO_NAMES
) -> ChosenInterfaces | Unknown:
    """Return NCCL's choice of interfaces on a host.

    ``variables`` must include the variables that NCCL's config files set.
    """
    return _choose(interfaces, variables, versions.behaviour(version), names)


def choose_all(
    interfaces: Interfaces,
    variables: Mapping[str, str],
    names: Resolver = _NO_NAMES,
    *,
    before_conf_file: Mapping[str, str] | None = None,
    oldest: VersionNumbers = versions.OLDEST,
) -> ChosenInterfaces | Unknown:
    """Return the choice that is the same in all versions from ``oldest`` on, or Unknown if the versions differ.

    Choices are equal if the bootstrap and NET/Socket use the same addresses. Messages and result codes are taken from
    the newest version. ``before_conf_file`` contains the variables for versions that do not read NCCL_CONF_FILE.
    """
    older = variables if before_conf_file is None else before_conf_file
    possible = [(since, how) for since, how in versions.CLASSES if since > oldest]
    answers = [
        (since, _choose(interfaces, variables if how.conf_file else older, how, names))
        for since, how in ((oldest, versions.behaviour(oldest)), *possible)
    ]
    newest = answers[-1][1]
    if isinstance(newest, Unknown):
        return newest
    for (_, before), (since, after) in itertools.pairwise(answers):
        if _addresses(before) != _addresses(after):
            decides = " NCCL_CONF_FILE decides, which is read from then on only:" if since == versions.CONF_FILE else ""
            parting = f"before {versions.show(since)} it {_tell(before)}, from then on it {_tell(after)}"
            return unknown(f"the NCCL version is not known:{decides} {parting}")
    return newest


def _addresses(choice: ChosenInterfaces | Unknown) -> tuple[tuple[str, str] | None, ...]:
    if isinstance(choice, Unknown):
        return ()
    used = (choice.bootstrap, *choice.net_socket)
    return tuple(None if isinstance(iface, NcclFailure) else (iface.name, iface.address) for iface in used)


def _tell(choice: ChosenInterfaces | Unknown) -> str:
    if isinstance(choice, Unknown):
        return choice.reason
    if isinstance(choice.bootstrap, NcclFailure):
        return "finds no interface"
    others = ", ".join(interface.name for interface in choice.net_socket)
    return f"uses {choice.bootstrap.name} ({choice.bootstrap.address}; NET/Socket: {others or 'none'})"


def _choose(
    interfaces: Interfaces, variables: Mapping[str, str], how: Behaviour, names: Resolver
) -> ChosenInterfaces | Unknown:
    """Choose interfaces as ``bootstrapNetInit`` in src/bootstrap.cc does.

    If NCCL_COMM_ID is set, the bootstrap's interface depends only on the subnet of NCCL_COMM_ID.
    """
    comm_id = variables.get("NCCL_COMM_ID")
    remote = parse_comm_id(comm_id, interfaces, names) if comm_id is not None else None
    if isinstance(remote, Unknown):
        return remote
    if isinstance(remote, str):
        reason = f"NCCL_COMM_ID={quoted(comm_id or '')} is not an address and port"
        return ChosenInterfaces(NcclFailure(INVALID, reason, INVALID_ARGUMENT), ())
    everywhere = _find_interfaces(interfaces, variables, how, remote)
    if remote is None:
        why = "" if everywhere else _why_none(interfaces, variables, how)
        return ChosenInterfaces(
            everywhere[0] if everywhere else NcclFailure(how.bootstrap_words, why, how.nothing_found), everywhere
        )
    beside = _same_subnet(interfaces, remote)
    missing = NcclFailure(OFF_SUBNET, f"no interface is on the subnet of NCCL_COMM_ID ({remote.address})", SYSTEM_ERROR)
    return ChosenInterfaces(beside[0] if beside else missing, everywhere if beside else ())


def _find_interfaces(
    interfaces: Interfaces, variables: Mapping[str, str], how: Behaviour, remote: Remote | None
) -> tuple[Chosen, ...]:
    family = FAMILIES.get(variables.get("NCCL_SOCKET_FAMILY", ""))
    wanted = variables.get("NCCL_SOCKET_IFNAME")
    if wanted is not None and is_read(wanted):
        spec = parse_spec(wanted, both_signs=how.both_signs)
        return _find(interfaces, spec, how, family, f"first that NCCL_SOCKET_IFNAME={quoted(wanted)} lets through")
    matches = _find(interfaces, parse_spec("ib"), how, family, "name begins with ib, which NCCL tries first")
    if not matches and remote is not None:
        matches = _same_subnet(interfaces, remote)
    running = "running " if how.running_only else ""
    first, but = ("^docker,lo,virbr", "lo, docker or virbr") if how.virbr_last else ("^docker,lo", "lo or docker")
    guesses = [
        (first, f"first {running}interface, not {but}"),
        ("docker", "nothing else is there but docker's"),
        ("lo", "nothing else is there but lo"),
        *([("virbr", "nothing else is there but virbr")] if how.virbr_last else []),
    ]
    for text, reason in guesses:
        matches = matches or _find(interfaces, parse_spec(text), how, family, reason)
    return matches


FAMILIES = {"AF_INET": "inet", "AF_INET6": "inet6"}
"""Address families, keyed by the values of NCCL_SOCKET_FAMILY.

NCCL ignores all other values of NCCL_SOCKET_FAMILY (src/misc/socket.cc, ``envSocketFamily``).
"""


def _find(interfaces: Interfaces, spec: Spec, how: Behaviour, family: str | None, reason: str) -> tuple[Chosen, ...]:
    """Return the interfaces that ``findInterfaces`` finds.

    Each interface occurs only once, with its first address.

    Source: src/misc/socket.cc, or src/os/linux.cc since NCCL 2.29.2.
    """
    matches: dict[str, Chosen] = {}
    for entry in usable(interfaces, family, running_only=how.running_only):
        if spec.accepts(entry.interface) and entry.interface not in matches:
            matches[entry.interface] = Chosen(entry.interface, entry.address, reason)
    return tuple(matches.values())[:MAX_INTERFACES]


def usable(interfaces: Interfaces, family: str | None, *, running_only: bool) -> list[InterfaceAddress]:
    """Return the interface addresses of an address family.

    The IPv6 loopback address is omitted, but the IPv4 loopback address is included.

    If ``family`` is None, return the addresses of both families.
    """
    idle = {link.name for link in interfaces.links if "running" not in link.flags} if running_only else set()
    return [
        entry
        for entry in interfaces.addresses
        if family in (None, entry.family)
        and entry.interface.partition(":")[0] not in idle
        and not (entry.family == "inet6" and numeric(entry.address) == ipaddress.IPv6Address(1))
    ]


def _same_subnet(interfaces: Interfaces, remote: Remote) -> tuple[Chosen, ...]:
    """Return only the first interface in the subnet of ``remote``, as ``ncclFindInterfaceMatchSubnet`` does.

    The result does not depend on NCCL_SOCKET_IFNAME, the address family or IFF_RUNNING.
    """
    reason = f"on the subnet of NCCL_COMM_ID ({remote.address})"
    hits = (Chosen(e.interface, e.address, reason) for e in interfaces.addresses if on_subnet(e, remote))
    return tuple(hits)[:1]


def _why_none(interfaces: Interfaces, variables: Mapping[str, str], how: Behaviour) -> str:
    wanted = variables.get("NCCL_SOCKET_IFNAME")
    family = variables.get("NCCL_SOCKET_FAMILY", "")
    limit = f" with an address of NCCL_SOCKET_FAMILY={family}" if family in FAMILIES else ""
    if wanted is None or not is_read(wanted):
        return f"no {'running ' if how.running_only else ''}interface{limit}"
    spec = parse_spec(wanted, both_signs=how.both_signs)
    idle = [e.interface for e in usable(interfaces, None, running_only=False) if spec.accepts(e.interface)]
    if idle and not limit:
        return f"NCCL_SOCKET_IFNAME={quoted(wanted)} leads to {idle[0]}, which is not running"
    return f"NCCL_SOCKET_IFNAME={quoted(wanted)} matches no interface{limit}"
