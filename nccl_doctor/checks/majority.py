"""What hosts should share: the majority's value, and who has another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nccl_doctor.text.hostlist import fold, grouped


@dataclass(frozen=True)
class Difference:
    """A subject in which hosts differ.

    Attributes:
        groups: hosts by value, the most common value first.
        outliers: hosts that have not the most common value, in the hosts' order. Of two values that are as common,
            the one that comes first is taken for right.
    """

    subject: str
    groups: dict[str, list[str]]

    @property
    def outliers(self) -> tuple[str, ...]:
        """The hosts that differ from most."""
        _, *others = self.groups.values()
        return tuple(host for hosts in others for host in hosts)

    def __str__(self) -> str:
        return f"{self.subject}: " + ", ".join(f"{value} on {fold(hosts)}" for value, hosts in self.groups.items())


def difference(subject: str, values: Mapping[str, str]) -> Difference | None:
    """The difference among hosts' values; None where there is none."""
    groups = grouped((value, host) for host, value in values.items())
    if len(groups) < 2:
        return None
    return Difference(subject, dict(sorted(groups.items(), key=lambda item: -len(item[1]))))


def ordered(order: Mapping[str, object], hosts: set[str]) -> tuple[str, ...]:
    """These hosts in the order of the hosts file."""
    return tuple(name for name in order if name in hosts)
