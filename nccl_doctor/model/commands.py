"""Every command that a report prints is made here: lines to paste, and the host they are for.

What one host claims never stands in a command for another unless something else confirms it
(:mod:`nccl_doctor.snapshot.confirmed`); how a line is made of a template and typed values, says
:mod:`nccl_doctor.text.shell`.
"""

from __future__ import annotations

import re

from nccl_doctor.model.finding import Command
from nccl_doctor.text.shell import Line, line

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def on(host: str | None, *lines: Line | None) -> tuple[Command, ...]:
    """The lines as commands for a host, None for this machine; no command at all where one of them can't be pasted."""
    made = [one for one in lines if one is not None]
    return tuple(Command(host=host, command=one.text) for one in made) if len(made) == len(lines) else ()


def export(name: str, value: str) -> Line | None:
    """The line that sets a variable for what is started next from the same shell."""
    return line("export {assignment}", assignment=f"{name}={value}") if _VARIABLE.fullmatch(name) else None
