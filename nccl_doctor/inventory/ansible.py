"""What an Ansible inventory means, however it is written: groups, what they hand down, and hosts in file order.

Only the variables that say how to reach a host are read. Rules after Ansible's documentation, "How to build your
inventory": host variables win over a group's, what files say of any group over what the inventory itself says of one,
a child group's over its parent's, and on one level the last by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from nccl_doctor.errors import DoctorError
from nccl_doctor.inventory import values
from nccl_doctor.inventory.ansible_ranges import expand
from nccl_doctor.inventory.parsed import Entry, ParsedInventory, Settings, Sourced, SourceLocation
from nccl_doctor.text.hostlist import MAX_HOSTS, quoted

T = TypeVar("T")

MAX_GROUPS = 1000
MAX_MEMBERS = 4 * MAX_HOSTS
"""A host may stand in several groups; all groups together hold at most so many."""

_HOST = ("ansible_host", "ansible_ssh_host")
_USER = ("ansible_user", "ansible_ssh_user")
_PORT = ("ansible_port", "ansible_ssh_port")
_KEY = ("ansible_ssh_private_key_file", "ansible_private_key_file")
_PYTHON = ("ansible_python_interpreter",)
_CONNECTION = ("ansible_connection",)
ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
WANTED = frozenset((*_HOST, *_USER, *_PORT, *_KEY, *_PYTHON, *_CONNECTION, *ARGUMENTS))

Variables = dict[str, Sourced[str]]


@dataclass
class Group:
    """A group: the hosts and groups that stand in it, its variables, and those of its files in group_vars."""

    hosts: list[str] = field(default_factory=list)
    children: dict[str, SourceLocation] = field(default_factory=dict)
    variables: Variables = field(default_factory=dict)
    filed: Variables = field(default_factory=dict)


@dataclass
class Inventory:
    """All groups, and all hosts in the order of the file, each where it first stands, with its own variables."""

    place: SourceLocation
    groups: dict[str, Group] = field(default_factory=lambda: {"all": Group()})
    hosts: dict[str, tuple[SourceLocation, Variables]] = field(default_factory=dict)
    members: int = 0

    def group(self, name: str, place: SourceLocation) -> Group:
        """The group of that name, which is made where there is none."""
        if name not in self.groups and len(self.groups) >= MAX_GROUPS:
            raise place.error(f"more than {MAX_GROUPS} groups")
        return self.groups.setdefault(name, Group())

    def add(self, group: Group, pattern: str, place: SourceLocation, variables: Variables) -> None:
        """Puts the hosts of a pattern into a group; what is said of a host in several places adds up."""
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
        """The hosts, with what their groups hand down to them.

        Raises:
            HostsFileError: for a group within itself, an invalid value, or no host at all.
        """
        if not self.hosts:
            raise self.place.error("the inventory names no host; at least one is needed")
        order = self._top_down()
        givers = self._givers(order)
        groups_of: dict[str, set[str]] = {name: set() for name in self.hosts}
        for name, group in self.groups.items():
            for host in group.hosts:
                groups_of[host] |= givers[name]
        handed_down: dict[frozenset[str], Variables] = {}
        entries = []
        for host, (place, variables) in self.hosts.items():
            key = frozenset(groups_of[host])
            if key not in handed_down:
                givers_down = [self.groups[name] for name in sorted(key, key=order.__getitem__)]
                layers = [*(group.variables for group in givers_down), *(group.filed for group in givers_down)]
                handed_down[key] = {name: said for layer in layers for name, said in layer.items()}
            entries.append(_entry(Sourced(host, place), variables, handed_down[key]))
        return ParsedInventory(self.place, entries)

    def _top_down(self) -> dict[str, tuple[int, str]]:
        """Each group's depth under "all", and its name: the order in which variables are laid over one another."""
        parents = dict.fromkeys(self.groups, 0)
        for group in self.groups.values():
            for child in group.children:
                parents[child] += 1
        # Whatever has no parent stands in "all", said or not.
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
        """The error for a group on a circle, found by going up from one of those that hang on it."""
        seen: dict[str, str] = {}
        name = stuck[0]
        while name not in seen:
            seen[name] = next((g for g in stuck if name in self.groups[g].children), "")
            name = seen[name] or name
        place = next(group.children[name] for group in self.groups.values() if name in group.children)
        return place.error(f"the group {quoted(name)} stands within itself; take it out of its own children")

    def _givers(self, order: dict[str, tuple[int, str]]) -> dict[str, set[str]]:
        """For each group, those with variables that its hosts get: itself, all that it stands in, and "all"."""
        givers = {
            name: {g for g in ("all", name) if self.groups[g].variables or self.groups[g].filed} for name in order
        }
        for name in sorted(order, key=order.__getitem__):
            for child in self.groups[name].children:
                givers[child] |= givers[name]
        return givers


def _entry(name: Sourced[str], variables: Variables, shared: Variables) -> Entry:
    address = _first(variables, _HOST) or _first(shared, _HOST) or name
    connection = _first(variables, _CONNECTION) or _first(shared, _CONNECTION)
    values.host(address.value, address.place)
    local = connection is not None and connection.value == "local"
    inherited = {**shared, **variables} if variables.keys() & {*ARGUMENTS} else {}
    return Entry(name, address, _settings(variables, inherited), _settings(shared, shared), local)


def _settings(variables: Variables, inherited: Variables) -> Settings:
    """What ``variables`` say; of the arguments for ssh, which add up, also what is ``inherited``."""
    said = [each for name in ARGUMENTS if (each := _checked(inherited, (name,), values.ssh_options))]
    options = [option for each in said for option in each.value]
    python = _checked(variables, _PYTHON, values.python)
    if python is not None and python.value.startswith("auto"):  # Ansible's own search: auto, auto_silent, auto_legacy
        python = None
    return Settings(
        python=python,
        user=_checked(variables, _USER, values.user),
        port=_checked(variables, _PORT, values.port),
        identity_file=_checked(variables, _KEY, values.path),
        ssh_options=Sourced(tuple(options), said[0].place) if options else None,
    )


def _checked(
    variables: Variables, names: Iterable[str], check: Callable[[str, SourceLocation], T]
) -> Sourced[T] | None:
    said = _first(variables, names)
    return None if said is None else Sourced(check(said.value, said.place), said.place)


def _first(variables: Variables, names: Iterable[str]) -> Sourced[str] | None:
    for name in names:
        said = variables.get(name)
        if said is not None:
            if "{{" in said.value or "{%" in said.value:
                raise said.place.error(f"{name} holds a template, which only Ansible can fill in; write the value")
            return said
    return None
