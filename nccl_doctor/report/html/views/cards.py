"""What the diagnoses' templates read."""

from __future__ import annotations

from typing import NamedTuple


class Evidence(NamedTuple):
    """A line of what was seen; ``label`` is its first word, or a log's file and line."""

    label: str
    text: str


class CommandGroup(NamedTuple):
    """Lines to paste in one place, ``On node1, as root:``; ``hidden`` where they can't be shown as they are."""

    place: str
    lines: tuple[str, ...]
    hidden: bool


class Follows(NamedTuple):
    """What merely follows from a diagnosis."""

    message: str
    code: str
    name: str
    on: str


class Card(NamedTuple):
    """A diagnosis."""

    severity: str
    code: str
    name: str
    where: str
    message: str
    evidence: tuple[Evidence, ...]
    facts: tuple[tuple[str, str], ...]
    follows: tuple[Follows, ...]
    remedy: str
    groups: tuple[CommandGroup, ...]
