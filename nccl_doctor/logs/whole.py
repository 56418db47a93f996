"""Diagnoses that stand in one file each: page, wordings and advice together, in ``checks/seen_in_logs``.

Such a module registers itself with :func:`~nccl_doctor.registry.from_logs` and holds ``RULES`` and ``advice``; a
new one is that file and a case in ``tests/logs``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

PACKAGE = "nccl_doctor.checks.seen_in_logs"


def modules() -> Iterator[tuple[str, ModuleType]]:
    """(name of the diagnosis, its module) of each that holds its own wordings."""
    for found in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__):
        module = importlib.import_module(f"{PACKAGE}.{found.name}")
        if hasattr(module, "RULES"):
            yield found.name.replace("_", "-"), module
