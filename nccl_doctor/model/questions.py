"""Questions about a snapshot that :mod:`nccl_doctor.collect` answers by contacting the hosts again."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_doctor.model.report import FailedDial


@dataclass(frozen=True)
class OtherNetworks:
    """Asks over which networks the hosts of these failed connection attempts can reach each other."""

    dials: tuple[FailedDial, ...]


@dataclass(frozen=True)
class SlowRails:
    """Asks how fast these rails are while no other host sends. A rail has a sender, a receiver and a number."""

    rails: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class FaultyGroup:
    """Asks which hosts still fail if the all-reduce is repeated in smaller groups."""


Question = OtherNetworks | SlowRails | FaultyGroup
