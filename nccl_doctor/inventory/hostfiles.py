"""Our own hosts file, torchrun's words in YAML, and hostfiles of MPI and DeepSpeed: a host a line, with its ranks.

Open MPI (orte_hosts(7)): ``node1 slots=8 max_slots=16``; MPICH (hydra): ``node1:8``; DeepSpeed (launcher/runner.py):
``worker-0 slots=4``; PBS ($PBS_NODEFILE) repeats the name for each rank.

Hosts named by a pattern, as behind ``-w``, in Slurm's list, and in a line of a file.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from nccl_doctor.errors import DoctorError
from nccl_doctor.inventory import values
from nccl_doctor.inventory.parsed import Entry, ParsedInventory, Settings, Sourced, SourceLocation
from nccl_doctor.inventory.values import host, user
from nccl_doctor.inventory.yaml_tree import Mapping, Tree, as_list, as_mapping, as_text
from nccl_doctor.text.hostlist import MAX_HOSTS, expand, quoted
from nccl_doctor.transport.containers import RUNTIMES, InsideOptions


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


def read_hostfile(text: str, place: SourceLocation) -> ParsedInventory:
    """Reads a hostfile of MPI or DeepSpeed.

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


T = TypeVar("T")
Keys = dict[str, tuple[SourceLocation, Tree]]

_FOR_ALL = ("python", "ssh", "inside", "env", "nproc_per_node")
TOP_KEYS = ("master_addr", "master_port", *_FOR_ALL, "same", "hosts")
HOST_KEYS = ("name", "address", *_FOR_ALL, "cuda_visible_devices")
MAX_SAME = 100
SSH_KEYS = ("user", "port", "identity_file")


def read(tree: Tree, place: SourceLocation) -> ParsedInventory:
    """Reads a hosts file of ours.

    Raises:
        HostsFileError: at the first line that is not as it has to be.
    """
    keys = _known(tree, "the hosts file", TOP_KEYS)
    shared = _settings(keys, "for all hosts")
    if "hosts" not in keys:
        raise place.error('no "hosts"; write "hosts:" and below it each host on a line that begins with "- "')
    _, listed = keys["hosts"]
    entries: list[Entry] = []
    for item in as_list(listed, '"hosts"'):
        entries += _host(item, shared, MAX_HOSTS - len(entries))
    if not entries:
        raise listed.place.error('"hosts" names no host; at least one is needed')
    return ParsedInventory(
        place,
        entries,
        _value(keys, "master_addr", values.host, ""),
        _value(keys, "master_port", values.port, ""),
        _same(keys["same"][1]) if "same" in keys else (),
    )


def _same(tree: Tree) -> tuple[Sourced[str], ...]:
    paths = as_list(tree, '"same"')
    if len(paths) > MAX_SAME:
        raise tree.place.error(f'"same" names {len(paths)} paths; at most {MAX_SAME} are allowed, and a folder is one')
    return tuple(Sourced(values.path(as_text(path, "a path"), path.place), path.place) for path in paths)


def _host(tree: Tree, shared: Settings, limit: int) -> list[Entry]:
    """The hosts of one part of the list: more than one where it holds a pattern."""
    if not isinstance(tree, Mapping):
        return named(as_text(tree, "a host"), tree.place, Settings(), shared, limit)
    keys = _known(tree, "a host", HOST_KEYS)
    if "name" not in keys and "address" not in keys:
        raise tree.place.error('the host has no name; write "name", "address" or both')
    own = _settings(keys, "")
    names = _names(keys, "name" if "name" in keys else "address", limit)
    addresses = _names(keys, "address" if "address" in keys else "name", limit)
    if len(names) != len(addresses):
        raise tree.place.error(
            f'"name" stands for {len(names)} hosts and "address" for {len(addresses)}; give as many names as addresses'
        )
    return [Entry(name, address, own, shared) for name, address in zip(names, addresses, strict=True)]


def _names(keys: Keys, key: str, limit: int) -> list[Sourced[str]]:
    _, tree = keys[key]
    texts = expanded(as_text(tree, quoted(key)), tree.place, limit)
    for text in texts:
        if "@" in text:
            raise tree.place.error(
                f"{quoted(text)} is no host name; the user stands apart, as in ssh: {{user: ubuntu}}"
            )
    return [Sourced(values.host(text, tree.place), tree.place) for text in texts]


def _settings(keys: Keys, note: str) -> Settings:
    ssh = _known(keys["ssh"][1], '"ssh"', SSH_KEYS) if "ssh" in keys else {}
    return Settings(
        python=_value(keys, "python", values.python, note),
        user=_value(ssh, "user", values.user, note),
        port=_value(ssh, "port", values.port, note),
        identity_file=_value(ssh, "identity_file", values.path, note),
        nproc_per_node=_value(keys, "nproc_per_node", values.nproc, note),
        cuda_visible_devices=_value(keys, "cuda_visible_devices", values.devices, note),
        inside=_inside(keys["inside"][1], note) if "inside" in keys else None,
        env=_env(keys["env"][1], note) if "env" in keys else {},
    )


def _value(keys: Keys, key: str, check: Callable[[str, SourceLocation], T], note: str) -> Sourced[T] | None:
    if key not in keys:
        return None
    _, tree = keys[key]
    return Sourced(check(as_text(tree, quoted(key)), tree.place), tree.place.noted(note))


def _inside(tree: Tree, note: str) -> Sourced[InsideOptions]:
    """``{docker: NAME}``: one runtime, and the container's name."""
    keys = _known(tree, '"inside"', RUNTIMES)
    if len(keys) != 1:
        raise tree.place.error(f'"inside" names one container, as in inside: {{docker: NAME}}; it has {len(keys)} keys')
    ((runtime, (_, value)),) = keys.items()
    options = values.inside(runtime, as_text(value, quoted(runtime)), value.place)
    return Sourced(options, value.place.noted(note))


def _env(tree: Tree, note: str) -> dict[str, Sourced[str]]:
    env = {}
    for name, (place, value) in as_mapping(tree, '"env"').items():
        values.variable(name, place)
        text = values.variable_value(as_text(value, quoted(name)), value.place)
        env[name] = Sourced(text, value.place.noted(note))
    return env


def _known(tree: Tree, what: str, allowed: tuple[str, ...]) -> Keys:
    keys = as_mapping(tree, what)
    for key, (place, _) in keys.items():
        if key not in allowed:
            raise _unknown_key(key, place, allowed)
    return keys


def _unknown_key(key: str, place: SourceLocation, allowed: tuple[str, ...]) -> DoctorError:
    if key in TOP_KEYS or key in HOST_KEYS or key in SSH_KEYS:
        home = "at the top of the file" if key in TOP_KEYS else "on a host" if key in HOST_KEYS else 'under "ssh"'
        return place.error(f"the key {quoted(key)} can't stand here; it stands {home}")
    if key.isdigit():  # {cuda_visible_devices: 0,1} gives the keys "cuda_visible_devices" and "1"
        return place.error(f'unknown key {quoted(key)}; between {{ }} a value with a comma needs quotes, as in "0,1"')
    near = difflib.get_close_matches(key[:100], allowed, n=1)
    help_ = f"did you mean {quoted(near[0])}?" if near else f"allowed are {', '.join(allowed)}"
    return place.error(f"unknown key {quoted(key)}; {help_}")
