"""The folders ``group_vars`` and ``host_vars`` beside an Ansible inventory, which win over what it says itself.

Rules after Ansible's documentation, "Organizing host and group variables": a file with the group's or the host's name,
with or without .yml, .yaml or .json, or a folder of that name with such files, read in the order of their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from nccl_doctor.inventory.ansible import Inventory, Variables
from nccl_doctor.inventory.ansible_yaml import wanted
from nccl_doctor.inventory.parsed import SourceLocation, read_text
from nccl_doctor.inventory.yaml_tree import as_mapping, parse

_ENDINGS = (".yml", ".yaml", ".json")
_ENCRYPTED = "$ANSIBLE_VAULT;"
_FOLDERS = "group_vars", "host_vars"


def stand_beside(place: SourceLocation) -> bool:
    """Whether there are such folders, which make a list of names an inventory."""
    return place.is_file and any((Path(place.source).parent / folder).is_dir() for folder in _FOLDERS)


def lay_over(inventory: Inventory) -> None:
    """Puts what the folders say over the groups' and the hosts' variables.

    A file that is encrypted as a whole is passed over: such hold secrets, and by custom nothing else.

    Raises:
        HostsFileError: a file can't be read or is no YAML, or a value that is wanted is encrypted.
    """
    if not inventory.place.is_file:
        return
    of_groups, of_hosts = (Path(inventory.place.source).parent / folder for folder in _FOLDERS)
    for name, variables in _said(of_groups, inventory.groups):
        inventory.groups[name].filed.update(variables)
    for name, variables in _said(of_hosts, inventory.hosts):
        inventory.hosts[name][1].update(variables)


def _said(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, Variables]]:
    if not folder.is_dir():
        return
    known = set(names)
    for entry in sorted(folder.iterdir()):
        name = next((name for name in (entry.name, _stem(entry)) if name in known), None)
        if name is not None:
            for file in _files(entry):
                yield name, _variables(file)


def _stem(path: Path) -> str:
    return path.stem if path.suffix in _ENDINGS else path.name


def _files(entry: Path) -> list[Path]:
    if not entry.is_dir():
        return [entry]
    inner = sorted(path for path in entry.iterdir() if path.is_file() and not path.name.startswith("."))
    return [path for path in inner if path.suffix in ("", *_ENDINGS)]


def _variables(file: Path) -> Variables:
    text = read_text(str(file)) if file.stat().st_size else ""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if text.startswith(_ENCRYPTED) or not [line for line in lines if line.strip() != "---"]:
        return {}
    return wanted(as_mapping(parse(text, SourceLocation(str(file))), f"what {file.name} says"), "")
