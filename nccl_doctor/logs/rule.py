"""What a rule is: one wording, the diagnosis it speaks for, and how much it weighs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

NOT_WEB = r"^(?!.*(?:https?:|HTTPS?Connection|urllib3|huggingface|wandb|pypi|IPv6 network addresses)).*"
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
        pattern: a regular expression that both :mod:`re` and Hyperscan read alike: no white-space class and no
            negated class, because Hyperscan would let those run past the end of the line. Named groups ``host``,
            ``ip``, ``port``, ``iface`` and ``rank`` become entities.
        sample: a line that it is meant for; the tests hold every rule against its own sample.
    """

    name: str
    grade: Grade
    pattern: str
    sample: str

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern for :mod:`re`, made when a line first needs it: most never do."""
        return re.compile(self.pattern)


def root(name: str, pattern: str, sample: str) -> Rule:
    """A rule of grade ROOT."""
    return Rule(name, Grade.ROOT, pattern, sample)


def likely(name: str, pattern: str, sample: str) -> Rule:
    """A rule of grade LIKELY."""
    return Rule(name, Grade.LIKELY, pattern, sample)


def symptom(name: str, pattern: str, sample: str) -> Rule:
    """A rule of grade SYMPTOM."""
    return Rule(name, Grade.SYMPTOM, pattern, sample)


def generic(name: str, pattern: str, sample: str) -> Rule:
    """A rule of grade GENERIC."""
    return Rule(name, Grade.GENERIC, pattern, sample)


def hint(name: str, pattern: str, sample: str) -> Rule:
    """A rule of grade HINT."""
    return Rule(name, Grade.HINT, pattern, sample)


def clue(name: str, pattern: str, sample: str) -> Rule:
    """A rule of grade CLUE."""
    return Rule(name, Grade.CLUE, pattern, sample)


def benign(pattern: str, sample: str) -> Rule:
    """A rule of grade BENIGN: its line is no fault, whatever other rules say."""
    return Rule("", Grade.BENIGN, pattern, sample)
