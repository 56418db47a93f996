"""Options that go together are a dataclass, which a command takes as one keyword; typer reads single ones."""

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
        made = {name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
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


@cache
def _parameters(group: Any) -> tuple[inspect.Parameter, ...]:  # noqa: ANN401 - a dataclass
    types = get_type_hints(group, include_extras=True)
    return tuple(_parameter(one, types[one.name]) for one in fields(group))


def _parameter(one: Field[Any], kind: Any) -> inspect.Parameter:  # noqa: ANN401 - a type
    default = inspect.Parameter.empty if one.default is MISSING else one.default
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
