"""Questions about a snapshot: a judgement asks them, and :mod:`nccl_doctor.collect` contacts hosts to answer them."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_doctor.model.report import FailedDial


@dataclass(frozen=True)
class OtherNetworks:
    """The networks over which the hosts of these failed dials can connect."""

    dials: tuple[FailedDial, ...]


@dataclass(frozen=True)
class SlowRails:
    """The rates of these rails while nobody else is sending. Each rail has its sender, its receiver and its number."""

    rails: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class FaultyGroup:
    """The hosts that fail the all-reduce by themselves."""


Question = OtherNetworks | SlowRails | FaultyGroup
