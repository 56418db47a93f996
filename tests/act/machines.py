"""Machines that are made up, for fix-port."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nccl_doctor.crew.answers import Contract
from nccl_doctor.model.base import T

Answer = Callable[[dict[str, Any]], Any]


class FakeMachine:
    """Answers from functions, and keeps what it was asked."""

    def __init__(self, name: str = "node1", **answers: Answer) -> None:
        self.name = name
        self.asked: list[dict[str, Any]] = []
        self._answers = answers

    def ask(self, contract: Contract[T], **arguments: object) -> T:
        self.asked.append({"do": contract.name, **arguments})
        return contract.answer.validate_python(self._answers[contract.name](arguments))

    def close(self) -> None:
        return


def holder_job(*members: tuple[int, int], refusal: str | None = None, final: bool = False) -> dict[str, Any]:
    """A job as the probe has it: processes by PID and start, of which the first holds the port."""
    root, started = members[0]
    holder = {
        "pid": root,
        "user": "alice",
        "command": "python",
        "started": 0.0,
        "ticks": started,
        "age_s": 60.0,
        "ppid": 1,
        "orphan": True,
        "own": True,
        "tree": [],
        "parent": None,
        "cwd": None,
        "terminal": False,
    }
    processes: list[dict[str, Any]] = [
        {"pid": pid, "started": ticks, "command": "python", "launcher": None, "rank": True, "gpus": []}
        for pid, ticks in members
    ]
    job = {"root": root, "orphan": True, "unit": None, "holders": [holder], "members": processes}
    return {**job, "refusal": refusal, "final": final}


def trial(**told: Any) -> Any:
    return {"trial": {"port": 29500, **told}, "jobs": [], "elsewhere": [], "range": None, "host": "node1", "uid": 0}
