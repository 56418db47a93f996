"""Which kind of file it is, told by what stands in it, and reading it as that."""

from __future__ import annotations

import re

from nccl_doctor.inventory import ansible_files, ansible_ini, ansible_yaml, hostfiles, hosts_yaml
from nccl_doctor.inventory.ansible import Inventory
from nccl_doctor.inventory.parsed import ParsedInventory, SourceLocation
from nccl_doctor.inventory.yaml_tree import Mapping, Scalar, Tree, parse

_KEYS = "|".join(sorted({*hosts_yaml.TOP_KEYS, "all"}))
_YAML_START = re.compile(rf"---|%|-(?:\s|$)|[{{\[\"'&!*?|>]|(?:{_KEYS})\s*:|[^\s#]+\s*:(?:\s|$)")
_BARE_HOST = re.compile(r"[\w.-]+(?:\[[\w:]+\][\w.-]*)?")
_INI_VARIABLE = re.compile(r"\sansible_\w+\s*=")


def read(text: str, source: str) -> ParsedInventory:
    """What a file says: our own YAML, an Ansible inventory in YAML or INI, or a hostfile of MPI or DeepSpeed.

    Raises:
        HostsFileError: where it is none of these, or is wrong in itself.
    """
    place = SourceLocation(source)
    if text.startswith("$ANSIBLE_VAULT;"):
        raise place.error(
            "encrypted by ansible-vault, so nothing in it can be read; name a list of hosts in plain text"
        )
    lines = [line for line in text.split("\n") if line.strip() and line.lstrip()[0] not in "#;"]
    if any(line[0] == "[" and ansible_ini.SECTION.fullmatch(line.rstrip()) for line in lines):
        return _inventory(ansible_ini.read(text, place))
    if lines and _YAML_START.match(lines[0].lstrip()):
        return _read_yaml(text, place)
    bare = all(_BARE_HOST.fullmatch(line.strip()) for line in lines)
    if any(_INI_VARIABLE.search(line) for line in lines) or (bare and ansible_files.stand_beside(place)):
        return _inventory(ansible_ini.read(text, place))
    return hostfiles.read(text, place)


def _inventory(inventory: Inventory) -> ParsedInventory:
    ansible_files.lay_over(inventory)
    return inventory.parsed()


def _read_yaml(text: str, place: SourceLocation) -> ParsedInventory:
    tree = parse(text, place)
    if not isinstance(tree, Mapping):
        raise tree.place.error('a hosts file is a mapping; write "hosts:" and below it each host with "- " in front')
    return _inventory(ansible_yaml.read(tree, place)) if _is_inventory(tree) else hosts_yaml.read(tree, place)


def _is_inventory(tree: Mapping) -> bool:
    """Ansible has groups at the top; we have none of ours that would look like one."""
    groups: list[Tree] = [
        value for key, value in tree.pairs if isinstance(key, Scalar) and key.text not in hosts_yaml.TOP_KEYS
    ]
    named_all = any(isinstance(key, Scalar) and key.text == "all" for key, _ in tree.pairs)
    return named_all or any(ansible_yaml.looks_like_group(group) for group in groups)
