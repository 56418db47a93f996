"""Modules that vLLM and SGLang import beside what their option parsers need, stood in for where they are not installed.

Imported first; what stands in has every name, and does nothing. Only what the engines themselves import is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from pydantic_core import core_schema

ENGINES = ("vllm", "sglang")
LOOKED_FOR = ("torch", "numpy", "ray", "libtpu", "amdsmi", "tpu_inference", "pathwaysutils")
"""Those whose absence the engines look at, to know which machine they run on."""


class _AnyName(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name != "__class_validators__":
            raise AttributeError(name)
        return MagicMock()


class _Anything(metaclass=_AnyName):
    def __init_subclass__(cls, **_options: object) -> None:
        """Takes any option, as msgspec's and pydantic's bases do."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> core_schema.CoreSchema:
        return core_schema.any_schema()


class _Module(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _AnyName(name, (_Anything,), {}) if name[:1].isupper() else MagicMock(name=name)
        setattr(self, name, made)
        return made


class _StandIn(MetaPathFinder, Loader):
    def __init__(self) -> None:
        self._replaced: set[str] = set()

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        frame = sys._getframe(1)
        while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        importer, top = str(frame.f_globals.get("__name__", "")).partition(".")[0], name.partition(".")[0]
        compiled = top in ENGINES and name.partition(".")[2].startswith("_")
        known = top in (*ENGINES, *LOOKED_FOR) or top in sys.stdlib_module_names
        if not compiled and (known or (importer not in ENGINES and top not in self._replaced)):
            return None
        self._replaced |= set() if compiled else {top}
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


sys.meta_path.append(_StandIn())
