"""Our own hosts file: torchrun's words in YAML."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TypeVar

from nccl_doctor.errors import DoctorError
from nccl_doctor.inventory import values
from nccl_doctor.inventory.hostfiles import expanded, named
from nccl_doctor.inventory.parsed import Entry, ParsedInventory, Settings, Sourced, SourceLocation
from nccl_doctor.inventory.yaml_tree import Mapping, Tree, as_list, as_mapping, as_text
from nccl_doctor.text.hostlist import MAX_HOSTS, quoted
from nccl_doctor.transport.containers import RUNTIMES, InsideOptions

T = TypeVar("T")
Keys = dict[str, tuple[SourceLocation, Tree]]

_FOR_ALL = ("python", "ssh", "inside", "env", "nproc_per_node")
TOP_KEYS = ("master_addr", "master_port", *_FOR_ALL, "same", "hosts")
HOST_KEYS = ("name", "address", *_FOR_ALL, "cuda_visible_devices")
MAX_SAME = 100
SSH_KEYS = ("user", "port", "identity_file")


def read(tree: Tree, place: SourceLocation) -> ParsedInventory:
    """What a hosts file says.

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
        _said(keys, "master_addr", values.host, ""),
        _said(keys, "master_port", values.port, ""),
        _same(keys["same"][1]) if "same" in keys else (),
    )


def _same(tree: Tree) -> tuple[Sourced[str], ...]:
    """The files and folders that have to be the same on all hosts."""
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
        python=_said(keys, "python", values.python, note),
        user=_said(ssh, "user", values.user, note),
        port=_said(ssh, "port", values.port, note),
        identity_file=_said(ssh, "identity_file", values.path, note),
        nproc_per_node=_said(keys, "nproc_per_node", values.nproc, note),
        cuda_visible_devices=_said(keys, "cuda_visible_devices", values.devices, note),
        inside=_inside(keys["inside"][1], note) if "inside" in keys else None,
        env=_env(keys["env"][1], note) if "env" in keys else {},
    )


def _said(keys: Keys, key: str, check: Callable[[str, SourceLocation], T], note: str) -> Sourced[T] | None:
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
    """The keys of a mapping that may have only those in ``allowed``."""
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
