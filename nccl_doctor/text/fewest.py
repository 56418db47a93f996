"""The fewest hosts that explain all pairs that failed: a host that is cut off, not those it can't talk to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

EXACT_UP_TO = 14
"""Hosts of one group up to which every choice is looked at; beyond, the host with the most failed peers goes first."""


@dataclass(frozen=True)
class Group:
    """Hosts that failed pairs connect.

    Attributes:
        hosts: all of them.
        guilty: the fewest of which one is in each pair; all of ``hosts`` where several such choices are as good.
    """

    hosts: frozenset[str]
    minimal_cover: frozenset[str]

    @property
    def is_certain(self) -> bool:
        """Whether some hosts explain the others' failures."""
        return self.minimal_cover != self.hosts


def groups(pairs: Iterable[tuple[str, str]]) -> Iterator[Group]:
    """The failed pairs, whichever way, taken apart into hosts that have nothing to do with each other."""
    peers: dict[str, set[str]] = {}
    for one, other in pairs:
        peers.setdefault(one, set()).add(other)
        peers.setdefault(other, set()).add(one)
    left = set(peers)
    while left:
        hosts, fresh = set[str](), {min(left)}
        while fresh:
            hosts |= fresh
            fresh = set().union(*(peers[name] for name in fresh)) - hosts
        left -= hosts
        yield Group(frozenset(hosts), _minimal_cover({name: peers[name] for name in hosts}))


def _minimal_cover(peers: dict[str, set[str]]) -> frozenset[str]:
    if len(peers) > EXACT_UP_TO:
        return _by_number(peers)
    for size in range(1, len(peers)):
        found = [set(some) for some in combinations(sorted(peers), size) if _explains(set(some), peers)]
        if found:
            return frozenset(found[0] if len(found) == 1 else peers)
    raise AssertionError("all hosts but one always explain every pair")


def _explains(some: set[str], peers: dict[str, set[str]]) -> bool:
    return all(others <= some for name, others in peers.items() if name not in some)


def _by_number(peers: dict[str, set[str]]) -> frozenset[str]:
    """Takes the host with the most failed peers until no pair is left; all where each has as many as any other."""
    if len({len(others) for others in peers.values()}) == 1:
        return frozenset(peers)
    left = {name: set(others) for name, others in peers.items()}
    minimal_cover: set[str] = set()
    while any(left.values()):
        worst = max(sorted(left), key=lambda name: len(left[name]))
        minimal_cover.add(worst)
        for other in left.pop(worst):
            left[other].discard(worst)
    return frozenset(minimal_cover)
