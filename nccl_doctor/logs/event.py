"""One fault that one line of a log tells."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nccl_doctor.logs.prefix import Prefix
from nccl_doctor.logs.rule import Grade
from nccl_doctor.nccl.messages import Meaning


@dataclass(frozen=True)
class Address:
    """What a line names as the other end, or as the port that it is about."""

    host: str | None = None
    ip: str | None = None
    port: int | None = None
    iface: str | None = None


@dataclass(frozen=True)
class Event:
    """One fault that one line tells.

    Attributes:
        name: may still change when the whole log is known, as may the grade.
        wording: the pattern or NCCL's template that the line fits.
        order: its place among all lines read.
    """

    name: str
    grade: Grade
    wording: str
    file: str
    line: int
    text: str
    message: str
    prefix: Prefix
    address: Address
    rank: int | None
    order: int
    catalogued: Meaning | None = None

    @classmethod
    def of_file(
        cls, file: str, wording: str, text: str, *, name: str = "", grade: Grade = Grade.CLUE, rank: int | None = None
    ) -> Event:
        """What a whole file says that is no log."""
        return cls(name, grade, wording, file, 1, text, text, Prefix(), Address(), rank, order=-1)

    def saying(self, message: str) -> Event:
        """The same with another message than its text."""
        return replace(self, message=message)
