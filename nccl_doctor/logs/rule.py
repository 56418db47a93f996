"""What a rule is: one wording, the diagnosis it speaks for, and how much it weighs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from nccl_doctor.linear import compiled

WEB = (
    r"https?://|HTTPS?Connection|urllib3\.|requests\.exceptions|huggingface\.co\b|huggingface_hub\.|\bwandb[.:]"
    r"|\bpypi\.org|IPv6 network addresses"
)
"""Not about a host of the job: on clusters, downloads and trackers fail to connect every day, and IPv6 to resolve."""


SCRIPT = "script-failed"
"""The diagnosis of what the training script itself did: its exit code alone says less than any other line."""


class Grade(IntEnum):
    """How much a line says about the cause. Between two lines the higher grade is blamed, then the earlier one."""

    BENIGN = 0
    """Looks like a fault and is none."""
    CLUE = 1
    """No fault by itself; it shows where a run stood that then went no further."""
    HINT = 2
    """A fault only if the run failed and nothing tells more: a retry that may have succeeded, an unusual interface."""
    GENERIC = 3
    """Something failed; the line does not say what."""
    SYMPTOM = 4
    """What ranks see when some other rank has failed: a closed connection, a collective that timed out."""
    LIKELY = 5
    """A failure that has its own remedy, but may itself follow from another one."""
    ROOT = 6
    """A cause."""


@dataclass(frozen=True)
class Rule:
    """One wording that logs hold.

    Attributes:
        name: the diagnosis of the contract's catalogue; empty for BENIGN.
        pattern: a regular expression without looking around (:mod:`nccl_doctor.linear`). Named groups ``host``, ``ip``,
            ``port``, ``iface`` and ``rank`` become entities.
        sample: a line that it is meant for; the tests hold every rule against its own sample.
        unless: a line that this is found in is not meant.
    """

    name: str
    grade: Grade
    pattern: str
    sample: str
    unless: str = ""

    @cached_property
    def _compiled(self) -> tuple[re.Pattern[str], re.Pattern[str] | None]:
        """Made when a line first needs it: most never do."""
        return compiled(self.pattern), compiled(self.unless) if self.unless else None

    def match(self, text: str) -> re.Match[str] | None:
        """Where the wording stands in ``text``; None where it does not, or what speaks against it does."""
        pattern, unless = self._compiled
        found = pattern.search(text)
        return None if found is None or (unless is not None and unless.search(text)) else found


def root(name: str, pattern: str, sample: str, unless: str = "") -> Rule:
    """A rule of grade ROOT."""
    return Rule(name, Grade.ROOT, pattern, sample, unless)


def likely(name: str, pattern: str, sample: str, unless: str = "") -> Rule:
    """A rule of grade LIKELY."""
    return Rule(name, Grade.LIKELY, pattern, sample, unless)


def symptom(name: str, pattern: str, sample: str, unless: str = "") -> Rule:
    """A rule of grade SYMPTOM."""
    return Rule(name, Grade.SYMPTOM, pattern, sample, unless)


def generic(name: str, pattern: str, sample: str, unless: str = "") -> Rule:
    """A rule of grade GENERIC."""
    return Rule(name, Grade.GENERIC, pattern, sample, unless)


def hint(name: str, pattern: str, sample: str, unless: str = "") -> Rule:
    """A rule of grade HINT."""
    return Rule(name, Grade.HINT, pattern, sample, unless)


def clue(name: str, pattern: str, sample: str, unless: str = "") -> Rule:
    """A rule of grade CLUE."""
    return Rule(name, Grade.CLUE, pattern, sample, unless)


def benign(pattern: str, sample: str) -> Rule:
    """A rule of grade BENIGN: its line is no fault, whatever other rules say."""
    return Rule("", Grade.BENIGN, pattern, sample)
