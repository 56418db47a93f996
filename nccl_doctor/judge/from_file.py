"""What is judged from a file: its words make no command for the machine that judges, and those for hosts say so.

A snapshot may come from anybody. A line for this machine would be made of its names, paths and keys alone: a
certificate authority to be trusted, a system's file to be opened, a policy of the cluster's to be applied.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TypeVar

from nccl_doctor.model.documents import Difference, Exports, InterfaceAnswers
from nccl_doctor.model.finding import Command, Fix
from nccl_doctor.model.hang import HangReport
from nccl_doctor.model.report import Diagnosis, Report

FROM = "from the snapshot"
"""Stands where such a command is for."""

Judged = TypeVar("Judged", Report, HangReport, Difference, InterfaceAnswers)


def judged_from_file(document: Judged, own: Container[str]) -> Judged:
    """The document without commands for this machine.

    Args:
        document: made of a snapshot's words alone.
        own: names of hosts that are this machine, or were that of whoever took the snapshot.
    """
    if isinstance(document, Difference):
        gone, new = (
            tuple(_diagnosis(one, own) for one in side) for side in (document.diagnoses.gone, document.diagnoses.new)
        )
        return document.model_copy(
            update={"diagnoses": document.diagnoses.model_copy(update={"gone": gone, "new": new})}
        )
    if isinstance(document, InterfaceAnswers):
        names = tuple(one.name for one in document.hosts)
        exports = tuple(made for one in document.exports if (made := _exports(one, names, own)).hosts != ())
        return document.model_copy(update={"exports": exports})
    changed: dict[str, object] = {"diagnoses": tuple(_diagnosis(one, own) for one in document.diagnoses)}
    if isinstance(document, Report):
        changed["next_step"] = None
    return document.model_copy(update=changed)


def _diagnosis(found: Diagnosis, own: Container[str]) -> Diagnosis:
    return found.model_copy(update={"fix": _fix(found.fix, own)}) if found.fix.commands else found


def _fix(fix: Fix, own: Container[str]) -> Fix:
    """Its commands for other hosts; prose alone where there are none."""
    commands = tuple(_marked(one) for one in fix.commands if one.host is not None and one.host not in own)
    if commands:
        return fix.model_copy(update={"commands": commands})
    prose = f"{fix.summary[:-1]}." if fix.summary.endswith(":") else fix.summary
    return fix.model_copy(update={"summary": prose, "risk": "manual", "commands": ()})


def _marked(command: Command) -> Command:
    return command.model_copy(update={"place": f"{command.place}, {FROM}" if command.place else FROM})


def _exports(block: Exports, names: tuple[str, ...], own: Container[str]) -> Exports:
    """What is to be set on those of its hosts that are not this machine."""
    others = tuple(name for name in block.hosts or names if name not in own)
    return block.model_copy(update={"hosts": others, "place": FROM})
