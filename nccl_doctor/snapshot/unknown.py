"""Facts that nobody could look at, as types."""

from __future__ import annotations

from typing import Annotated, NoReturn, TypeVar

from pydantic import ConfigDict, Field

from nccl_doctor.model.base import Clipped, ClippedEnd, Observed

T = TypeVar("T")

MALFORMED = "malformed: "
"""So begins the reason where a host answered what is no such fact."""

PENDING = "not reached"
"""Why a phase was skipped that had not yet begun."""

NOT_ASKED = "not asked for"
"""So begins the reason where nobody wanted a phase."""


class Unknown(Observed):
    """Could not look: no permission, a tool that is missing, a time-out.

    Attributes:
        reason: a phrase that can stand behind "unknown: ".
        traceback: where a collector crashed, its own traceback.
    """

    model_config = ConfigDict(extra="ignore")  # tried on every fact: else each key of a known one would be an error

    reason: Clipped = Field(alias="$unknown")
    traceback: ClippedEnd | None = None

    @property
    def malformed(self) -> bool:
        """Whether the host did say something, and it was no such fact."""
        return self.reason.startswith(MALFORMED)

    @property
    def late(self) -> bool:
        """Whether only the time ran out, which a busy host has less of (nccl_doctor.probe.facts)."""
        return "no answer in " in self.reason

    def __bool__(self) -> NoReturn:
        raise TypeError(f"an unknown fact is neither true nor false: {self.reason}")


class Skipped(Observed):
    """Was not asked for, or does not apply: no gap in what was judged."""

    model_config = ConfigDict(extra="ignore")

    reason: Clipped = Field(alias="$skipped")

    @property
    def hindered(self) -> bool:
        """Whether a phase was wanted and its turn came, and a fault that was seen before spared it."""
        return self.reason != PENDING and not self.reason.startswith(NOT_ASKED)


def unknown(reason: str, traceback: str | None = None) -> Unknown:
    """An :class:`Unknown` by position."""
    return Unknown.model_validate({"$unknown": reason, "traceback": traceback})


def skipped(reason: str) -> Skipped:
    """A :class:`Skipped` by position."""
    return Skipped.model_validate({"$skipped": reason})


def known(fact: Unknown | Skipped | T) -> T:
    """A fact that a check needs, and therefore has.

    Raises:
        TypeError: it is not known: the check does not name it among its needs.
    """
    if isinstance(fact, (Unknown, Skipped)):
        raise TypeError(f"not among the needs: {fact.reason}")
    return fact


Fact = Annotated[Unknown | T, Field(union_mode="left_to_right")]


Phased = Annotated[Unknown | Skipped | T, Field(union_mode="left_to_right")]
