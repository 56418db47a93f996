"""Measured transfer rates between pairs of hosts on each rail, and the network interfaces that the transfers use."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import Field, model_validator

from nccl_doctor.model.base import NOT_ASKED, Clipped, Count, HostAddress, InterfaceName, Observed, Seconds, skipped

Share = Annotated[float, Field(ge=0, le=1)]
Gbps = Annotated[float, Field(ge=0, le=1e6)]

NO_RATES = skipped(f"{NOT_ASKED} (--rate)")

BUSY = 0.5  # share of the time; a sender that the network slows down sleeps
WINDOW = 0.3
INTERRUPTS = 0.8
STOLEN = 0.3


class Figures(Observed):
    """Measurements of TCP streams between two hosts, taken in a time window after slow start (probe/mesh/rate.py)."""

    gbps: Gbps  # 10⁹ bits per second acknowledged by the other kernel
    seconds: Seconds
    streams: Count
    rtt_us: Count  # round-trip time under this load, as TCP smooths it
    retransmits: Count
    segments: Count  # segments sent, with retransmissions
    dropped: Count = 0  # packets dropped by the sender's own queues (tc -s qdisc), with slow start
    # shares of the time: the sending thread ran or waited for a CPU; the receiver's window was full; the sender's
    # busiest CPU did only interrupts, or its most stolen one was lent to another virtual machine
    sender_busy: Share
    reader_late: Share
    interrupts: Share
    stolen: Share

    @property
    def loss(self) -> float:
        """The estimated share of segments that the network lost, or 0 if the sender's own queues dropped packets."""
        return min(self.retransmits / self.segments, 1.0) if self.segments and not self.dropped else 0.0

    @property
    def reader_is_late(self) -> bool:
        """True if the receiving machine limited the rate."""
        return self.sender_busy < BUSY and self.reader_late >= WINDOW

    @property
    def limited(self) -> str | None:
        """A phrase that describes how one of the hosts limited the rate, or None if the network limited the rate."""
        if self.sender_busy >= BUSY:
            return f"the sender wanted a CPU {100 * self.sender_busy:.0f}% of the time"
        if self.reader_late >= WINDOW:
            return f"the receiver took too long to read {100 * self.reader_late:.0f}% of the time"
        if self.interrupts >= INTERRUPTS:
            return f"a CPU of the sender did nothing but interrupts {100 * self.interrupts:.0f}% of the time"
        if self.stolen >= STOLEN:
            return f"the hypervisor lent the sender's CPU to others {100 * self.stolen:.0f}% of the time"
        return None


class PairRate(Figures):
    """The rate on one rail from ``src`` to an address of ``dst``.

    ``alone`` is true if no other host was sending during the measurement.
    """

    src: str
    dst: str
    rail: Count  # index of ``interface`` among those that NCCL uses on ``src``
    interface: InterfaceName
    peer_interface: InterfaceName
    address: HostAddress
    alone: bool = False


class RateLink(Observed):
    """The properties of a network interface as reported by its driver. Unknown properties are None."""

    interface: InterfaceName
    speed_mbps: Count | None = None
    duplex: Annotated[str, Field(pattern="^(half|full)$")] | None = None
    offloads: Annotated[dict[str, bool], Field(max_length=8)] = Field(default_factory=dict)


class LostRate(Observed):
    """A pair of hosts whose rate could not be measured, and the reason."""

    src: str
    dst: str
    rail: Count
    error: Clipped


class Rates(Observed):
    """The rates of all pairs of hosts, or of a sample of pairs, each measured once or twice.

    The first measurement of a pair runs in parallel with the measurements of other pairs. If the rate is low, the pair
    is measured again while no other host is sending.
    """

    hosts: tuple[str, ...]
    rounds: Count
    whole: bool  # every pair was to be measured
    rates: tuple[PairRate, ...]
    lost: tuple[LostRate, ...] = ()
    links: dict[str, tuple[RateLink, ...]] = Field(default_factory=dict)  # by host, for its rails

    @model_validator(mode="after")
    def _between_its_hosts(self) -> Rates:
        measured: tuple[PairRate | LostRate, ...] = (*self.rates, *self.lost)
        ends = [(rate.src, rate.dst) for rate in measured]
        if not {name for pair in ends for name in pair} | self.links.keys() <= set(self.hosts):
            raise ValueError("a rate of a host that took no part")
        if any(src == dst for src, dst in ends):
            raise ValueError("a rate of a host to itself")
        return self

    def among(self, names: Collection[str]) -> Rates:
        """Return a copy that contains only the rates between the hosts in ``names``."""
        kept = tuple(name for name in self.hosts if name in names)
        return self.model_copy(
            update={
                "hosts": kept,
                "rates": tuple(rate for rate in self.rates if rate.src in kept and rate.dst in kept),
                "lost": tuple(rate for rate in self.lost if rate.src in kept and rate.dst in kept),
                "links": {name: links for name, links in self.links.items() if name in kept},
            }
        )

    @property
    def final(self) -> dict[tuple[str, str, int], PairRate]:
        """The final measurement for each (source, target, rail).

        A measurement that was taken while no other host was sending takes precedence over a parallel measurement.
        """
        rates: dict[tuple[str, str, int], PairRate] = {}
        for rate in self.rates:
            if rate.alone or (rate.src, rate.dst, rate.rail) not in rates:
                rates[rate.src, rate.dst, rate.rail] = rate
        return rates

    def link(self, host: str, interface: str) -> RateLink | None:
        return next((link for link in self.links.get(host, ()) if link.interface == interface), None)
