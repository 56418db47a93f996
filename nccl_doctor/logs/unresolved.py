"""Names that torch asked for in vain: it warns alike of one without an IPv6 address and of one without any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from nccl_doctor.logs.event import Event
from nccl_doctor.logs.rule import Grade

CONNECTION = frozenset({"connection-refused", "connection-timed-out", "no-route-to-host"})
"""A connection that failed, to a name or an address that was known."""

RETRIED = CONNECTION | {"rendezvous-timeout"}
"""What processes that look for the master say."""

_AGAIN = 3
"""A name of an address is asked for once for each kind of address, and then dialled (c10d/socket.cpp, tryConnect)."""


def never_resolved(events: Sequence[Event]) -> list[Event]:
    """The events; a name that was asked for until the time ran out, and never dialled, is the cause."""
    dialled = {event.address.host for event in events if event.name in CONNECTION}
    given_up = {event.address.host for event in events if event.name == "rendezvous-timeout"}
    asked = Counter(event.address.host for event in events if _asks(event))
    unknown = {host for host, times in asked.items() if times >= _AGAIN and host in given_up - dialled}
    return [replace(e, grade=Grade.ROOT) if _asks(e) and e.address.host in unknown else e for e in events]


def _asks(event: Event) -> bool:
    return event.name == "hostname-unresolvable" and event.grade is Grade.HINT and event.address.host is not None
