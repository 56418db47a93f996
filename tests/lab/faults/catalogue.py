"""The register of faults."""

from collections.abc import Callable
from typing import TypeVar

from tests.lab.cluster import Lab
from tests.lab.errors import LabError
from tests.lab.host import LabHost

Fault = Callable[[Lab, LabHost], None]
"""Breaks a host of a lab; when it returns, the effect can be seen."""

MASTER_PORT = 29500

Breaks = TypeVar("Breaks", bound=Fault)

_FAULTS: dict[str, Fault] = {}


def register(name: str) -> Callable[[Breaks], Breaks]:
    """Enter a fault under a name; its docstring is what people read."""

    def enter(function: Breaks) -> Breaks:
        assert name not in _FAULTS, name
        assert function.__doc__, name
        _FAULTS[name] = function
        return function

    return enter


def fault(name: str) -> Fault:
    """The fault of this name."""
    if name not in _FAULTS:
        raise LabError(f"No fault is named {name!r}; there are {', '.join(sorted(_FAULTS))}.")
    return _FAULTS[name]


def all_faults() -> dict[str, str]:
    """Every fault's name and what it does, in one line."""
    return {name: (function.__doc__ or "").splitlines()[0] for name, function in sorted(_FAULTS.items())}
