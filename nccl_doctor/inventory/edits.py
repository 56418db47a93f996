"""Changes the master port or the job's variables in a YAML hosts file.

An edit keeps all other values, and the file's comments, order, quotes and line endings. An edit that would also change
another part of the file is refused.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent, Event, MappingStartEvent, ScalarEvent

from nccl_doctor.errors import DoctorError, HostsFileError
from nccl_doctor.inventory import yaml_tree
from nccl_doctor.inventory.files import read
from nccl_doctor.inventory.sources import SourceLocation, decode
from nccl_doctor.inventory.yaml_tree import Listing, Scalar, Tree, parse
from nccl_doctor.text.hostlist import fold
from nccl_doctor.text.machine import write_atomically

KEY = "master_port"
ENV = "env"
_BOM = b"\xef\xbb\xbf"


def write_master_port(path: str, port: int) -> None:
    _rewrite(path, lambda text: with_master_port(text, port, path))


def read_env(path: str, names: Iterable[str]) -> dict[str, str | None]:
    """Return the named variables that the hosts file sets for all hosts, with None for each variable that is not set.

    Raise HostsFileError if the file can't be read.
    """
    try:
        return env_of(decode(Path(path).read_bytes(), path), path, names)
    except OSError as error:
        raise HostsFileError(path, None, f"can't be read: {error.strerror or error}") from error


def write_env(path: str, variables: Mapping[str, str | None]) -> None:
    """Set the job's variables for all hosts in a hosts file, and remove variables whose value is None."""
    _rewrite(path, lambda text: with_env(text, variables, path))


def _rewrite(path: str, change: Callable[[str], str]) -> None:
    target = Path(path).resolve()
    try:
        data = target.read_bytes()
        if not target.is_file():
            raise HostsFileError(path, None, "is not a plain file and can't be changed")
        mark = _BOM if data.startswith(_BOM) else b""
        write_atomically(target, mark + change(decode(data, path)).encode())
    except OSError as error:
        raise HostsFileError(path, None, f"can't be changed: {error.strerror or error}") from error


def with_master_port(text: str, port: int, source: str) -> str:
    place = SourceLocation(source)
    rest = _rest_of(text, place, frozenset({KEY}), "a master port")
    at, end, words = _edit(text, port)
    changed = text[:at] + words + text[end:]
    there = read(changed, source).master_port
    if _rest(parse(changed, place), frozenset({KEY})) != rest or there is None or there.value != port:
        raise place.error(f'"{KEY}" could not be changed without touching the rest; write "{KEY}: {port}" yourself')
    return changed


def env_of(text: str, source: str, names: Iterable[str]) -> dict[str, str | None]:
    """Return the named variables that a hosts file sets for all hosts, with None for each variable that is not set."""
    tree = parse(text, SourceLocation(source))
    mine = _mapping(tree, ENV)
    values = {key.text: value.text for key, value in mine if isinstance(key, Scalar) and isinstance(value, Scalar)}
    return {name: values.get(name) for name in names}


def with_env(text: str, variables: Mapping[str, str | None], source: str) -> str:
    """Return a hosts file's text after setting variables for all hosts and removing variables whose value is None."""
    place, names = SourceLocation(source), frozenset(variables)
    rest = _rest_of(text, place, names, "variables")
    conflicts = _set_by_hosts(parse(text, place)) & names
    if conflicts:
        raise place.error(f"a host has {fold(sorted(conflicts))} in an env of its own, which wins; change it there")
    changed = text
    for name, value in variables.items():
        changed = _without_variable(changed, name) if value is None else _with_variable(changed, name, value)
    there = env_of(changed, source, names)
    if _rest(parse(changed, place), names) != rest or there != dict(variables):
        words = ", ".join(f"{name}: {value}" for name, value in variables.items() if value is not None)
        raise place.error(f'"env" could not be changed without touching the rest; write there yourself: {words}')
    read(changed, source)
    return changed


def _rest_of(text: str, place: SourceLocation, names: frozenset[str], what: str) -> list[tuple[object, object]]:
    """Return the parts of a file that an edit must not change.

    Raise HostsFileError if the file has no "hosts" key.
    """
    rest = None
    with suppress(DoctorError):
        rest = _rest(parse(text, place), names)
    if not any(isinstance(key, tuple) and key[0] == "hosts" for key, _ in rest or ()):
        raise place.error(f'has no place for {what}; only hosts files in YAML with "hosts:" have one')
    assert rest is not None
    return rest


def _edit(text: str, port: int) -> tuple[int, int, str]:
    mapping, parts = _top(text)
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        if isinstance(key, ScalarEvent) and key.value == KEY and isinstance(value, ScalarEvent):
            quote = value.style if value.style in ("'", '"') else ""
            return value.start_mark.index, value.end_mark.index, f"{quote}{port}{quote}"
    return _before_all(text, mapping, parts, f"{KEY}: {port}", "")


def _before_all(
    text: str, mapping: MappingStartEvent, parts: Sequence[Event], words: str, more: str
) -> tuple[int, int, str]:
    """Return the edit that inserts ``words`` at the beginning of a mapping, with ``more`` indented on the next line."""
    if mapping.flow_style:
        at = mapping.start_mark.index + 1
        return at, at, f"{words}{' ' * bool(more)}{more}, "
    first = parts[0].start_mark
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = " " * first.column
    below = f"{indent}  {more}{newline}" if more else ""
    return first.index, first.index, f"{words}{newline}{below}{indent}"


def _quoted_value(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _with_variable(text: str, name: str, value: str) -> str:
    mapping, parts = _top(text)
    pair = f"{name}: {_quoted_value(value)}"
    for key, start in zip(parts[::2], parts[1::2], strict=True):
        if not (isinstance(key, ScalarEvent) and key.value == ENV):
            continue
        if not isinstance(start, MappingStartEvent):  # "env:" with nothing after it
            return text
        inner = _inside(text, start)
        for inner_key, old in zip(inner[::2], inner[1::2], strict=True):
            if isinstance(inner_key, ScalarEvent) and inner_key.value == name and isinstance(old, ScalarEvent):
                return text[: old.start_mark.index] + _quoted_value(value) + text[old.end_mark.index :]
        if not inner:
            return text[: start.start_mark.index + 1] + pair + text[start.start_mark.index + 1 :]
        at, end, words = _before_all(text, start, inner, pair, "")
        return text[:at] + words + text[end:]
    more = f"{{{pair}}}" if mapping.flow_style else pair
    at, end, words = _before_all(text, mapping, parts, f"{ENV}:", more)
    return text[:at] + words + text[end:]


def _without_variable(text: str, name: str) -> str:
    """Return the text without a variable, and without the "env" key if no other variable remains."""
    _, parts = _top(text)
    for at, (key, start) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        if isinstance(key, ScalarEvent) and key.value == ENV and isinstance(start, MappingStartEvent):
            inner = _inside(text, start)
            names = [event.value for event in inner[::2] if isinstance(event, ScalarEvent)]
            if name not in names:
                return text
            if names == [name]:
                following = parts[2 * at + 2].start_mark.index if 2 * at + 2 < len(parts) else _end_of(text, start)
                return text[: key.start_mark.index] + text[following:]
            place = names.index(name)
            first = inner[2 * place].start_mark.index
            following = 2 * place + 2
            if following < len(inner):
                return text[:first] + text[inner[following].start_mark.index :]
            return text[: inner[2 * place - 1].end_mark.index] + text[inner[2 * place + 1].end_mark.index :]
    return text


def _top(text: str) -> tuple[MappingStartEvent, list[Event]]:
    """Return the start event of the outermost mapping, and the events of its keys and values in alternating order.

    A nested mapping or sequence is represented by its start event.
    """
    depth = 0
    opened: MappingStartEvent | None = None
    parts: list[Event] = []
    for event in YAML(typ="safe", pure=True).parse(io.StringIO(text)):
        if depth == 1 and isinstance(event, (ScalarEvent, CollectionStartEvent)):
            parts.append(event)
        if isinstance(event, MappingStartEvent) and opened is None:
            opened = event
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
    assert opened is not None, "a mapping, as was checked"
    return opened, parts


def _inside(text: str, start: MappingStartEvent) -> list[Event]:
    """Return the events of a nested mapping's keys and values, in the same form as :func:`_top`."""
    events, depth, parts = _from(text, start), 0, list[Event]()
    for event in events:
        if depth == 1 and isinstance(event, (ScalarEvent, CollectionStartEvent)):
            parts.append(event)
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth == 0:
            break
    return parts


def _end_of(text: str, start: MappingStartEvent) -> int:
    depth = 0
    for event in _from(text, start):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth == 0:
            return int(event.end_mark.index)
    return len(text)


def _from(text: str, start: MappingStartEvent) -> Iterator[Event]:
    events: Iterator[Event] = YAML(typ="safe", pure=True).parse(io.StringIO(text))
    place = start.start_mark.index, start.end_mark.index
    return itertools.dropwhile(
        lambda event: (
            not isinstance(event, MappingStartEvent) or (event.start_mark.index, event.end_mark.index) != place
        ),
        events,
    )


def _rest(tree: Tree, names: frozenset[str]) -> list[tuple[object, object]]:
    """Return the key-value pairs of a file, except for top-level keys and variables in "env" that are in ``names``."""
    pairs = tree.pairs if isinstance(tree, yaml_tree.Mapping) else ()
    kept: list[tuple[object, object]] = []
    for key, value in pairs:
        text = key.text if isinstance(key, Scalar) else None
        if text in names:
            continue
        if text == ENV and isinstance(value, yaml_tree.Mapping):
            left = [pair for pair in value.pairs if not (isinstance(pair[0], Scalar) and pair[0].text in names)]
            if left:
                kept.append((_plain(key), [(_plain(name), _plain(setting)) for name, setting in left]))
            continue
        kept.append((_plain(key), _plain(value)))
    return kept


def _mapping(tree: Tree, name: str) -> Sequence[tuple[Tree, Tree]]:
    """Return the key-value pairs of the mapping at a top-level key."""
    pairs = tree.pairs if isinstance(tree, yaml_tree.Mapping) else ()
    subtree = next((value for key, value in pairs if isinstance(key, Scalar) and key.text == name), None)
    return subtree.pairs if isinstance(subtree, yaml_tree.Mapping) else ()


def _set_by_hosts(tree: Tree) -> set[str]:
    """Return the names of the variables that hosts set in their own "env"."""
    pairs = tree.pairs if isinstance(tree, yaml_tree.Mapping) else ()
    hosts = next((value for key, value in pairs if isinstance(key, Scalar) and key.text == "hosts"), None)
    items = hosts.items if isinstance(hosts, Listing) else ()
    return {key.text for item in items for key, _ in _mapping(item, ENV) if isinstance(key, Scalar)}


def _plain(tree: Tree) -> object:
    if isinstance(tree, yaml_tree.Mapping):
        return [(_plain(key), _plain(value)) for key, value in tree.pairs]
    if isinstance(tree, Listing):
        return [_plain(item) for item in tree.items]
    return (tree.text, tree.plain, tree.tag) if isinstance(tree, Scalar) else tree.tag
