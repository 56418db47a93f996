"""Hosts files of every kind: which one it is, by its content, and another master port in one of ours.

Of that the value alone changes; comments, order, quotes and line ends stay.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.events import (
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from nccl_doctor.errors import DoctorError, HostsFileError
from nccl_doctor.inventory import ansible, hostfiles
from nccl_doctor.inventory.ansible import Inventory
from nccl_doctor.inventory.parsed import ParsedInventory, SourceLocation, decode
from nccl_doctor.inventory.yaml_tree import Listing, Mapping, Scalar, Tree, parse
from nccl_doctor.text.machine import write_atomically

_KEYS = "|".join(sorted({*hostfiles.TOP_KEYS, "all"}))
_YAML_START = re.compile(rf"---|%|-(?:\s|$)|[{{\[\"'&!*?|>]|(?:{_KEYS})\s*:|[^\s#]+\s*:(?:\s|$)")
_BARE_HOST = re.compile(r"[\w.-]+(?:\[[\w:]+\][\w.-]*)?")
_INI_VARIABLE = re.compile(r"\sansible_\w+\s*=")


def read(text: str, source: str) -> ParsedInventory:
    """Reads our own YAML, an Ansible inventory in YAML or INI, or a hostfile of MPI or DeepSpeed.

    Raises:
        HostsFileError: where it is none of these, or is wrong in itself.
    """
    place = SourceLocation(source)
    if text.startswith("$ANSIBLE_VAULT;"):
        raise place.error(
            "encrypted by ansible-vault, so nothing in it can be read; name a list of hosts in plain text"
        )
    lines = [line for line in text.split("\n") if line.strip() and line.lstrip()[0] not in "#;"]
    if any(line[0] == "[" and ansible.SECTION.fullmatch(line.rstrip()) for line in lines):
        return _inventory(ansible.read_ini(text, place))
    if lines and _YAML_START.match(lines[0].lstrip()):
        tree = parse(text, place)
        if not isinstance(tree, Mapping):
            raise tree.place.error(
                'a hosts file is a mapping; write "hosts:" and below it each host with "- " in front'
            )
        return _inventory(ansible.read_yaml(tree, place)) if _is_inventory(tree) else hostfiles.read(tree, place)
    bare = all(_BARE_HOST.fullmatch(line.strip()) for line in lines)
    if any(_INI_VARIABLE.search(line) for line in lines) or (bare and ansible.stand_beside(place)):
        return _inventory(ansible.read_ini(text, place))
    return hostfiles.read_hostfile(text, place)


def _inventory(inventory: Inventory) -> ParsedInventory:
    ansible.lay_over(inventory)
    return inventory.parsed()


def _is_inventory(tree: Mapping) -> bool:
    """Ansible has groups at the top; we have none of ours that would look like one."""
    groups: list[Tree] = [
        value for key, value in tree.pairs if isinstance(key, Scalar) and key.text not in hostfiles.TOP_KEYS
    ]
    named_all = any(isinstance(key, Scalar) and key.text == "all" for key, _ in tree.pairs)
    return named_all or any(ansible.looks_like_group(group) for group in groups)


KEY = "master_port"
_BOM = b"\xef\xbb\xbf"


def write_master_port(path: str, port: int) -> None:
    """Changes the file; a reader sees the old or the new one, never half of it.

    Raises:
        HostsFileError: it is no hosts file in YAML of ours, or can't be written.
    """
    target = Path(path).resolve()
    try:
        data = target.read_bytes()
        if not target.is_file():
            raise HostsFileError(path, None, "is no plain file, and can't be changed")
        mark = _BOM if data.startswith(_BOM) else b""
        changed = mark + with_master_port(decode(data, path), port, path).encode()
        write_atomically(target, changed)
    except OSError as error:
        raise HostsFileError(path, None, f"can't be changed: {error.strerror or error}") from error


def with_master_port(text: str, port: int, source: str) -> str:
    """The text of a hosts file with another master port; with a line for it where there was none.

    Raises:
        HostsFileError: it is a hostfile of MPI's or an inventory of Ansible's, which have no place for it.
    """
    place = SourceLocation(source)
    if not _is_ours(text, place):
        raise place.error('has no place for a master port; only hosts files in YAML with "hosts:" have one')
    at, end, words = _edit(text, port)
    changed = text[:at] + words + text[end:]
    if _without_port(parse(changed, place)) != _without_port(parse(text, place)) or _port(changed, source) != port:
        raise place.error(f'"{KEY}" could not be changed without touching the rest; write "{KEY}: {port}" yourself')
    return changed


def _is_ours(text: str, place: SourceLocation) -> bool:
    try:
        tree = parse(text, place)
    except DoctorError:
        return False
    return isinstance(tree, Mapping) and any(isinstance(key, Scalar) and key.text == "hosts" for key, _ in tree.pairs)


def _edit(text: str, port: int) -> tuple[int, int, str]:
    """The place in the text, from and to, and the new words for it."""
    mapping, parts = _top(text)
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        if isinstance(key, ScalarEvent) and key.value == KEY and isinstance(value, ScalarEvent):
            quote = value.style if value.style in ("'", '"') else ""
            return value.start_mark.index, value.end_mark.index, f"{quote}{port}{quote}"
    if mapping.flow_style:
        at = mapping.start_mark.index + 1
        return at, at, f"{KEY}: {port}, "
    first = parts[0].start_mark
    newline = "\r\n" if "\r\n" in text else "\n"
    return first.index, first.index, f"{KEY}: {port}{newline}{' ' * first.column}"


def _top(text: str) -> tuple[MappingStartEvent, list[Event]]:
    """The outermost mapping, and its keys and values in turn; a collection stands there as its start."""
    depth = 0
    opened: MappingStartEvent | None = None
    found: list[Event] = []
    for event in YAML(typ="safe", pure=True).parse(io.StringIO(text)):
        if depth == 1 and isinstance(event, (ScalarEvent, MappingStartEvent, SequenceStartEvent)):
            found.append(event)
        if isinstance(event, (MappingStartEvent, SequenceStartEvent)):
            if isinstance(event, MappingStartEvent) and opened is None:
                opened = event
            depth += 1
        elif isinstance(event, (MappingEndEvent, SequenceEndEvent)):
            depth -= 1
    assert opened is not None, "a mapping, as was checked"
    return opened, found


def _port(text: str, source: str) -> int | None:
    said = read(text, source).master_port
    return None if said is None else said.value


def _without_port(tree: Tree) -> object:
    """The tree's values without places, and without the master port at its top."""
    if not isinstance(tree, Mapping):
        return None
    return [
        (_plain(key), _plain(value)) for key, value in tree.pairs if not (isinstance(key, Scalar) and key.text == KEY)
    ]


def _plain(tree: Tree) -> object:
    if isinstance(tree, Mapping):
        return [(_plain(key), _plain(value)) for key, value in tree.pairs]
    if isinstance(tree, Listing):
        return [_plain(item) for item in tree.items]
    return (tree.text, tree.plain, tree.tag) if isinstance(tree, Scalar) else tree.tag
