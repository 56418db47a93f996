"""An Ansible inventory in YAML: groups with ``hosts``, ``children`` and ``vars``."""

from __future__ import annotations

from nccl_doctor.inventory.ansible import WANTED, Inventory, Variables
from nccl_doctor.inventory.parsed import Sourced, SourceLocation
from nccl_doctor.inventory.yaml_tree import Mapping, Scalar, Tree, as_mapping, as_text
from nccl_doctor.text.hostlist import quoted

_PARTS = ("hosts", "children", "vars")


def looks_like_group(tree: Tree) -> bool:
    """Whether a mapping has nothing but the parts of a group."""
    return (
        isinstance(tree, Mapping)
        and bool(tree.pairs)
        and all(isinstance(key, Scalar) and key.text in _PARTS for key, _ in tree.pairs)
    )


def read(tree: Tree, place: SourceLocation) -> Inventory:
    """What an inventory says.

    Raises:
        HostsFileError: at the first line that is not as it has to be.
    """
    inventory = Inventory(place)
    for name, (where, group) in as_mapping(tree, "the inventory").items():
        _group(name, where, group, inventory)
    return inventory


def _group(name: str, place: SourceLocation, tree: Tree, inventory: Inventory) -> None:
    """Reads one group; its depth is bounded by that of the tree."""
    group = inventory.group(name, place)
    for part, (where, value) in as_mapping(tree, f"the group {quoted(name)}").items():
        if part not in _PARTS:
            raise where.error(f"unknown key {quoted(part)} in a group; allowed are hosts, children, vars")
        contents = as_mapping(value, f"{quoted(part)} of the group {quoted(name)}")
        if part == "vars":
            group.variables.update(wanted(contents, f"group {quoted(name)}"))
        elif part == "hosts":
            for pattern, (host_place, variables) in contents.items():
                own = wanted(as_mapping(variables, f"the host {quoted(pattern)}"), "")
                inventory.add(group, pattern, host_place, own)
        else:
            for child, (child_place, subtree) in contents.items():
                group.children[child] = child_place
                _group(child, child_place, subtree, inventory)


def wanted(keys: dict[str, tuple[SourceLocation, Tree]], note: str) -> Variables:
    """Those variables of a mapping that say how to reach a host."""
    return {
        name: Sourced(as_text(value, name), place.noted(note))
        for name, (place, value) in keys.items()
        if name in WANTED
    }
