"""The exception for "could not look"."""

from __future__ import annotations


class Unavailable(Exception):  # noqa: N818 - it is no error of ours
    """A fact can't be had here; the message is a phrase that can stand behind "unknown: "."""
