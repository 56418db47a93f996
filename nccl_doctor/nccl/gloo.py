"""Which of two hosts connects to the other in gloo, and whether that can work.

Of two ranks the one with the higher address connects to the lower one's, the bytes compared as memcmp(3) does, the port
where they are equal: gloo/transport/tcp/device.cc, ``Device::isInitiator``. So 127.0.0.1 is never dialled where it is
the higher of the two: a single host that gives it out still meets peers in 10.0.0.0/8, and none in 192.168.0.0/16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nccl_doctor.text.inet import address_of

Reaches = Callable[[str, str], bool]
"""Whether a host (its name) may reach an address."""


def lost_to(host: str, addresses: Mapping[str, str], reaches: Reaches) -> tuple[str, ...]:
    """The hosts with which gloo can't connect because of the address that ``host`` gives out.

    Args:
        host: one of ``addresses``.
        addresses: what gloo listens on, by host.
        reaches: asked of those that would connect to ``host``; never of loopback addresses.
    """
    own = address_of(addresses[host])
    found = []
    for name, text in addresses.items():
        other = address_of(text)
        if name == host:
            continue
        is_dialled = dials(text, addresses[host])
        misses = is_dialled and (own.is_loopback or not reaches(name, addresses[host]))
        if own.version != other.version or misses:
            found.append(name)
    return tuple(found)


def dials(own: str, other: str) -> bool:
    """Whether a host that listens on ``own`` connects to the other one's address, and not the other way round."""
    here, there = address_of(own), address_of(other)
    return here.version == there.version and here.packed >= there.packed
