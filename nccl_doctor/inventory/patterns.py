"""Hosts named by a pattern, as behind ``-w``, in Slurm's list, and in a line of a file."""

from __future__ import annotations

from dataclasses import replace

from nccl_doctor.inventory.parsed import Entry, Settings, Sourced, SourceLocation
from nccl_doctor.inventory.values import host, user
from nccl_doctor.text.hostlist import MAX_HOSTS, expand


def expanded(pattern: str, place: SourceLocation, limit: int = MAX_HOSTS) -> list[str]:
    """:func:`nccl_doctor.text.hostlist.expand`, whose errors tell the place."""
    try:
        return expand(pattern, limit=limit)
    except ValueError as error:
        raise place.error(str(error)) from None


def named(pattern: str, place: SourceLocation, own: Settings, shared: Settings, limit: int = MAX_HOSTS) -> list[Entry]:
    """The hosts that a pattern names, each its own address; ``user@`` before a name says whom to log in as."""
    entries = []
    for text in expanded(pattern, place, limit):
        login, at, name = text.rpartition("@")
        settings = replace(own, user=Sourced(user(login, place), place)) if at else own
        said = Sourced(host(name, place), place)
        entries.append(Entry(said, said, settings, shared))
    return entries
