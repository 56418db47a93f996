"""A document without what looks like a secret, as every report shows it.

All that a command prints passes here, whatever its form: pydantic models, named tuples and dataclasses alike, since
``fix-port``, which is to answer at once, can't wait for pydantic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from nccl_doctor.text.secret_shapes import LEFT_OUT, is_key_line, names_secret, without_secrets

Shown = TypeVar("Shown")

_BEGIN, _END = "PRIVATE KEY-----", "-----END "


def hide_secrets(document: Shown) -> Shown:
    """The document with :data:`LEFT_OUT` for each secret; itself where it holds none."""
    hidden: Shown = _Walk().value(document)
    return hidden


class _Walk:
    """One way through a document; each text is looked at once."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._names: dict[str, bool] = {}

    def value(self, value: Any) -> Any:  # noqa: ANN401 - any part of a document
        """The value hidden; itself where nothing in it is. A class may say how: its method ``without_secrets``."""
        kind = type(value)
        if kind is str:
            return self._text(value)
        if hasattr(kind, "without_secrets"):
            return value.without_secrets(self.value)
        if isinstance(value, dict):
            return self._mapping(value)
        return self._sequence(value) if isinstance(value, (list, tuple)) else self._fields(value)

    def _sequence(self, value: Any) -> Any:  # noqa: ANN401 - as above
        items = list(self._items(value))
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return value._make(items) if hasattr(value, "_make") else type(value)(items)

    def _fields(self, value: Any) -> Any:  # noqa: ANN401 - as above
        """A model or dataclass with each field hidden; anything else as it is."""
        kind = type(value)
        names = getattr(kind, "model_fields", None) or getattr(kind, "__dataclass_fields__", {})
        old = {name: getattr(value, name) for name in names}
        new = {name: self.value(one) for name, one in old.items()}
        changed = {name: one for name, one in new.items() if one is not old[name]}
        if not changed:
            return value
        return value.model_copy(update=changed) if hasattr(value, "model_copy") else replace(value, **changed)

    def _text(self, text: str) -> str:
        if text not in self._texts:
            found = without_secrets(text)
            self._texts[text] = text if found == text else found
        return self._texts[text]

    def _mapping(self, tree: dict[Any, Any]) -> dict[Any, Any]:
        """Values whose names call them a secret go whole."""
        found = {
            self.value(name): _left_out(value) if self._is_secret(name) else self.value(value)
            for name, value in tree.items()
        }
        pairs = zip(found.items(), tree.items(), strict=False)
        same = len(found) == len(tree) and all(a is c and b is d for (a, b), (c, d) in pairs)
        return tree if same else found

    def _is_secret(self, name: Any) -> bool:  # noqa: ANN401 - any key
        """True for a variable or field that holds one; hosts and paths may be called anything."""
        if type(name) is not str or not name.isidentifier():
            return False
        if name not in self._names:
            self._names[name] = names_secret(name)
        return self._names[name]

    def _items(self, items: Iterable[Any]) -> Iterator[Any]:
        """Each item; of log lines those that are a private key's."""
        within = False
        for item in items:
            text = item if type(item) is str else getattr(item, "text", None)
            if type(text) is str and is_key_line(text, within=within):
                yield LEFT_OUT if item is text else item.model_copy(update={"text": LEFT_OUT})
                continue
            if type(text) is str and _BEGIN in text:
                within = _END not in text
            yield self.value(item)


def _left_out(value: Any) -> Any:  # noqa: ANN401 - any part of a document
    """The same with nothing but its form and numbers."""
    if isinstance(value, dict):
        return {name: _left_out(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_left_out(one) for one in value]
    return LEFT_OUT if isinstance(value, str) and value else value
