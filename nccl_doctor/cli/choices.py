"""What options choose from; apart from options.py, so that whoever only writes a report need not import typer."""

from __future__ import annotations

from enum import Enum


class Color(str, Enum):
    """When output is coloured."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class FailOn(str, Enum):
    """The least severity that makes the exit code 1."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    NEVER = "never"
