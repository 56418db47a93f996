"""gloo's connections to 127.x: between hosts their names are the fault, within one host they are as they should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nccl_doctor.logs.event import Event
from nccl_doctor.logs.rule import Grade
from nccl_doctor.text.inet import numeric


def within_one_host(events: Sequence[Event]) -> list[Event]:
    """The events; where ranks had met at 127.x and then lost each other, a later dial there was but refused."""
    lost = min((e.order for e in events if e.name == "peer-died" and _of_gloo(e)), default=None)
    first = min((e.order for e in events if e.name == "hostname-loopback"), default=0)
    if lost is None or lost > first:
        return [*events]
    return [
        replace(event, name="connection-refused", grade=Grade.SYMPTOM)
        if event.name == "hostname-loopback" and _of_gloo(event)
        else event
        for event in events
    ]


def _of_gloo(event: Event) -> bool:
    address = numeric(event.address.ip or "")
    return address is not None and address.is_loopback and "loo" in event.text
