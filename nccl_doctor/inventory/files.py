"""Reads hosts files in all supported formats. The format of a file is recognized from the file's content."""

from __future__ import annotations

import re

from nccl_doctor.inventory import ansible, hostfiles
from nccl_doctor.inventory.ansible import Inventory
from nccl_doctor.inventory.sources import ParsedInventory, SourceLocation
from nccl_doctor.inventory.yaml_tree import Mapping, Scalar, parse

_KEYS = "|".join(sorted({*hostfiles.TOP_KEYS, "all"}))
_YAML_START = re.compile(rf"---|%|-(?:\s|$)|[{{\[\"'&!*?|>]|(?:{_KEYS})\s*:|[^\s#]+\s*:(?:\s|$)")
_BARE_HOST = re.compile(r"[\w.-]+(?:\[[\w:]+\][\w.-]*)?")
_INI_VARIABLE = re.compile(r"\sansible_\w+\s*=")


def read(text: str, source: str) -> ParsedInventory:
    """Read a hosts file, which is nccl-doctor's own YAML, an Ansible inventory, or an MPI or DeepSpeed hostfile."""
    place = SourceLocation(source)
    if text.startswith("$ANSIBLE_VAULT;"):
        why = "encrypted by ansible-vault, so nothing in it can be read"
        raise place.error(f"{why}; name a list of hosts in plain text")
    lines = [line for line in text.split("\n") if line.strip() and line.lstrip()[0] not in "#;"]
    inventory: Inventory | None = None
    if any(line[0] == "[" and ansible.SECTION.fullmatch(line.rstrip()) for line in lines):
        inventory = ansible.read_ini(text, place)
    elif lines and _YAML_START.match(lines[0].lstrip()):
        tree = parse(text, place)
        if not isinstance(tree, Mapping):
            hint = 'write "hosts:" and below it each host with "- " in front'
            raise tree.place.error(f"a hosts file is a mapping; {hint}")
        # Ansible has groups at the top level; no key of ours looks like one.
        top = {key.text: value for key, value in tree.pairs if isinstance(key, Scalar)}
        groups = (ansible.looks_like_group(value) for key, value in top.items() if key not in hostfiles.TOP_KEYS)
        if "all" not in top and not any(groups):
            return hostfiles.read(tree, place)
        inventory = ansible.read_yaml(tree, place)
    else:
        bare = all(_BARE_HOST.fullmatch(line.strip()) for line in lines)
        if not any(_INI_VARIABLE.search(line) for line in lines) and not (bare and ansible.stand_beside(place)):
            return hostfiles.read_hostfile(text, place)
        inventory = ansible.read_ini(text, place)
    ansible.lay_over(inventory)
    return inventory.parsed()
