"""Parses YAML into a tree of strings with line numbers, and converts parts of the tree to Python values.

The tree is built from the parser's events, so that values such as ``1``, ``true`` and ``0,1`` stay as written. No
Python objects are created from YAML tags. Aliases are not resolved, so the tree can't become larger than the file.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceStartEvent,
)

from nccl_doctor.errors import DoctorError
from nccl_doctor.inventory.sources import SourceLocation
from nccl_doctor.text.hostlist import quoted


@dataclass(frozen=True)
class Scalar:
    """A single value as written in the file. ``plain`` is true if the value has no quotes."""

    text: str
    plain: bool
    place: SourceLocation
    tag: str | None

    @property
    def is_null(self) -> bool:
        """True if the value is null in YAML 1.2 (core schema, section 10.3.2)."""
        return self.plain and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True)
class Alias:
    """An alias (``*name``), which is never resolved."""

    place: SourceLocation
    tag: None = None


@dataclass(frozen=True)
class Listing:
    """A YAML sequence and its place in the file."""

    items: list[Tree]
    place: SourceLocation
    tag: str | None


@dataclass(frozen=True)
class Mapping:
    """A YAML mapping and its place in the file.

    The pairs are in file order and might include duplicate keys.
    """

    pairs: list[tuple[Tree, Tree]]
    place: SourceLocation
    tag: str | None


Tree = Scalar | Alias | Listing | Mapping


def as_text(tree: Tree, what: str) -> str:
    """Return the text of a scalar; raise an error if the node is null or not a scalar."""
    _plainly_written(tree)
    if not isinstance(tree, Scalar):
        raise tree.place.error(f"{what} must be a single value, not {_kind(tree)}")
    if tree.is_null:
        raise tree.place.error(f"{what} has no value; write one or leave the key out")
    return tree.text


def as_list(tree: Tree, what: str) -> list[Tree]:
    """Return the items of a list, or an empty list for null."""
    _plainly_written(tree)
    if isinstance(tree, Scalar) and tree.is_null:
        return []
    if not isinstance(tree, Listing):
        raise tree.place.error(f'{what} must be a list, each part on a line that begins with "- ", not {_kind(tree)}')
    return tree.items


def as_mapping(tree: Tree, what: str) -> dict[str, tuple[SourceLocation, Tree]]:
    """Return the keys of a mapping with their places and values, or an empty dict for null."""
    _plainly_written(tree)
    if isinstance(tree, Scalar) and tree.is_null:
        return {}
    if not isinstance(tree, Mapping):
        raise tree.place.error(f'{what} must be a mapping of "key: value", not {_kind(tree)}')
    entries: dict[str, tuple[SourceLocation, Tree]] = {}
    for key, value in tree.pairs:
        name = as_text(key, f"a key of {what}")
        if name in entries:
            raise key.place.error(
                f"the key {quoted(name)} is set twice (first on line {entries[name][0].line}); keep one"
            )
        entries[name] = key.place, value
    return entries


def _plainly_written(tree: Tree) -> None:
    if isinstance(tree, Alias):
        raise tree.place.error('aliases ("*name") are not supported; write the value out')
    if tree.tag in ("!vault", "!vault-encrypted"):
        hint = "write the plain value (ansible-vault view shows it)"
        raise tree.place.error(f"the value is encrypted by ansible-vault; {hint}")
    if tree.tag is not None:
        raise tree.place.error(f"the YAML tag {quoted(tree.tag)} is not supported; write the plain value")


def _kind(tree: Tree) -> str:
    if isinstance(tree, Scalar):
        return f"the single value {quoted(tree.text, 30)}"
    return "a list" if isinstance(tree, Listing) else "a mapping"


MAX_DEPTH = 32

_HINTS = {
    "that cannot start any token": "put the value in quotes",
    "mapping values are not allowed here": 'write each "key: value" on a line of its own, all of one level indented '
    "alike, and a value with a colon in quotes",
    "could not find expected ':'": 'write "key: value", with a space behind the colon',
    "expected ',' or": "between [ ] or { } a value that holds brackets or a comma needs quotes",
    "expected <block end>": "indent all lines of one level alike",
}


@dataclass
class _Open:
    """A collection that is still being parsed."""

    is_list: bool
    place: SourceLocation
    tag: str | None
    items: list[Tree]

    def place_of_empty(self, here: SourceLocation) -> SourceLocation:
        return self.items[-1].place if not self.is_list and len(self.items) % 2 else here

    def close(self) -> Tree:
        if self.is_list:
            return Listing(self.items, self.place, self.tag)
        return Mapping(list(zip(self.items[::2], self.items[1::2], strict=True)), self.place, self.tag)


def parse(text: str, place: SourceLocation) -> Tree:
    """Return the tree of the YAML document in ``text``, which must contain exactly one document."""
    try:
        return _build(text, place)
    except MarkedYAMLError as error:
        raise _invalid(error, text, place) from None
    except (YAMLError, AssertionError, ValueError) as error:  # the latter two: a "%YAML" line that ruamel.yaml rejects
        position = getattr(error, "position", None)
        where = place if position is None else place.at(text.count("\n", 0, position) + 1)
        reason = getattr(error, "reason", None) or str(error).partition("\n")[0]
        raise where.error(f"not valid YAML: {quoted(reason, 200)[1:-1]}") from None


def _build(text: str, place: SourceLocation) -> Tree:
    root: list[Tree] = []
    stack = [_Open(is_list=True, place=place, tag=None, items=root)]
    documents = 0
    for event in YAML(typ="safe", pure=True).parse(io.StringIO(text)):
        here = place.at(event.start_mark.line + 1)
        if isinstance(event, DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise here.error('a second document begins; one is allowed, so leave out the "---" between them')
        elif isinstance(event, ScalarEvent):
            here = here if event.value or event.style else stack[-1].place_of_empty(here)
            stack[-1].items.append(Scalar(event.value, event.style is None, here, event.tag))
        elif isinstance(event, AliasEvent):
            stack[-1].items.append(Alias(here))
        elif isinstance(event, (MappingStartEvent, SequenceStartEvent)):
            if len(stack) > MAX_DEPTH:
                raise here.error(f"nested deeper than {MAX_DEPTH} levels")
            stack.append(_Open(isinstance(event, SequenceStartEvent), here, event.tag, []))
        elif isinstance(event, CollectionEndEvent):
            done = stack.pop().close()
            stack[-1].items.append(done)
    if not root:
        raise place.error("the file contains only comments")
    return root[0]


def _invalid(error: MarkedYAMLError, text: str, place: SourceLocation) -> DoctorError:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return place.error(f"not valid YAML: {error.problem}")
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line[: mark.column + 1] and not line[: mark.column].strip():
        return place.at(mark.line + 1).error("a tab stands where YAML allows only spaces; indent with spaces")
    problem = quoted(error.problem or "", 200)[1:-1]
    hint = next((f"; {hint}" for part, hint in _HINTS.items() if part in problem), "")
    opened = error.context_mark
    since = f" {error.context} that begins in line {opened.line + 1}" if opened and opened.line != mark.line else ""
    return place.at(min(mark.line, max(len(lines) - 1, 0)) + 1).error(f"not valid YAML: {problem}{since}{hint}")
