"""What changed between two snapshots, for people."""

from __future__ import annotations

from nccl_doctor.model.documents import Change, Difference
from nccl_doctor.model.report import Diagnosis
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.text import wrap
from nccl_doctor.text.hostlist import fold, plural

_WIDTH = 80
_VALUE = 60


def render(found: Difference, _options: RenderOptions) -> str:
    """The diagnoses that went and came, then each fact that is not what it was."""
    blocks = [
        [line for one in found.diagnoses.gone for line in wrap(_diagnosis(one), _WIDTH, "gone  ")],
        [line for one in found.diagnoses.new for line in wrap(_diagnosis(one), _WIDTH, "new   ")],
        [line for change in found.changes for line in _change(change)],
    ]
    shown = "\n".join("\n".join([*block, ""]) for block in blocks if block)
    end = f"{plural(len(found.changes), 'fact')} changed." if found.changes else "Nothing changed in what is compared."
    return f"{shown}\n{end}\n" if shown else f"{end}\n"


def _diagnosis(found: Diagnosis) -> str:
    on = f" on {fold(found.hosts)}" if found.hosts else ""
    return f"{found.severity.value} {found.code} {found.name}{on}: {found.message}"


def _change(change: Change) -> list[str]:
    where = f"{fold(change.hosts)}  " if change.hosts else ""
    return wrap(f"{where}{change.what}: {_cut(change.before)} -> {_cut(change.after)}", _WIDTH, "", "    ")


def _cut(value: str) -> str:
    return value if len(value) <= _VALUE else f"{value[: _VALUE - 1]}…"
