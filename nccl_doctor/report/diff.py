"""What changed between two snapshots, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nccl_doctor.hostlist import fold
from nccl_doctor.model import Diagnosis
from nccl_doctor.report.text import plural, wrap

_WIDTH = 80
_VALUE = 60
Row = tuple[str, str, str, Sequence[str]]
"""What, before, after, hosts."""


def diff(rows: Sequence[Row], gone: Iterable[Diagnosis], new: Iterable[Diagnosis]) -> str:
    """The diagnoses that went and came, then each fact that is not what it was."""
    blocks = [
        [line for found in gone for line in wrap(_diagnosis(found), _WIDTH, "gone  ")],
        [line for found in new for line in wrap(_diagnosis(found), _WIDTH, "new   ")],
        [line for row in rows for line in _change(*row)],
    ]
    shown = "\n".join("\n".join([*block, ""]) for block in blocks if block)
    end = f"{plural(len(rows), 'fact')} changed." if rows else "Nothing changed in what is compared."
    return f"{shown}\n{end}\n" if shown else f"{end}\n"


def _diagnosis(found: Diagnosis) -> str:
    on = f" on {fold(found.hosts)}" if found.hosts else ""
    return f"{found.severity.value} {found.code} {found.name}{on}: {found.message}"


def _change(what: str, before: str, after: str, hosts: Sequence[str]) -> list[str]:
    where = f"{fold(hosts)}  " if hosts else ""
    return wrap(f"{where}{what}: {_cut(before)} -> {_cut(after)}", _WIDTH, "", "    ")


def _cut(value: str) -> str:
    return value if len(value) <= _VALUE else f"{value[: _VALUE - 1]}…"
