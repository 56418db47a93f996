"""Machines that are made up, for fix-port."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Answer = Callable[[dict[str, Any]], Any]


class FakeMachine:
    """Answers from functions, and keeps what it was asked."""

    def __init__(self, name: str = "node1", **answers: Answer) -> None:
        self.name = name
        self.asked: list[dict[str, Any]] = []
        self._answers = answers

    def ask(self, do: str, **arguments: Any) -> Any:
        self.asked.append({"do": do, **arguments})
        return self._answers[do](arguments)

    def close(self) -> None:
        return


def trial(**told: Any) -> Any:
    return {"trial": {"port": 29500, **told}, "jobs": [], "elsewhere": [], "range": None, "host": "node1", "uid": 0}
