"""Options that go together are a dataclass, which a command takes as one keyword; typer reads single ones.

A field whose metadata has "options" is a dictionary of several: their annotated types by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, wraps
from typing import Any, get_type_hints


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each field of its dataclasses as a parameter of its own, in their place and order."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @wraps(command)
    def flat(**given: Any) -> None:  # noqa: ANN401 - each option has its own type
        made = {name: kind(**{one.name: _pop(one, given) for one in fields(kind)}) for name, kind in groups.items()}
        command(**given, **made)

    def parameters() -> Iterator[inspect.Parameter]:
        for name, parameter in inspect.signature(command).parameters.items():
            if name in groups:
                yield from _parameters(groups[name])
            else:
                yield parameter.replace(annotation=hints[name])

    shown = list(parameters())
    flat.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # inspect reads it, mypy does not know
    flat.__annotations__ = {one.name: one.annotation for one in shown}
    return flat


def _pop(field: Field[Any], given: dict[str, Any]) -> Any:  # noqa: ANN401 - each option has its own type
    """The value of a field; of several options by name, those that were given."""
    if "options" not in field.metadata:
        return given.pop(field.name)
    values = {name: given.pop(name) for name in field.metadata["options"]}
    return {name: value for name, value in values.items() if value is not None}


@cache
def _parameters(group: Any) -> tuple[inspect.Parameter, ...]:  # noqa: ANN401 - a dataclass
    types = get_type_hints(group, include_extras=True)
    return tuple(
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(field), annotation=kind)
        for field in fields(group)
        for name, kind in field.metadata.get("options", {field.name: types[field.name]}).items()
    )


def _default(field: Field[Any]) -> Any:  # noqa: ANN401 - of any option
    if "options" in field.metadata:
        return None
    return inspect.Parameter.empty if field.default is MISSING else field.default
