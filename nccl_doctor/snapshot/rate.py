"""How fast each pair of hosts was, on each rail, and what the links under them are."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import Field, model_validator

from nccl_doctor.model.base import NOT_ASKED, Clipped, Count, HostAddress, InterfaceName, Observed, Seconds, skipped

Share = Annotated[float, Field(ge=0, le=1)]
Gbps = Annotated[float, Field(ge=0, le=1e6)]

NO_RATES = skipped(f"{NOT_ASKED} (--rate)")

BUSY = 0.5  # of the time; a sender that the network holds up sleeps
WINDOW = 0.3
INTERRUPTS = 0.8
STOLEN = 0.3


class Figures(Observed):
    """The streams of one host to another, over a window after slow start (probe/mesh/rate.py)."""

    gbps: Gbps  # 10⁹ bits a second that the other kernel acknowledged
    seconds: Seconds
    streams: Count
    rtt_us: Count  # of packets under this load, as TCP smooths it
    retransmits: Count
    segments: Count  # sent, those that were sent again included
    dropped: Count = 0  # packets, by the sender's own queues (tc -s qdisc), slow start included
    # shares of the time: the sending thread ran or waited for a CPU, the reader's window was full, and the sender's
    # busiest CPU did nothing but interrupts, or its most robbed one was lent to another machine
    sender_busy: Share
    reader_late: Share
    interrupts: Share
    stolen: Share

    @property
    def loss(self) -> float:
        """The part of its segments that the network lost; none where the sender's own queue was full."""
        return min(self.retransmits / self.segments, 1.0) if self.segments and not self.dropped else 0.0

    @property
    def reader_is_late(self) -> bool:
        """True where the receiving machine was the limit."""
        return self.sender_busy < BUSY and self.reader_late >= WINDOW

    @property
    def limited(self) -> str | None:
        """The machine's part that was the limit, as a phrase; None where it was the network."""
        if self.sender_busy >= BUSY:
            return f"the sender wanted a CPU {100 * self.sender_busy:.0f} % of the time"
        if self.reader_late >= WINDOW:
            return f"the receiver took too long to read {100 * self.reader_late:.0f} % of the time"
        if self.interrupts >= INTERRUPTS:
            return f"a CPU of the sender did nothing but interrupts {100 * self.interrupts:.0f} % of the time"
        if self.stolen >= STOLEN:
            return f"the hypervisor lent the sender's CPU to others {100 * self.stolen:.0f} % of the time"
        return None


class PairRate(Figures):
    """The rate of one rail from ``src`` to ``dst``, whose address is there; ``alone``: nobody else sent meanwhile."""

    src: str
    dst: str
    rail: Count  # the place of ``interface`` among those that NCCL uses on ``src``
    interface: InterfaceName
    peer_interface: InterfaceName
    address: HostAddress
    alone: bool = False


class RateLink(Observed):
    """An interface as its driver tells of it; None what it does not tell."""

    interface: InterfaceName
    speed_mbps: Count | None = None
    duplex: Annotated[str, Field(pattern="^(half|full)$")] | None = None
    offloads: Annotated[dict[str, bool], Field(max_length=8)] = Field(default_factory=dict)


class LostRate(Observed):
    """A pair that could not be measured, and why."""

    src: str
    dst: str
    rail: Count
    error: Clipped


class Rates(Observed):
    """Every pair, or a sample, each at most twice: beside the others, and where that looked slow, alone."""

    hosts: tuple[str, ...]
    rounds: Count
    whole: bool  # every pair was to be measured
    rates: tuple[PairRate, ...]
    lost: tuple[LostRate, ...] = ()
    links: dict[str, tuple[RateLink, ...]] = Field(default_factory=dict)  # by host, of its rails

    @model_validator(mode="after")
    def _between_its_hosts(self) -> Rates:
        measured: tuple[PairRate | LostRate, ...] = (*self.rates, *self.lost)
        ends = [(one.src, one.dst) for one in measured]
        if not {name for pair in ends for name in pair} | self.links.keys() <= set(self.hosts):
            raise ValueError("a rate of a host that took no part")
        if any(src == dst for src, dst in ends):
            raise ValueError("a rate of a host to itself")
        return self

    def among(self, names: Collection[str]) -> Rates:
        """Return the rates of these hosts only."""
        kept = tuple(name for name in self.hosts if name in names)
        return self.model_copy(
            update={
                "hosts": kept,
                "rates": tuple(one for one in self.rates if one.src in kept and one.dst in kept),
                "lost": tuple(one for one in self.lost if one.src in kept and one.dst in kept),
                "links": {name: links for name, links in self.links.items() if name in kept},
            }
        )

    @property
    def final(self) -> dict[tuple[str, str, int], PairRate]:
        """By pair and rail, the measure that counts: the one without others beside it, where there is one."""
        found: dict[tuple[str, str, int], PairRate] = {}
        for one in self.rates:
            if one.alone or (one.src, one.dst, one.rail) not in found:
                found[one.src, one.dst, one.rail] = one
        return found

    def link(self, host: str, interface: str) -> RateLink | None:
        """Return the link of a host's interface, where it told of it."""
        return next((one for one in self.links.get(host, ()) if one.interface == interface), None)
