"""Reads nccl-doctor's own hosts files in YAML, and hostfiles of MPI and DeepSpeed, which have one host per line.

Example lines are ``node1 slots=8 max_slots=16`` for Open MPI, ``node1:8`` for MPICH, and ``worker-0 slots=4`` for
DeepSpeed. In a PBS node file ($PBS_NODEFILE), a host name is repeated for each rank.

Host name patterns are expanded in the value of ``-w``, in Slurm's node list, and in each line of a file.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from nccl_doctor.inventory import values
from nccl_doctor.inventory.sources import Entry, ParsedInventory, Settings, Sourced, SourceLocation
from nccl_doctor.inventory.values import host, user
from nccl_doctor.inventory.yaml_tree import Mapping, Tree, as_list, as_mapping, as_text
from nccl_doctor.model.engines.containers import RUNTIMES, InsideOptions
from nccl_doctor.text.hostlist import MAX_HOSTS, expand, quoted


def expanded(pattern: str, place: SourceLocation, limit: int = MAX_HOSTS) -> list[str]:
    """Expand a pattern with :func:`nccl_doctor.text.hostlist.expand`, and include ``place`` in error messages."""
    try:
        return expand(pattern, limit=limit)
    except ValueError as error:
        raise place.error(str(error)) from None


def named(
    pattern: str, place: SourceLocation, host_settings: Settings, shared: Settings, limit: int = MAX_HOSTS
) -> list[Entry]:
    """Return the hosts that a pattern names.

    The ``user@`` prefix of a name sets the login user.
    """
    entries = []
    for text in expanded(pattern, place, limit):
        login, at, name = text.rpartition("@")
        settings = replace(host_settings, user=Sourced(user(login, place), place)) if at else host_settings
        address = Sourced(host(name, place), place)
        entries.append(Entry(address, address, settings, shared))
    return entries


_OPTION = re.compile(r"([A-Za-z_-]+)\s*=\s*(\S+)\s*")
_COUNTED = re.compile(r"([^:]+):([0-9]+)")


def read_hostfile(text: str, place: SourceLocation) -> ParsedInventory:
    """Read a hostfile of MPI or DeepSpeed; raise an error at the first invalid line."""
    entries: list[Entry] = []
    for number, line in enumerate(text.split("\n"), start=1):
        here, (host, *rest) = place.at(number), line.partition("#")[0].split(maxsplit=1) or [""]
        if not host:
            continue
        counted = _COUNTED.fullmatch(host)
        slots = _options("".join(rest).strip(), here).get("slots", counted and counted[2])
        settings = Settings(nproc_per_node=None if slots is None else Sourced(values.nproc(slots, here), here))
        entries += named(counted[1] if counted else host, here, settings, Settings(), MAX_HOSTS - len(entries))
    if not entries:
        raise place.error("names no host; a line of a hostfile is node1 slots=8")
    return ParsedInventory(place, _counted(entries))


def _options(text: str, place: SourceLocation) -> dict[str, str]:
    options: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _OPTION.match(text, position)
        if match is None or match[1].replace("-", "_") not in ("slots", "max_slots"):
            wrong = text[position:].split(maxsplit=1)[0]
            hint = "a hostfile has lines like node1, node1 slots=8 or node1:8"
            raise place.error(f"{quoted(wrong)} is not understood; {hint}")
        options[match[1]] = match[2]
        position = match.end()
    return options


def _counted(entries: list[Entry]) -> list[Entry]:
    """Merge repeated hosts as in PBS, where a name that is listed n times has n ranks.

    A repeated name with slots is not merged, and is later refused as a duplicate.
    """
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
TOP_KEYS = ("master_addr", "master_port", *_FOR_ALL, "same", "engine", "hosts")
HOST_KEYS = ("name", "address", *_FOR_ALL, "cuda_visible_devices")
MAX_SAME = 100
SSH_KEYS = ("user", "port", "identity_file")


def read(tree: Tree, place: SourceLocation) -> ParsedInventory:
    """Read a hosts file in nccl-doctor's own format; raise an error at the first invalid line."""
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
    same = as_list(keys["same"][1], '"same"') if "same" in keys else []
    if len(same) > MAX_SAME:
        most = f"at most {MAX_SAME} are allowed, and a folder is one"
        raise keys["same"][1].place.error(f'"same" names {len(same)} paths; {most}')
    paths = tuple(Sourced(values.path(as_text(path, "a path"), path.place), path.place) for path in same)
    address, port = _value(keys, "master_addr", values.host, ""), _value(keys, "master_port", values.port, "")
    engine = _value(keys, "engine", values.engine, "")
    return ParsedInventory(place, entries, address, port, paths, engine)


def _host(tree: Tree, shared: Settings, limit: int) -> list[Entry]:
    if not isinstance(tree, Mapping):
        return named(as_text(tree, "a host"), tree.place, Settings(), shared, limit)
    keys = _known(tree, "a host", HOST_KEYS)
    if "name" not in keys and "address" not in keys:
        raise tree.place.error('the host has no name; write "name", "address" or both')
    settings = _settings(keys, "")
    names = _names(keys, "name" if "name" in keys else "address", limit)
    addresses = _names(keys, "address" if "address" in keys else "name", limit)
    if len(names) != len(addresses):
        counts = f'"name" stands for {len(names)} hosts and "address" for {len(addresses)}'
        raise tree.place.error(f"{counts}; give as many names as addresses")
    return [Entry(name, address, settings, shared) for name, address in zip(names, addresses, strict=True)]


def _names(keys: Keys, key: str, limit: int) -> list[Sourced[str]]:
    _, tree = keys[key]
    texts = expanded(as_text(tree, quoted(key)), tree.place, limit)
    for text in texts:
        if "@" in text:
            hint = "the user stands apart, as in ssh: {user: ubuntu}"
            raise tree.place.error(f"{quoted(text)} is not a host name; {hint}")
    return [Sourced(values.host(text, tree.place), tree.place) for text in texts]


def _settings(keys: Keys, note: str) -> Settings:
    ssh = _known(keys["ssh"][1], '"ssh"', SSH_KEYS) if "ssh" in keys else {}
    env = {}
    for name, (place, value) in (as_mapping(keys["env"][1], '"env"') if "env" in keys else {}).items():
        values.variable(name, place)
        text = values.variable_value(as_text(value, quoted(name)), value.place)
        env[name] = Sourced(text, value.place.noted(note))
    return Settings(
        python=_value(keys, "python", values.python, note),
        user=_value(ssh, "user", values.user, note),
        port=_value(ssh, "port", values.port, note),
        identity_file=_value(ssh, "identity_file", values.path, note),
        nproc_per_node=_value(keys, "nproc_per_node", values.nproc_per_node, note),
        cuda_visible_devices=_value(keys, "cuda_visible_devices", values.devices, note),
        inside=_inside(keys["inside"][1], note) if "inside" in keys else None,
        env=env,
    )


def _value(keys: Keys, key: str, check: Callable[[str, SourceLocation], T], note: str) -> Sourced[T] | None:
    if key not in keys:
        return None
    _, tree = keys[key]
    return Sourced(check(as_text(tree, quoted(key)), tree.place), tree.place.noted(note))


def _inside(tree: Tree, note: str) -> Sourced[InsideOptions]:
    keys = _known(tree, '"inside"', RUNTIMES)
    if len(keys) != 1:
        raise tree.place.error(f'"inside" names one container, as in inside: {{docker: NAME}}; it has {len(keys)} keys')
    ((runtime, (_, value)),) = keys.items()
    options = values.inside(runtime, as_text(value, quoted(runtime)), value.place)
    return Sourced(options, value.place.noted(note))


def _known(tree: Tree, what: str, allowed: tuple[str, ...]) -> Keys:
    keys = as_mapping(tree, what)
    for key, (place, _) in keys.items():
        if key in allowed:
            continue
        if key in {*TOP_KEYS, *HOST_KEYS, *SSH_KEYS}:
            home = "at the top of the file" if key in TOP_KEYS else "on a host" if key in HOST_KEYS else 'under "ssh"'
            raise place.error(f"the key {quoted(key)} can't stand here; it stands {home}")
        near = difflib.get_close_matches(key[:100], allowed, n=1)
        hint = f"did you mean {quoted(near[0])}?" if near else f"allowed are {', '.join(allowed)}"
        if key.isdigit():  # {cuda_visible_devices: 0,1} gives the keys "cuda_visible_devices" and "1"
            hint = 'between { } a value with a comma needs quotes, as in "0,1"'
        raise place.error(f"unknown key {quoted(key)}; {hint}")
    return keys
