"""YAML as a tree of text and lines, and what a part of it has to be."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_doctor.inventory.parsed import SourceLocation
from nccl_doctor.text.hostlist import quoted


@dataclass(frozen=True)
class Scalar:
    """A single value, as written; ``plain`` where it stands without quotes."""

    text: str
    plain: bool
    place: SourceLocation
    tag: str | None

    @property
    def is_null(self) -> bool:
        """YAML 1.2's core schema, 10.3.2: nothing at all, ``~`` or ``null``."""
        return self.plain and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True)
class Alias:
    """``*name``, never followed."""

    place: SourceLocation
    tag: None = None


@dataclass(frozen=True)
class Listing:
    """A YAML sequence with its place."""

    items: list[Tree]
    place: SourceLocation
    tag: str | None


@dataclass(frozen=True)
class Mapping:
    """A YAML mapping with its place; its keys in order, doubled ones included."""

    pairs: list[tuple[Tree, Tree]]
    place: SourceLocation
    tag: str | None


Tree = Scalar | Alias | Listing | Mapping


def as_text(tree: Tree, what: str) -> str:
    """The text of a single value that is not null."""
    _plainly_written(tree)
    if not isinstance(tree, Scalar):
        raise tree.place.error(f"{what} must be a single value, not {_kind(tree)}")
    if tree.is_null:
        raise tree.place.error(f"{what} has no value; write one or leave the key out")
    return tree.text


def as_list(tree: Tree, what: str) -> list[Tree]:
    """The parts of a list; nothing at all is an empty list."""
    _plainly_written(tree)
    if isinstance(tree, Scalar) and tree.is_null:
        return []
    if not isinstance(tree, Listing):
        raise tree.place.error(f'{what} must be a list, each part on a line that begins with "- ", not {_kind(tree)}')
    return tree.items


def as_mapping(tree: Tree, what: str) -> dict[str, tuple[SourceLocation, Tree]]:
    """The keys of a mapping, each with its place and its value; nothing at all is an empty mapping."""
    _plainly_written(tree)
    if isinstance(tree, Scalar) and tree.is_null:
        return {}
    if not isinstance(tree, Mapping):
        raise tree.place.error(f'{what} must be a mapping of "key: value", not {_kind(tree)}')
    found: dict[str, tuple[SourceLocation, Tree]] = {}
    for key, value in tree.pairs:
        name = as_text(key, f"a key of {what}")
        if name in found:
            raise key.place.error(f"the key {quoted(name)} stands twice, first in line {found[name][0].line}; keep one")
        found[name] = key.place, value
    return found


def _plainly_written(tree: Tree) -> None:
    if isinstance(tree, Alias):
        raise tree.place.error('aliases ("*name") are not read; write the value out')
    if tree.tag in ("!vault", "!vault-encrypted"):
        raise tree.place.error(
            "the value is encrypted by ansible-vault; write the plain value (ansible-vault view shows it)"
        )
    if tree.tag is not None:
        raise tree.place.error(f"the YAML tag {quoted(tree.tag)} is not read; write the plain value")


def _kind(tree: Tree) -> str:
    if isinstance(tree, Scalar):
        return f"the single value {quoted(tree.text, 30)}"
    return "a list" if isinstance(tree, Listing) else "a mapping"
