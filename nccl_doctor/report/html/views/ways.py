"""What the templates of NCCL's ways read: the interfaces that it chose, and the ring."""

from __future__ import annotations

from typing import NamedTuple


class Chosen(NamedTuple):
    """A host and what NCCL uses there; ``wrong`` names the diagnosis that speaks against it."""

    host: str
    interface: str
    address: str
    wrong: str


class Net(NamedTuple):
    """Hosts whose chosen addresses share a net: how many, and each of them, or those alike together."""

    name: str
    size: int
    hosts: tuple[Chosen, ...]


class Stop(NamedTuple):
    """A host on the ring, and the words beside it."""

    x: float
    y: float
    label: str
    anchor: str
    label_x: float
    label_y: float
    blamed: bool


class Hop(NamedTuple):
    """From one host of the ring to the next; ``failed`` where the mesh says that it can't."""

    x1: float
    y1: float
    x2: float
    y2: float
    failed: bool


class Ring(NamedTuple):
    """The ring over which an all-reduce goes; ``known`` is what is known of its speed."""

    title: str
    words: str
    width: float
    height: float
    stops: tuple[Stop, ...]
    hops: tuple[Hop, ...]
    known: tuple[str, ...]
