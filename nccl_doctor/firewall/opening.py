"""What is to be let through, and a remedy that does it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import collapse_addresses, ip_address, ip_network

from nccl_doctor.firewall.packet import Direction, RuleRef, Span
from nccl_doctor.text.inet import Network
from nccl_doctor.text.shell import Line

SINGLE = 8
"""So many addresses are named one by one; more are joined into the nets that hold them and nothing else."""

_MULTIPORT = 15
"""Ports that multiport takes, a range counting twice (xt_multiport, XT_MULTI_PORTS)."""

_CHAINS = frozenset({"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"})
_TABLES = frozenset({"filter", "nat", "mangle", "raw", "security"})


@dataclass(frozen=True)
class Opening:
    """TCP between this host and its peers.

    Attributes:
        direction: "input" lets the peers in, "output" lets this host out to them.
        peers: their addresses.
        ports: of the listener: the master port and the ephemeral ranges, each port once. Answers go to ephemeral ports
            too, so that the same opening lets them through.
    """

    direction: Direction
    peers: tuple[str, ...]
    ports: tuple[Span, ...]

    def nets(self, version: int) -> list[str]:
        """The peers of one IP version: addresses, or nets where there are many."""
        addresses = sorted({ip_address(peer) for peer in self.peers if ip_address(peer).version == version}, key=int)
        if len(addresses) <= SINGLE:
            return [str(address) for address in addresses]
        nets: Iterable[Network] = collapse_addresses([ip_network(address) for address in addresses])  # type: ignore[type-var]  # one version only
        return [str(net.network_address) if net.num_addresses == 1 else str(net) for net in nets]

    def multiports(self) -> Iterator[str]:
        """The ports as iptables' multiport takes them: as many lists as are needed."""
        size = _MULTIPORT // 2
        for start in range(0, len(self.ports), size):
            yield ",".join(port_words(self.ports[start : start + size], ":"))


@dataclass(frozen=True)
class Remedy:
    """Lines to paste as root on the host; ``advice`` where they do not suffice, or what makes them permanent.

    A line that can't be pasted as it is, None, spoils them all.
    """

    commands: tuple[Line | None, ...] = ()
    advice: str = ""


def is_built_in(rule: RuleRef) -> bool:
    """Whether a rule of iptables stands behind a chain of the kernel's own, in a table of its own: safe to print."""
    return rule.base in _CHAINS and rule.table in _TABLES


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same ports in as few spans as possible: neither nft nor iptables takes overlapping ones."""
    found: list[Span] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def port_words(ports: Iterable[Span], dash: str) -> list[str]:
    """Each span as a word, its ends joined by ``dash``."""
    return [str(low) if low == high else f"{low}{dash}{high}" for low, high in ports]
