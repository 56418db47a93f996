"""What is said of a case."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_doctor.model import Command, Fix


@dataclass(frozen=True)
class Said:
    """One sentence for a tired person, and what to do."""

    message: str
    fix: Fix


def said(message: str, summary: str, commands: tuple[Command, ...] = ()) -> Said:
    """Words with commands that are safe to paste."""
    return Said(message, Fix(summary=summary, risk="safe" if commands else "manual", commands=commands))
