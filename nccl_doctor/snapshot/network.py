"""Models of a host's network: links, addresses, routes, name resolution, packet filters, and ports.

Results of name resolution that hosts share are stored only once, as shared answers. For each host, only the answers
that differ from the shared answers are stored. If a separate answer were stored for each host and name, 4,096 hosts
with 4,096 names would need about 16.8 million answers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain
from typing import Annotated, Literal, Protocol

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from nccl_doctor.model.base import (
    CommandLine,
    Count,
    Fact,
    Fleeting,
    InterfaceName,
    IpAddress,
    IpNetwork,
    Netmask,
    Observed,
    Output,
    Pid,
    Port,
    Rate,
    Seconds,
    SocketPort,
    UserName,
    Version,
    ip_address,
)
from nccl_doctor.model.ports import TcpSocket

GEN3 = 8.0  # GT/s


class PciLink(Observed):
    """The current speed and width of a PCIe link, and the maximum speed and width that both ends support.

    Speeds are in GT/s.
    """

    speed: Rate
    width: Count
    max_speed: Rate | None = None
    max_width: Count | None = None

    @property
    def gbps(self) -> float:
        """The data rate in Gb/s without the encoding overhead.

        The encoding is 8b/10b up to 5 GT/s and 128b/130b from 8 to 32 GT/s. The slightly higher overhead of the FLITs
        at 64 GT/s is ignored. One Gb/s is 10⁹ bits per second.
        """
        return self.width * self.speed * (128 / 130 if self.speed >= GEN3 else 0.8)

    @property
    def most(self) -> str:
        """The maximum speed and width that both ends support, as text such as ``32 GT/s x16``."""
        return f"{self.max_speed or self.speed:g} GT/s x{self.max_width or self.width}"

    @property
    def lost_lanes(self) -> bool:
        """True if the link uses fewer lanes than both ends support."""
        return self.width < (self.max_width or 0)

    @property
    def lost_speed(self) -> bool:
        """True if the link's speed is lower than both ends support, which is normal while a GPU is idle."""
        return self.speed < (self.max_speed or 0.0)


REAL = ("physical", "bond")
"""Kinds of links whose drivers report the actual speed. A veth interface, in contrast, always reports 10 Gbit/s
(drivers/net/veth.c).
"""


class Link(Observed):
    """A network interface."""

    name: InterfaceName
    index: Count
    flags: tuple[str, ...]  # lower-case names without IFF_: "up", "running", "loopback", "broadcast", "pointopoint", …
    mtu: Count
    speed_mbps: Count | None  # in Mb/s; None if the driver does not report it
    kind: str  # "physical", "loopback", "bridge", "veth", "virtual", …, from /sys/class/net
    pci: PciLink | None = None  # of its PCI device


def _of_family(family: str, *texts: str | None) -> None:
    version = 6 if family == "inet6" else 4
    if any(text is not None and (":" in text) != (version == 6) for text in texts):
        raise ValueError(f"no address of family {family}")


class InterfaceAddress(Observed):
    """An address of a network interface, as returned by getifaddrs(3)."""

    interface: InterfaceName  # its label; "eth0:1" for an alias
    family: Literal["inet", "inet6"]
    address: IpAddress
    netmask: Netmask | None  # as text, "255.255.255.0" or "ffff:ffff:ffff:ffff::"; None if the kernel gives none
    scope_id: Count = 0  # IPv6 scope (interface index) of a link-local address, else 0

    @model_validator(mode="after")
    def _same_family(self) -> InterfaceAddress:
        _of_family(self.family, self.address, self.netmask)
        return self


class Interfaces(Observed):
    """All links and addresses of a host, with the addresses in the order of getifaddrs(3)."""

    links: tuple[Link, ...]
    addresses: tuple[InterfaceAddress, ...]


class Route(Observed):
    """A route in the main table.

    ``destination`` is in CIDR notation, and ``gateway`` is None if the destination is directly connected.
    """

    family: Literal["inet", "inet6"]
    destination: IpNetwork
    gateway: IpAddress | None
    interface: InterfaceName
    metric: Count

    @model_validator(mode="after")
    def _same_family(self) -> Route:
        _of_family(self.family, self.destination)
        return self


class Refusal(Observed):
    """A route that rejects packets.

    For each routing table, only the route that best matches the destination is considered. A route that rejects packets
    is stored only if no other table's best match rejects packets with the same error.
    """

    kind: Literal["blackhole", "unreachable", "prohibit"]
    destination: IpNetwork
    table: Count


class Way(Observed):
    """The kernel's routing decision for a packet (``ip route get``)."""

    to: IpAddress  # destination; ``source`` is None if the kernel chooses it
    source: IpAddress | None = None
    iif: InterfaceName | None = None  # incoming interface; None for a packet that the host sends
    # outgoing interface, "lo" if the packet is delivered locally; ``gateway`` is None if directly connected
    dev: InterfaceName | None = None
    gateway: IpAddress | None = None
    prefers: IpAddress | None = None  # source address that the kernel chooses
    table: Count | None = None  # number of the routing table that decided: 254 is main, 255 local
    error: str | None = None  # name of the errno if there is no route
    refusal: Refusal | None = None  # the route that gives that error, if one does


class IptablesSave(Observed):
    """The output of ``iptables-save -c`` or ``ip6tables-save -c``."""

    command: str = Field(pattern=r"^ip6?tables(-legacy|-nft)?$")  # program that changes these rules
    family: Literal["ip", "ip6"]
    backend: Literal["legacy", "nft"]  # "legacy" for the kernel's x_tables, "nft" for rules kept in nf_tables
    text: Output


class Firewalld(Observed):
    """The state of firewalld: the runtime and permanent zones (``--list-all-zones``), and the active direct rules."""

    default_zone: str
    runtime: Output
    permanent: Output
    direct: Output = ""


class FirewallFacts(Observed):
    """A host's packet filters, as printed by tools such as nft.

    Firewall rules and comments are untrusted text.
    """

    nft: Fact[Output | None]  # ``nft -j list ruleset``; None if the kernel has no nf_tables
    nft_left_out: tuple[str, ...] = ()  # large tables, family and name, whose chains are in ``nft`` without rules
    nft_text: Fact[Output | None] = None  # ``nft -a list ruleset``: the same, readable
    iptables: Fact[tuple[IptablesSave, ...]]  # the tables that iptables shows, of both back ends
    ipsets: Fact[Output | None] = None  # ``ipset save``; None if no rule uses a set
    firewalld: Fact[Firewalld | None] = None  # None if it does not run
    ufw: Fact[Output | None] = None  # ``ufw status verbose``; None if ufw is not installed or inactive
    docker: bool = False  # Docker manages rules here
    # interface groups (/sys/class/net/NAME/netdev_group) by interface
    groups: dict[str, Count] = Field(default_factory=dict)
    bridges: tuple[InterfaceName, ...] = ()  # interfaces that are bridges


class ResolverAnswer(Observed):
    """A resolver's answer to a query for a name or address."""

    addresses: tuple[IpAddress, ...]  # getaddrinfo(3)'s addresses, in order; empty if it does not resolve
    error: str | None = None  # getaddrinfo's message, if it does not resolve


class Resolution(ResolverAnswer):
    """The addresses to which one of the cluster's host names resolves on a host."""

    # source address that the kernel chooses for the first address (a UDP connect(2), no packet)
    source: IpAddress | None = None
    source_error: str | None = None  # name of the errno of that, for example "ENETUNREACH"


Common = Mapping[str, ResolverAnswer]  # answers that hosts share, by name


class Resolver(Protocol):
    """Protocol for objects that return the addresses to which a name resolves on a host."""

    def get(self, name: str) -> Resolution | None:
        """Return the result of resolving a name on the host, or None if the name was not queried."""


class Names(Observed):
    """The addresses to which the cluster's host names resolve on a host."""

    # answers that differ from the common one, or from :attr:`source`; in older snapshots every name
    own: dict[str, Resolution]
    source: IpAddress | None = None  # its source address for all other hosts
    _common: Common = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _every_name_of_older_snapshots(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        answers = data.get("own")
        relative = isinstance(answers, dict) and "addresses" not in answers and data.keys() <= {"own", "source"}
        return data if relative else {"own": data}

    @property
    def common(self) -> Common:
        """The shared answers, which apply to all names that are not in ``own``."""
        return self._common

    def beside(self, common: Common) -> Names:
        """Return a copy that uses ``common`` as the shared answers (:attr:`Snapshot.names`)."""
        return self._made(self.own, common)

    def get(self, name: str) -> Resolution | None:
        """Return the result of resolving a name on the host, or None if the host did not query the name."""
        if name in self.own:
            return self.own[name]
        answer = self.shared(name)
        if answer is None:
            return None
        source = self.source if answer.addresses else None
        return Resolution.model_construct(
            addresses=answer.addresses, error=answer.error, source=source, source_error=None
        )

    def shared(self, name: str) -> ResolverAnswer | None:
        """Return the answer that hosts share for a name.

        The result is None if the hosts share no answer for the name. If the name is an address, the answer is this
        address.
        """
        return self._common.get(name) or (None if self.source is None else literal(name))

    def relative_to(self, common: Common, changed: Iterable[str]) -> Names:
        """Return a copy that uses ``common`` as the shared answers.

        The new shared answers differ from the previous shared answers only for the names in ``changed``.
        """
        before = {name: value for name in changed if (value := self.get(name)) is not None}
        answers = {name: value for name, value in (before | self.own).items() if not self._follows(name, value, common)}
        return self._made(answers, common)

    def _made(self, answers: dict[str, Resolution], common: Common) -> Names:
        made = Names.model_construct(own=answers, source=self.source)
        made._common = common  # noqa: SLF001 - of the same class
        return made

    def _follows(self, name: str, answer: Resolution, common: Common) -> bool:
        shared = common.get(name) or (None if self.source is None else literal(name))
        if shared is None or (answer.addresses, answer.error) != (shared.addresses, shared.error):
            return False
        return (answer.source, answer.source_error) == (self.source if answer.addresses else None, None)


def literal(name: str) -> ResolverAnswer | None:
    """Return the resolver's answer for a name that is itself an address, or None for any other name.

    An address resolves to itself on every host.
    """
    try:
        ipaddress.ip_address(name.partition("%")[0])
        return ResolverAnswer.model_construct(addresses=(ip_address(name),), error=None)
    except ValueError:
        return None


def addresses_by_name(names: Iterable[Names]) -> dict[str, set[str]]:
    addresses: dict[str, set[str]] = {}
    common: Common = {}
    for entry in names:
        if entry.common is not common:  # all hosts of a snapshot share one table
            common = entry.common
            for name, answer in common.items():
                addresses.setdefault(name, set()).update(answer.addresses)
        for name, resolution in entry.own.items():
            addresses.setdefault(name, set()).update(resolution.addresses)
    return addresses


def deviations(hosts: Mapping[str, Names]) -> dict[str, dict[str, Resolution]]:
    by_name: dict[str, dict[str, Resolution]] = {}
    for host, names in hosts.items():
        for name, answer in names.own.items():
            by_name.setdefault(name, {})[host] = answer
    return by_name


class Engines(Observed):
    """Facts from which engines (vLLM, SGLang, Ray, …) derive the host's address (probe/facts/engines.py)."""

    # source address that the kernel chooses for 8.8.8.8 and 2001:4860:4860::8888; None without a route
    route: IpAddress | None
    route6: IpAddress | None
    # for the host's own name: its addresses of families that the host has, its IPv4 address, its canonical name and the
    # IPv4 address of that; None if it has none, or the answer came too late
    configured: tuple[IpAddress, ...]
    by_inet: IpAddress | None
    by_fqdn: IpAddress | None
    fqdn: str | None
    packages: Fact[dict[str, Version]]  # installed versions of "vllm", "sglang", "ray", "deepspeed", …
    ray_nodes: tuple[IpAddress, ...] = ()  # addresses of Ray's nodes that run on this host
    # options of the launcher in the launch command, with "_" for "-": whether a value follows; empty if unknown
    options: dict[Annotated[str, Field(pattern=r"^\w{1,64}$")], bool] = Field(default_factory=dict, max_length=512)


class Process(Observed):
    """A process that uses a port. ``command`` is untrusted text."""

    pid: Pid
    ppid: Pid
    user: UserName
    command: CommandLine
    started: Seconds  # Unix time in seconds
    age_s: Annotated[Seconds, Fleeting()]
    orphan: bool  # its parent is pid 1 or a subreaper, although a launcher started it
    own: bool  # it belongs to the user that we log in as, in our container, Slurm job and login
    ticks: Count | None = None  # clock ticks from the host's boot to its start; PID and start identify a process
    refusal: str | None = None  # why ``fix-port`` would not end its job without ``--force``; None if it would


class PortTrial(Observed):
    """The result of the bind(2) call that torch's TCPStore would make on the host (see probe/ports/requests.py)."""

    port: Port
    free: bool  # torch could bind the port
    error: str | None = None  # name of the errno of the failed bind, for example "EADDRINUSE", "EACCES"
    # why it is not free, according to the socket tables; None if it is
    cause: Literal["listener", "bound", "outbound", "time-wait", "unknown"] | None = None
    sockets: Annotated[tuple[TcpSocket, ...], Fleeting()] = ()
    holders: tuple[Process, ...] = ()
    time_wait_s: Seconds | None = None  # seconds until the longest TIME_WAIT ends, for cause "time-wait"
    hint: str | None = None  # how to find out more, for cause "unknown"


MAX_RESERVED = 1 << 18  # characters of a list of every other port


def _spans(text: object) -> object:
    """Split a string such as "8080,9000-9010" into ranges.

    Overlong strings and values that are not strings are returned unchanged, so that pydantic validates them.
    """
    if not isinstance(text, str) or len(text) > MAX_RESERVED:
        return text
    ends = [part.strip().partition("-")[::2] for part in text.split(",") if part.strip()]
    return [(low, high or low) for low, high in ends]


def _ordered(span: tuple[int, int]) -> tuple[int, int]:
    if span[0] > span[1]:
        raise ValueError("the range ends before it begins")
    return span


PortSpan = Annotated[tuple[SocketPort, SocketPort], AfterValidator(_ordered)]  # first and last port of a range


class ConntrackTable(Observed):
    """The kernel's limit on conntrack entries, and the number of entries in the probe's network namespace."""

    most: Count
    used: Annotated[Count, Fleeting()]


class PortRange(Observed):
    """The range of ephemeral ports, which the kernel assigns to sockets that request no specific port."""

    low: Port  # first port of net.ipv4.ip_local_port_range; ``high`` is the last one
    high: Port
    # ip_local_reserved_ports, as first and last port of each range; the kernel gives these to nobody who does not ask
    # for them. Accepts a list of pairs, or the kernel's text, "8080,9000-9010" (ip-sysctl.rst).
    reserved: Annotated[tuple[PortSpan, ...], Field(max_length=1 << 15), BeforeValidator(_spans)] = ()

    @model_validator(mode="after")
    def _upwards(self) -> PortRange:
        _ordered((self.low, self.high))
        return self

    @cached_property
    def reserved_ports(self) -> frozenset[int]:
        return frozenset(chain.from_iterable(range(low, high + 1) for low, high in self.reserved))

    def gives(self, port: int) -> bool:
        """Return whether the kernel can assign ``port`` as an ephemeral port."""
        return self.low <= port <= self.high and port not in self.reserved_ports

    @property
    def reserved_text(self) -> str:
        """The reserved ports in the kernel's notation, or "" if no ports are reserved."""
        return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in self.reserved)

    def reserving(self, port: int) -> str:
        """Return the reserved ports plus ``port`` in the kernel's notation, sorted and with adjacent ranges merged."""
        spans: list[list[int]] = []
        for low, high in sorted((*self.reserved, (port, port))):
            if spans and low <= spans[-1][1] + 1:
                spans[-1][1] = max(high, spans[-1][1])
            else:
                spans.append([low, high])
        return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)

    @property
    def size(self) -> int:
        return self.high - self.low + 1 - sum(self.low <= port <= self.high for port in self.reserved_ports)
