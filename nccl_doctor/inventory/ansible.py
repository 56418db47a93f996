"""Reads Ansible inventories in INI and YAML format, with their groups, group variables and hosts in file order.

INI files have the sections ``[group]``, ``[group:children]`` and ``[group:vars]``, and YAML files have groups with the
keys ``hosts``, ``children`` and ``vars``. Ranges in host names contain colons, as in ``node[01:04]``. Only the
variables that configure the connection to a host are read. The order of precedence follows "How to build your
inventory" in Ansible's documentation. Host variables override group variables, and group_vars files override the
inventory. A child group overrides its parent group. Among groups at the same level, the variables of the group that is
last in alphabetical order are used.
"""

from __future__ import annotations

import itertools
import re
import shlex
import string
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from nccl_doctor.errors import DoctorError
from nccl_doctor.inventory import values
from nccl_doctor.inventory.sources import Entry, ParsedInventory, Settings, Sourced, SourceLocation, read_text
from nccl_doctor.inventory.yaml_tree import Mapping, Scalar, Tree, as_mapping, as_text, parse
from nccl_doctor.text.hostlist import MAX_HOSTS, quoted

_RANGE = re.compile(r"\[([0-9]{1,9}|[a-zA-Z]):([0-9]{1,9}|[a-zA-Z])(?::([0-9]{1,9}))?\]")


def expand(pattern: str, place: SourceLocation) -> list[str]:
    """Expand Ansible's ranges, such as ``node[01:04]``, ``db-[a:c]`` or ``[1:9:2]``, to at most 65,536 names."""
    parts: list[list[str]] = []
    position, count = 0, 1
    for match in _RANGE.finditer(pattern):
        choices = _choices(match, place)
        count *= len(choices)
        if count > MAX_HOSTS:
            raise place.error(f"{quoted(pattern)} stands for {count} hosts or more; at most {MAX_HOSTS} are allowed")
        parts += [[pattern[position : match.start()]], list(choices)]
        position = match.end()
    rest = pattern[position:]
    if "[" in rest or "]" in rest:
        raise place.error(f"{quoted(pattern)} has a bracket that is not an Ansible range, such as node[01:04]")
    return ["".join(name) for name in itertools.product(*parts, [rest])]


def _choices(match: re.Match[str], place: SourceLocation) -> list[str]:
    low, high, step = match[1], match[2], int(match[3] or 1)
    letters = string.ascii_letters
    if low.isdigit() != high.isdigit() or step == 0 or (low[0] == "0" and low != "0" and len(low) != len(high)):
        raise place.error(
            f"{quoted(match[0])} is not a range: two numbers, padded alike, or two letters, as in [01:04]"
        )
    first, last = (int(low), int(high)) if low.isdigit() else (letters.index(low), letters.index(high))
    if last < first:
        raise place.error(f"the range {quoted(match[0])} runs backwards; write the smaller end first")
    steps = range(first, last + 1, step)
    if len(steps) > MAX_HOSTS:
        raise place.error(f"{quoted(match[0])} stands for {len(steps)} hosts; at most {MAX_HOSTS} are allowed")
    if not low.isdigit():
        return [letters[n] for n in steps]
    return [f"{n:0{len(low) if low[0] == '0' else 1}d}" for n in steps]


T = TypeVar("T")

MAX_GROUPS = 1000
MAX_MEMBERS = 4 * MAX_HOSTS  # a host may be in several groups; all groups together have at most this many members

_HOST = ("ansible_host", "ansible_ssh_host")
_USER = ("ansible_user", "ansible_ssh_user")
_PORT = ("ansible_port", "ansible_ssh_port")
_KEY = ("ansible_ssh_private_key_file", "ansible_private_key_file")
_PYTHON = ("ansible_python_interpreter",)
_CONNECTION = ("ansible_connection",)
ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
WANTED = frozenset((*_HOST, *_USER, *_PORT, *_KEY, *_PYTHON, *_CONNECTION, *ARGUMENTS))

AnsibleVariables = dict[str, Sourced[str]]


@dataclass
class Group:
    """A group with its hosts, child groups and variables. ``filed`` contains the variables from group_vars files."""

    hosts: list[str] = field(default_factory=list)
    children: dict[str, SourceLocation] = field(default_factory=dict)
    variables: AnsibleVariables = field(default_factory=dict)
    filed: AnsibleVariables = field(default_factory=dict)


@dataclass
class Inventory:
    """The groups of an inventory, and its hosts in file order with their own variables."""

    place: SourceLocation
    groups: dict[str, Group] = field(default_factory=lambda: {"all": Group()})
    hosts: dict[str, tuple[SourceLocation, AnsibleVariables]] = field(default_factory=dict)
    members: int = 0

    def group(self, name: str, place: SourceLocation) -> Group:
        """Return the group with this name, creating the group if necessary."""
        if name not in self.groups and len(self.groups) >= MAX_GROUPS:
            raise place.error(f"more than {MAX_GROUPS} groups")
        return self.groups.setdefault(name, Group())

    def add(self, group: Group, pattern: str, place: SourceLocation, variables: AnsibleVariables) -> None:
        """Add the hosts of a pattern to a group, and merge ``variables`` into each host's own variables."""
        names = expand(pattern, place)
        self.members += len(names)
        if self.members > MAX_MEMBERS:
            raise place.error(f"more than {MAX_MEMBERS} hosts in all groups together")
        for name in names:
            if name not in self.hosts and len(self.hosts) >= MAX_HOSTS:
                raise place.error(f"more than {MAX_HOSTS} hosts")
            values.host(name, place)
            self.hosts.setdefault(name, (place, {}))[1].update(variables)
            group.hosts.append(name)

    def parsed(self) -> ParsedInventory:
        """Return the hosts with the variables that they inherit from their groups."""
        if not self.hosts:
            raise self.place.error("the inventory names no host; at least one is needed")
        order = self._top_down()
        givers = self._givers(order)
        groups_of: dict[str, set[str]] = {name: set() for name in self.hosts}
        for name, group in self.groups.items():
            for host in group.hosts:
                groups_of[host] |= givers[name]
        handed_down: dict[frozenset[str], AnsibleVariables] = {}
        entries = []
        for host, (place, variables) in self.hosts.items():
            key = frozenset(groups_of[host])
            if key not in handed_down:
                givers_down = [self.groups[name] for name in sorted(key, key=order.__getitem__)]
                layers = [*(group.variables for group in givers_down), *(group.filed for group in givers_down)]
                handed_down[key] = {name: value for layer in layers for name, value in layer.items()}
            entries.append(_entry(Sourced(host, place), variables, handed_down[key]))
        return ParsedInventory(self.place, entries)

    def _top_down(self) -> dict[str, tuple[int, str]]:
        parents = dict.fromkeys(self.groups, 0)
        for group in self.groups.values():
            for child in group.children:
                parents[child] += 1
        # A group without a parent is in "all", even if that is not written.
        depth = {name: int(name != "all") for name, count in parents.items() if count == 0}
        ready = list(depth)
        while ready:
            name = ready.pop()
            for child in self.groups[name].children:
                depth[child] = max(depth.get(child, 0), depth[name] + 1)
                parents[child] -= 1
                if parents[child] == 0:
                    ready.append(child)
        stuck = [name for name, count in parents.items() if count or (name == "all" and depth[name])]
        if stuck:
            raise self._circle(stuck)
        return {name: (depth[name], name) for name in depth}

    def _circle(self, stuck: list[str]) -> DoctorError:
        parents: dict[str, str] = {}
        name = stuck[0]
        while name not in parents:
            parents[name] = next((g for g in stuck if name in self.groups[g].children), "")
            name = parents[name] or name
        place = next(group.children[name] for group in self.groups.values() if name in group.children)
        return place.error(f"the group {quoted(name)} stands within itself; take it out of its own children")

    def _givers(self, order: dict[str, tuple[int, str]]) -> dict[str, set[str]]:
        has = {name for name, group in self.groups.items() if group.variables or group.filed}
        givers = {name: has & {"all", name} for name in order}
        for name in sorted(order, key=order.__getitem__):
            for child in self.groups[name].children:
                givers[child] |= givers[name]
        return givers


def _entry(name: Sourced[str], variables: AnsibleVariables, shared: AnsibleVariables) -> Entry:
    address = _first(variables, _HOST) or _first(shared, _HOST) or name
    connection = _first(variables, _CONNECTION) or _first(shared, _CONNECTION)
    values.host(address.value, address.place)
    local = connection is not None and connection.value == "local"
    inherited = {**shared, **variables} if variables.keys() & {*ARGUMENTS} else {}
    return Entry(name, address, _settings(variables, inherited), _settings(shared, shared), local)


def _settings(variables: AnsibleVariables, inherited: AnsibleVariables) -> Settings:
    arguments = [each for name in ARGUMENTS if (each := _checked(inherited, (name,), values.ssh_options))]
    options = [option for each in arguments for option in each.value]
    python = _checked(variables, _PYTHON, values.python)
    own_search = python is not None and python.value.startswith("auto")  # auto, auto_silent, auto_legacy
    return Settings(
        python=None if own_search else python,
        user=_checked(variables, _USER, values.user),
        port=_checked(variables, _PORT, values.port),
        identity_file=_checked(variables, _KEY, values.path),
        ssh_options=Sourced(tuple(options), arguments[0].place) if options else None,
    )


def _checked(
    variables: AnsibleVariables, names: Iterable[str], check: Callable[[str, SourceLocation], T]
) -> Sourced[T] | None:
    setting = _first(variables, names)
    return None if setting is None else Sourced(check(setting.value, setting.place), setting.place)


def _first(variables: AnsibleVariables, names: Iterable[str]) -> Sourced[str] | None:
    for name in names:
        setting = variables.get(name)
        if setting is not None:
            if "{{" in setting.value or "{%" in setting.value:
                raise setting.place.error(f"{name} holds a template, which only Ansible can fill in; write the value")
            return setting
    return None


MAX_LINE = 1 << 16
SECTION = re.compile(r"\[([^\[\]:\s]+)(?::(\w+))?\]\s*(?:[#;].*)?")
_WITH_PORT = re.compile(r"((?:[^:\[\]]|\[[^\[\]]*\])+):([0-9]+)")


def read_ini(text: str, place: SourceLocation) -> Inventory:
    """Read an inventory in INI format, or raise an error at its first invalid line."""
    inventory = Inventory(place)
    name, kind = "ungrouped", ""
    for number, raw in enumerate(text.split("\n"), start=1):
        line, here = raw.strip(), place.at(number)
        if not line or line[0] in "#;":
            continue
        if len(line) > MAX_LINE:
            raise here.error(f"a line of more than {MAX_LINE} characters")
        section = SECTION.fullmatch(line)
        if section:
            name, kind = section[1], section[2] or ""
            if kind not in ("", "vars", "children"):
                raise here.error(f"unknown section {quoted(line)}; allowed are [group], [group:vars], [group:children]")
            inventory.group(name, here)
        elif kind == "vars":
            inventory.groups[name].variables.update(_variable(line, here.noted(f"group {quoted(name)}")))
        elif kind == "children":
            child = _words(line, here)[0]
            inventory.group(child, here)
            inventory.groups[name].children[child] = here
        else:
            _host(line, here, name, inventory)
    return inventory


def _host(line: str, place: SourceLocation, group: str, inventory: Inventory) -> None:
    host, *words = _words(line, place)
    variables: AnsibleVariables = {}
    with_port = _WITH_PORT.fullmatch(host)
    if with_port:
        host = with_port[1]
        variables["ansible_port"] = Sourced(with_port[2], place)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            hint = "behind a host stand variables, as ansible_host=10.0.0.1"
            raise place.error(f"{quoted(word)} is not understood; {hint}")
        if key in WANTED:
            variables[key] = Sourced(value, place)
    inventory.add(inventory.group(group, place), host, place, variables)


def _variable(line: str, place: SourceLocation) -> AnsibleVariables:
    key, equals, value = (part.strip() for part in line.partition("="))
    if not equals:
        raise place.error(f"{quoted(line)} is not understood; a line here is variable=value")
    if key not in WANTED:
        return {}
    if "{{" in value:  # refused where it is used; its spaces don't separate values
        return {key: Sourced(value, place)}
    words = _words(value, place) if value else []
    if key in ARGUMENTS:
        return {key: Sourced(words[0] if len(words) == 1 else value.partition(" #")[0], place)}
    if len(words) != 1:
        raise place.error(f"{key} must be one value; put a value with spaces in quotes")
    return {key: Sourced(words[0], place)}


def _words(line: str, place: SourceLocation) -> list[str]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        raise place.error("an unmatched quote or a trailing backslash") from None
    if not words or not words[0]:
        raise place.error(f"{quoted(line)} has no value")
    return words


_PARTS = ("hosts", "children", "vars")


def looks_like_group(tree: Tree) -> bool:
    """Return whether a mapping is non-empty and has only keys of a group (``hosts``, ``children`` and ``vars``)."""
    keys = [key.text if isinstance(key, Scalar) else "" for key, _ in tree.pairs] if isinstance(tree, Mapping) else []
    return bool(keys) and set(keys) <= set(_PARTS)


def read_yaml(tree: Tree, place: SourceLocation) -> Inventory:
    """Read an inventory in YAML format, or raise an error at its first invalid line."""
    inventory = Inventory(place)
    for name, (where, group) in as_mapping(tree, "the inventory").items():
        _group(name, where, group, inventory)
    return inventory


def _group(name: str, place: SourceLocation, tree: Tree, inventory: Inventory) -> None:
    group = inventory.group(name, place)
    for part, (where, value) in as_mapping(tree, f"the group {quoted(name)}").items():
        if part not in _PARTS:
            raise where.error(f"unknown key {quoted(part)} in a group; allowed are hosts, children, vars")
        contents = as_mapping(value, f"{quoted(part)} of the group {quoted(name)}")
        if part == "vars":
            group.variables.update(wanted(contents, f"group {quoted(name)}"))
        elif part == "hosts":
            for pattern, (host_place, variables) in contents.items():
                host_variables = wanted(as_mapping(variables, f"the host {quoted(pattern)}"), "")
                inventory.add(group, pattern, host_place, host_variables)
        else:
            for child, (child_place, subtree) in contents.items():
                group.children[child] = child_place
                _group(child, child_place, subtree, inventory)


def wanted(keys: dict[str, tuple[SourceLocation, Tree]], note: str) -> AnsibleVariables:
    """Return those variables in a mapping that configure the connection to a host."""
    chosen = ((name, *keys[name]) for name in keys if name in WANTED)
    return {name: Sourced(as_text(value, name), place.noted(note)) for name, place, value in chosen}


_ENDINGS = (".yml", ".yaml", ".json")
_ENCRYPTED = "$ANSIBLE_VAULT;"
_FOLDERS = "group_vars", "host_vars"


def stand_beside(place: SourceLocation) -> bool:
    """Return whether the file's directory contains group_vars or host_vars, which indicates an Ansible inventory."""
    return place.is_file and any((Path(place.source).parent / folder).is_dir() for folder in _FOLDERS)


def lay_over(inventory: Inventory) -> None:
    """Override the variables of groups and hosts with group_vars and host_vars files, skipping encrypted files."""
    if not inventory.place.is_file:
        return
    of_groups, of_hosts = (Path(inventory.place.source).parent / folder for folder in _FOLDERS)
    for name, variables in _read_folder(of_groups, inventory.groups):
        inventory.groups[name].filed.update(variables)
    for name, variables in _read_folder(of_hosts, inventory.hosts):
        inventory.hosts[name][1].update(variables)


def _read_folder(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, AnsibleVariables]]:
    known = set(names)
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        stem = entry.stem if entry.suffix in _ENDINGS else entry.name
        name = next((name for name in (entry.name, stem) if name in known), None)
        if name is None:
            continue
        inner = sorted(path for path in entry.iterdir() if path.is_file()) if entry.is_dir() else []
        shown = [path for path in inner if path.suffix in ("", *_ENDINGS) and not path.name.startswith(".")]
        for file in shown if entry.is_dir() else [entry]:
            text = read_text(str(file)) if file.stat().st_size else ""
            meant = [line.strip() for line in text.splitlines() if not line.lstrip().startswith("#")]
            if not text.startswith(_ENCRYPTED) and any(line not in ("", "---") for line in meant):
                keys = as_mapping(parse(text, SourceLocation(str(file))), f"what {file.name} says")
                yield name, wanted(keys, "")
