"""Operations of tests: any text of a shell as command, look and undo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nccl_doctor.model.acts import Step
from nccl_doctor.model.operation import Operation, StateLines
from nccl_doctor.text.shell import Line


@dataclass(frozen=True)
class Text(Operation):
    """A change by these texts; the wanted state is the lines of ``leaves``."""

    command: str
    reads: str | None = None
    leaves: str = ""
    back: str | None = None
    seconds: float = 60.0
    root: ClassVar[bool] = False

    @property
    def deadline_s(self) -> float:  # type: ignore[override]
        return self.seconds

    @property
    def line(self) -> Line:
        return Line(self.command)

    @property
    def look(self) -> Line | None:
        return None if self.reads is None else Line(self.reads)

    @property
    def expected(self) -> StateLines:
        return tuple(self.leaves.splitlines())

    def undo(self, before: StateLines) -> Line | None:
        return None if self.back is None else Line(self.back.replace("BEFORE", " ".join(before)))


@dataclass(frozen=True)
class Risky(Text):
    """One that could keep SSH out."""

    cuts_connection: ClassVar[bool] = True


@dataclass(frozen=True)
class Outdated(Text):
    """One that was made from another state than there is."""

    def is_outdated(self, before: StateLines) -> bool:
        return bool(before)


@dataclass(frozen=True)
class ByRoot(Text):
    """One that needs root."""

    root: ClassVar[bool] = True


def step(operation: Operation | str, number: int = 1, **fields: object) -> Step:
    """A step on host "a"."""
    made = Text(operation) if isinstance(operation, str) else operation
    known = {
        "number": number,
        "host": "a",
        "command": str(made.line),
        "code": "NCD301",
        "mends": "x",
        "root": made.root,
    }
    return Step.model_validate({**known, "operation": made, **fields})
