"""Hostfiles of MPI and DeepSpeed: a host a line, with the number of its ranks.

Open MPI (orte_hosts(7)): ``node1 slots=8 max_slots=16``; MPICH (hydra): ``node1:8``; DeepSpeed (launcher/runner.py):
``worker-0 slots=4``; PBS ($PBS_NODEFILE) repeats the name for each rank.

Hosts named by a pattern, as behind ``-w``, in Slurm's list, and in a line of a file.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from nccl_doctor.inventory import values
from nccl_doctor.inventory.parsed import Entry, ParsedInventory, Settings, Sourced, SourceLocation
from nccl_doctor.inventory.values import host, user
from nccl_doctor.text.hostlist import MAX_HOSTS, expand, quoted


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


_OPTION = re.compile(r"([A-Za-z_-]+)\s*=\s*(\S+)\s*")
_COUNTED = re.compile(r"([^:]+):([0-9]+)")


def read(text: str, place: SourceLocation) -> ParsedInventory:
    """What a hostfile says.

    Raises:
        HostsFileError: at the first line that is not as it has to be.
    """
    entries: list[Entry] = []
    for number, line in enumerate(text.split("\n"), start=1):
        meant = line.partition("#")[0].strip()
        if meant:
            entries += _line(meant, place.at(number), MAX_HOSTS - len(entries))
    if not entries:
        raise place.error("names no host; a line of a hostfile is node1 slots=8")
    return ParsedInventory(place, _counted(entries))


def _line(line: str, place: SourceLocation, limit: int) -> list[Entry]:
    host, *rest = line.split(maxsplit=1)
    slots = None
    counted = _COUNTED.fullmatch(host)
    if counted:
        host, slots = counted[1], counted[2]
    for key, value in _options(rest[0] if rest else "", place).items():
        if key == "slots":
            slots = value
    own = Settings() if slots is None else Settings(nproc_per_node=Sourced(values.nproc(slots, place), place))
    return named(host, place, own, Settings(), limit)


def _options(text: str, place: SourceLocation) -> dict[str, str]:
    options: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _OPTION.match(text, position)
        if match is None or match[1].replace("-", "_") not in ("slots", "max_slots"):
            wrong = text[position:].split(maxsplit=1)[0]
            raise place.error(
                f"{quoted(wrong)} is not understood; a hostfile has lines like node1, node1 slots=8 or node1:8"
            )
        options[match[1]] = match[2]
        position = match.end()
    return options


def _counted(entries: list[Entry]) -> list[Entry]:
    """As PBS means it: a bare name that stands n times has n ranks. With slots it stays, and is refused as a double."""
    times = Counter(entry.name.value for entry in entries)
    with_slots = {entry.name.value for entry in entries if entry.own.nproc_per_node}
    first: dict[int | str, Entry] = {}
    for index, entry in enumerate(entries):
        name, place = entry.name.value, entry.name.place
        if times[name] == 1 or name in with_slots:
            first[index] = entry
        elif name not in first:
            ranks = Sourced(values.nproc(str(times[name]), place), place.noted("the times it stands there"))
            first[name] = replace(entry, own=replace(entry.own, nproc_per_node=ranks))
    return list(first.values())
