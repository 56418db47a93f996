"""Questions about a snapshot that :mod:`nccl_doctor.collect` answers by contacting the hosts again."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_doctor.model.report import FailedDial


@dataclass(frozen=True)
class OtherNetworks:
    """The question of whether hosts that failed to connect to each other can connect over other networks."""

    dials: tuple[FailedDial, ...]


@dataclass(frozen=True)
class SlowRails:
    """The question of how fast certain rails are while no other host is sending.

    Each rail is identified by a sender, a receiver and a number.
    """

    rails: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class FaultyGroup:
    """The question of which host or pair of hosts makes the all-reduce fail.

    To answer the question, nccl-doctor repeats the all-reduce in smaller groups of hosts.
    """


Question = OtherNetworks | SlowRails | FaultyGroup
