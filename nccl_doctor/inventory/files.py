"""Hosts files of every kind: which one it is, by its content, and another master port in one of ours.

Of that the value alone changes; comments, order, quotes and line ends stay.
"""

from __future__ import annotations

import io
import re
from contextlib import suppress
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent, Event, MappingStartEvent, ScalarEvent

from nccl_doctor.errors import DoctorError, HostsFileError
from nccl_doctor.inventory import ansible, hostfiles
from nccl_doctor.inventory.ansible import Inventory
from nccl_doctor.inventory.sources import ParsedInventory, SourceLocation, decode
from nccl_doctor.inventory.yaml_tree import Listing, Mapping, Scalar, Tree, parse
from nccl_doctor.text.machine import write_atomically

_KEYS = "|".join(sorted({*hostfiles.TOP_KEYS, "all"}))
_YAML_START = re.compile(rf"---|%|-(?:\s|$)|[{{\[\"'&!*?|>]|(?:{_KEYS})\s*:|[^\s#]+\s*:(?:\s|$)")
_BARE_HOST = re.compile(r"[\w.-]+(?:\[[\w:]+\][\w.-]*)?")
_INI_VARIABLE = re.compile(r"\sansible_\w+\s*=")


def read(text: str, source: str) -> ParsedInventory:
    """Read our own YAML, an Ansible inventory, or a hostfile."""
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
        # Ansible has groups at the top; we have none of ours that would look like one.
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


KEY = "master_port"
_BOM = b"\xef\xbb\xbf"


def write_master_port(path: str, port: int) -> None:
    """Change the file at once; a reader never sees half of it."""
    target = Path(path).resolve()
    try:
        data = target.read_bytes()
        if not target.is_file():
            raise HostsFileError(path, None, "is not a plain file and can't be changed")
        mark = _BOM if data.startswith(_BOM) else b""
        changed = mark + with_master_port(decode(data, path), port, path).encode()
        write_atomically(target, changed)
    except OSError as error:
        raise HostsFileError(path, None, f"can't be changed: {error.strerror or error}") from error


def with_master_port(text: str, port: int, source: str) -> str:
    """Return the text of a hosts file with another master port."""
    place = SourceLocation(source)
    rest = None
    with suppress(DoctorError):
        rest = _without_port(parse(text, place))
    if not any(isinstance(key, tuple) and key[0] == "hosts" for key, _ in rest or ()):
        raise place.error('has no place for a master port; only hosts files in YAML with "hosts:" have one')
    at, end, words = _edit(text, port)
    changed = text[:at] + words + text[end:]
    there = read(changed, source).master_port
    if _without_port(parse(changed, place)) != rest or there is None or there.value != port:
        raise place.error(f'"{KEY}" could not be changed without touching the rest; write "{KEY}: {port}" yourself')
    return changed


def _edit(text: str, port: int) -> tuple[int, int, str]:
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
    """Return the outermost mapping, and its keys and values in turn; a collection stands there as its start."""
    depth = 0
    opened: MappingStartEvent | None = None
    found: list[Event] = []
    for event in YAML(typ="safe", pure=True).parse(io.StringIO(text)):
        if depth == 1 and isinstance(event, (ScalarEvent, CollectionStartEvent)):
            found.append(event)
        if isinstance(event, MappingStartEvent) and opened is None:
            opened = event
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
    assert opened is not None, "a mapping, as was checked"
    return opened, found


def _without_port(tree: Tree) -> list[tuple[object, object]]:
    pairs = tree.pairs if isinstance(tree, Mapping) else ()
    return [(_plain(key), _plain(value)) for key, value in pairs if not (isinstance(key, Scalar) and key.text == KEY)]


def _plain(tree: Tree) -> object:
    if isinstance(tree, Mapping):
        return [(_plain(key), _plain(value)) for key, value in tree.pairs]
    if isinstance(tree, Listing):
        return [_plain(item) for item in tree.items]
    return (tree.text, tree.plain, tree.tag) if isinstance(tree, Scalar) else tree.tag
